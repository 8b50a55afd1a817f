"""HTML of cells: tables and html_text, whatever it is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sandlot.cli.repl.html import Table, first_table, html_text

FRAME = """<div><style scoped>.dataframe { x }</style><table border="1" class="dataframe">
<thead><tr style="text-align: right;"><th></th><th>a</th><th>b &amp; c</th></tr></thead>
<tbody><tr><th>0</th><td>1</td><td>x <b>y</b></td></tr><tr><th>1</th><td>2</td><td><table><tr><td>in</td></tr></table></td></tr></tbody>
</table></div><table><tr><td>another</td></tr></table>"""


def test_the_first_table_is_taken_apart() -> None:
    assert first_table(FRAME) == Table([["", "a", "b & c"], ["0", "1", "x y"], ["1", "2", "in"]], headers=1)


def test_html_text_are_what_a_person_reads() -> None:
    assert html_text("<h1>A</h1><p>b <i>c</i></p><script>x()</script><br>d &lt; e<style>y</style>") == "A\nb c\nd < e"
    assert html_text("<div>\x1b[31m</div>") == "\x1b[31m", "what shows it spells it"


@example("<![a;")
@example("<![;>x")
@given(st.text(alphabet="<>/abtdhr=\"' table&;!-[]", max_size=200))
def test_nothing_in_it_raises(html: str) -> None:
    first_table(html)
    html_text(html)

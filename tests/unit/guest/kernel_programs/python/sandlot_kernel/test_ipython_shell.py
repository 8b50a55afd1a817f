"""Features of IPython: magics, history, displays and formatters."""

from __future__ import annotations

import pytest

from tests.support.kernels import Process, errors_of, text_of, values_of


@pytest.mark.parametrize(
    "code,shown",
    [
        ("5", ["5"]),
        ("5;", []),
        ("5; 6", ["6"]),
        ("x = 5", []),
        ("'a;'", ["'a;'"]),
        ("5  # ;", ["5"]),
        ("None", []),
        ("for n in range(2): n", []),
        ("%time 5", ["5"]),
        ("", []),
        ("# only a remark", []),
    ],
)
def test_cell_reports_its_result(ipython: Process, code: str, shown: list[str]) -> None:
    assert values_of(ipython.run(code)) == shown


@pytest.mark.parametrize(
    "code,text",
    [
        ("%%bash\necho from bash", "from bash\n"),
        ("%%writefile made.txt\ncontent", "Writing made.txt\n"),
        ("%timeit -n1 -r1 pass", None),
        ("%env GREETING=hello", "env: GREETING=hello\n"),
        ("%cd .", None),
        ("%who_ls", ""),
        ("%%capture\nprint('unseen')", ""),
        ("%load_ext autoreload\n%autoreload 2", ""),
        ("%xmode Plain", None),
    ],
)
def test_magics_work(ipython: Process, code: str, text: str | None) -> None:
    outcome = ipython.run(code)
    assert errors_of(outcome) == []
    assert text is None or text_of(outcome) == text


def test_unknown_magic_is_a_usage_error(ipython: Process) -> None:
    (error,) = ipython.run("%nosuchmagic")
    assert error["name"] == "UsageError"
    assert "nosuchmagic" in error["value"]


def test_last_traceback_can_be_shown_again_in_another_mode(ipython: Process) -> None:
    ipython.run("1 / 0")
    assert "ZeroDivisionError" in text_of(ipython.run("%tb"), 2)
    ipython.run("%xmode Verbose")
    (error,) = ipython.run("secret = 5\nsecret / 0")
    assert any("secret = 5" in line for line in error["traceback"])
    assert not any("\x1b" in line for line in error["traceback"])
    ipython.run("%xmode Plain")


def test_help_is_displayed_without_a_pager(ipython: Process) -> None:
    assert "number of items" in values_of(ipython.run("len?"))[0]


def test_displays_of_all_kinds_are_reported(ipython: Process) -> None:
    ipython.run("from IPython.display import HTML, JSON, SVG, Image, Javascript, Latex, Markdown, clear_output, display")
    outcome = ipython.run(
        "display(HTML('<b>'), Markdown('*m*'), Latex('$x$'), Javascript('1'), JSON({'a': [1.5, float('nan')]}), Image(b'\\x89PNG\\r\\n\\x1a\\n0'))"
    )
    data = [{mime: item for mime, item in message["data"].items() if mime != "text/plain"} for message in outcome]
    assert data == [
        {"text/html": "<b>"},
        {"text/markdown": "*m*"},
        {"text/latex": "$x$"},
        {"application/javascript": "1"},
        {"application/json": '{"a": [1.5, null]}'},
        {"image/png": b"\x89PNG\r\n\x1a\n0"},
    ]
    handle = ipython.run("handle = display('a', display_id=True)\nhandle.update('b')\nclear_output(wait=True)")
    assert [message["event"] for message in handle] == ["display", "display", "clear"]
    assert handle[0]["display_id"] == handle[1]["display_id"]
    assert [message.get("update", message.get("wait")) for message in handle] == [False, True, True]


def test_object_with_its_own_display_method_displays_itself(ipython: Process) -> None:
    assert ipython.text("class Own:\n    def _ipython_display_(self): print('own way')\nOwn()") == "own way\n"


def test_very_long_value_is_cut_with_a_note(ipython: Process) -> None:
    (display,) = ipython.run("'x' * 100_000_000")
    text = display["data"]["text/plain"]
    assert len(text) < 1100 * 1024
    assert "100,000,000" in text
    (display,) = ipython.run("class Long:\n    def __repr__(self): return 'r' * 5_000_000\nLong()")
    assert display["data"]["text/plain"].endswith("of 5,000,000 characters]")


def test_too_large_representation_is_left_out_with_a_note(ipython: Process) -> None:
    (display,) = ipython.run("class Big:\n    def _repr_png_(self): return b'0' * 9_000_000\n    def __repr__(self): return 'big'\nBig()")
    assert display["data"] == {"text/plain": "big"}
    assert display["metadata"] == {"image/png": {"left_out_bytes": 9_000_000}}


def test_pasted_prompts_are_removed_except_in_strings(ipython: Process) -> None:
    assert ipython.value(">>> x = 5\n>>> x") == "5"
    assert ipython.value("In [1]: 6") == "6"
    assert ipython.value("text = '''\n    >>> 2 + 2\n    4\n'''\ntext") == repr("\n    >>> 2 + 2\n    4\n")


def test_exit_ends_the_cell_and_not_the_kernel(ipython: Process) -> None:
    ipython.run("kept = 1")
    for code in ("exit", "quit", "exit(3)", "quit()"):
        assert errors_of(ipython.run(code)) == ["SystemExit"]
    assert errors_of(ipython.run("exit()\nkept = 2")) == ["SystemExit"]
    assert ipython.value("kept") == "1"

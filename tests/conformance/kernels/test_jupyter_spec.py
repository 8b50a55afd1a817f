"""What the Jupyter messaging specification says of execution, case by case, in real sandboxes on both runtimes.

https://jupyter-client.readthedocs.io/en/stable/messaging.html, sections *Execute*, *Display data*, *Streams*, *Kernel interrupt*. The
words on the wire are our own; what a client can count on is the specification's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace

import pytest

from sandlot.link.types import CellResult
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, Output
from sandlot.model.ids import new_context_id, new_process_id
from sandlot.model.specs import CellSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.localservice import EVERY_DAY

LIMITS = replace(SMALL, memory_bytes=1 << 30, pids=256)
Event = Output | Display | CellError | CellStarted | Cleared


@dataclass(frozen=True)
class Told:
    """What came of a cell, in order."""

    events: list[Event]
    result: CellResult

    @property
    def displays(self) -> list[Display]:
        return [event for event in self.events if isinstance(event, Display)]

    @property
    def errors(self) -> list[CellError]:
        return [event for event in self.events if isinstance(event, CellError)]

    def text(self, channel: int = 1) -> str:
        return b"".join(event.data for event in self.events if isinstance(event, Output) and event.channel == channel).decode()


def joined(events: list[Event]) -> list[Event]:
    """Join neighbouring pieces of one stream: a kernel may flush between the two writes of a `print`."""
    whole: list[Event] = []
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, Output) and isinstance(last, Output) and event.channel == last.channel:
            whole[-1] = replace(last, data=last.data + event.data)
        else:
            whole.append(event)
    return whole


@dataclass(frozen=True)
class Context:
    """A python kernel in a sandbox."""

    inside: GuestSession
    id: str

    async def run(self, code: str, *, silent: bool = False, store_history: bool = True, stop_on_error: bool = False, timeout_s: float = 60) -> Told:
        call = await self.inside.link.kernels.execute(
            CellSpec(code, context=self.id, timeout_s=timeout_s), silent=silent, store_history=store_history, stop_on_error=stop_on_error
        )
        return Told(joined([event async for event in call if isinstance(event, Event)]), await call.result())

    async def value(self, code: str) -> str | bytes:
        told = await self.run(code)
        assert told.result.status == "ok", told
        return told.displays[-1].data["text/plain"]


@pytest.fixture(scope="module", params=EVERY_DAY)
async def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=request.param, limits=LIMITS, template="code-interpreter-slim") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
async def kernel(inside: GuestSession) -> AsyncIterator[Context]:
    made = await inside.link.kernels.create(new_context_id(), "python")
    yield Context(inside, made.kernel)
    await inside.link.kernels.remove(made.kernel)


async def test_streams_results_and_errors_arrive_in_order(kernel: Context) -> None:
    code = (
        "import sys\nprint('one')\nprint('two', file=sys.stderr)\ndisplay('three')\n"
        "print('four', end='')\n!echo five\nprint('six')\nraise KeyError('seven')"
    )
    order = []
    for event in (await kernel.run(code)).events:
        if isinstance(event, Output):
            order.append(event.data.decode())
        elif isinstance(event, Display):
            order.append(str(event.data["text/plain"]))
        elif isinstance(event, CellError):
            order.append(event.value)
    assert "".join(order[:2]) == "one\ntwo\n"
    assert "|".join(order[2:]).replace("four|five", "fourfive").replace("five\n|six", "five\nsix") == "'three'|fourfive\nsix\n|'seven'"


async def test_update_has_the_id_of_the_updated_display(kernel: Context) -> None:
    first, second = (await kernel.run("handle = display('a', display_id='progress')\nhandle.update('b')")).displays
    assert (first.display_id, first.update, first.data["text/plain"]) == ("progress", False, "'a'")
    assert (second.display_id, second.update, second.data["text/plain"]) == ("progress", True, "'b'")
    (later,) = (await kernel.run("handle.update('c')")).displays
    assert (later.display_id, later.update) == ("progress", True)


async def test_clear_output_is_told_with_wait(kernel: Context) -> None:
    told = await kernel.run("from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)\nprint('b')\nclear_output()")
    assert [event.wait if isinstance(event, Cleared) else event.data for event in told.events[1:] if isinstance(event, Cleared | Output)] == [
        b"a\n",
        True,
        b"b\n",
        False,
    ]


async def test_silent_cell_has_no_result_no_history_and_no_count(kernel: Context) -> None:
    before = (await kernel.run("'before'")).result.execution_count
    told = await kernel.run("quiet = 5\n'not shown'", silent=True)
    assert (told.result.status, told.displays) == ("ok", [])
    assert (await kernel.run("quiet")).result.execution_count == before + 1
    assert await kernel.value("any('not shown' in cell for cell in In[:-1])") == "False"


async def test_cell_without_store_history_has_a_result_and_no_count(kernel: Context) -> None:
    before = (await kernel.run("'before'")).result.execution_count
    told = await kernel.run("'shown once'", store_history=False)
    assert [shown.data["text/plain"] for shown in told.displays] == ["'shown once'"]
    after = await kernel.run("'shown once' in Out.values(), any('shown once' in cell for cell in In[:-1])")
    assert after.result.execution_count == before + 1
    assert after.displays[0].data["text/plain"] == "(False, False)"


async def test_stop_on_error_aborts_waiting_cells(kernel: Context) -> None:
    link = kernel.inside.link
    calls = [
        await link.kernels.execute(CellSpec(code, context=kernel.id), id=new_process_id(), stop_on_error=True)
        for code in ("import time; time.sleep(0.5); 1 / 0", "ran = 'second'", "ran = 'third'")
    ]
    assert [(await call.result()).status for call in calls] == ["error", "aborted", "aborted"]
    assert (await kernel.run("ran")).errors[0].name == "NameError"


async def test_input_is_refused_at_once_with_a_hint(kernel: Context) -> None:
    for code in ("input('Name? ')", "import getpass; getpass.getpass()", "breakpoint()"):
        told = await kernel.run(code)
        assert told.errors[0].name == "StdinNotImplementedError"
        assert "input is not available" in told.errors[0].value
    assert await kernel.value("'goes on'") == "'goes on'"


async def test_interrupt_raises_keyboard_interrupt_and_keeps_the_state(kernel: Context) -> None:
    await kernel.run("kept = 'kept'")
    for code in (
        "import time; print('up', flush=True); time.sleep(300)",
        "print('up', flush=True)\nwhile True: pass",
        "print('up', flush=True)\nimport asyncio; await asyncio.sleep(300)",
        "print('up', flush=True)\n!sleep 300",
        "print('up', flush=True)\nimport re; re.match('(a+)+$', 'a' * 60 + 'b')",
    ):
        call = await kernel.inside.link.kernels.execute(CellSpec(code, context=kernel.id))
        errors = []
        async for event in call:
            if isinstance(event, Output) and event.data.endswith(b"\n"):
                await asyncio.sleep(0.2)  # it is in the middle of what follows
                assert await kernel.inside.link.kernels.interrupt(kernel.id)
            elif isinstance(event, CellError):
                errors.append(event.name)
        assert (errors, (await call.result()).status) == (["KeyboardInterrupt"], "error"), code
        assert await kernel.value("kept") == "'kept'", code


async def test_restart_removes_all_state(inside: GuestSession) -> None:
    context = Context(inside, (await inside.link.kernels.create(new_context_id(), "python")).kernel)
    await context.run("gone = 1")
    await inside.link.kernels.restart(context.id)
    told = await context.run("gone")
    assert told.errors[0].name == "NameError"
    assert told.result.execution_count == 1
    await inside.link.kernels.remove(context.id)


async def test_displays_have_the_mime_types_of_their_object(kernel: Context) -> None:
    code = (
        "from IPython.display import HTML, JSON, SVG, Javascript, Latex, Markdown, Image, display\nfrom PIL import Image as Picture\nimport io\n"
        "jpeg = io.BytesIO(); Picture.new('RGB', (2, 2)).save(jpeg, 'jpeg')\n"
        "class Paper:\n    def _repr_pdf_(self): return b'%PDF-1.4'\n"
        "display(HTML('<p>'), Markdown('*m*'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), Latex('$x$'), JSON({'k': [1]}), Javascript('1'),"
        " Picture.new('RGB', (2, 2)), Image(jpeg.getvalue()), Paper())"
    )
    offered: dict[str, str | bytes] = {}
    for shown in (await kernel.run(code)).displays:
        assert "text/plain" in shown.data
        offered.update({mime: data for mime, data in shown.data.items() if mime != "text/plain"})
    assert offered["text/html"] == "<p>"
    assert offered["text/markdown"] == "*m*"
    assert "<svg" in str(offered["image/svg+xml"])
    assert offered["text/latex"] == "$x$"
    assert json.loads(offered["application/json"]) == {"k": [1]}
    assert offered["application/javascript"] == "1"
    assert isinstance(png := offered["image/png"], bytes)
    assert png.startswith(b"\x89PNG")
    assert isinstance(jpeg := offered["image/jpeg"], bytes)
    assert jpeg.startswith(b"\xff\xd8")
    assert offered["application/pdf"] == b"%PDF-1.4"


CHARTS: dict[str, tuple[str, dict[str, object]]] = {
    "line": (
        "plt.plot([1, 2], [3, 4.5], label='v')\nplt.xlabel('time (s)'); plt.ylabel('speed [m/s]'); plt.title('Fast')",
        {"title": "Fast", "x_unit": "s", "y_unit": "m/s", "elements": [{"label": "v", "points": [[1.0, 3.0], [2.0, 4.5]]}]},
    ),
    "scatter": ("plt.scatter([1, 2], [3, 4])", {"elements": [{"label": "Points 0", "points": [[1.0, 3.0], [2.0, 4.0]]}]}),
    "bar": (
        "plt.bar(['a', 'b'], [2, 2], label='g')",
        {"orientation": "vertical", "elements": [{"label": "a", "value": 2.0, "group": "g"}, {"label": "b", "value": 2.0, "group": "g"}]},
    ),
    "bar with error bars": (
        "plt.bar(['A', 'B', 'C'], [10, 15, 7], yerr=[1, 2, .5], capsize=4)",
        {"type": "bar", "elements": [{"label": name, "value": value, "group": "Group 0"} for name, value in (("A", 10.0), ("B", 15.0), ("C", 7.0))]},
    ),
    "line with error bars": (
        "plt.errorbar([1, 2], [3, 4], yerr=.5, capsize=3, label='measured')",
        {"type": "line", "elements": [{"label": "measured", "points": [[1.0, 3.0], [2.0, 4.0]]}]},
    ),
    "pie": (
        "plt.pie([1, 3], labels=['p', 'q'])",
        {
            "elements": [
                {"label": "p", "angle": 90.0, "radius": 1.0, "fraction": 0.25},
                {"label": "q", "angle": 270.0, "radius": 1.0, "fraction": 0.75},
            ]
        },
    ),
    "box_and_whisker": (
        "plt.boxplot([[1, 2, 3, 4, 20]], tick_labels=['u'])",
        {"elements": [{"label": "u", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": [20.0]}]},
    ),
}


async def test_figure_is_displayed_at_the_end_of_its_cell_with_chart_data(kernel: Context) -> None:
    for kind, (code, expected) in CHARTS.items():
        (shown,) = (await kernel.run(f"import matplotlib.pyplot as plt\n{code};")).displays
        assert isinstance(png := shown.data["image/png"], bytes)
        assert png.startswith(b"\x89PNG"), kind
        chart = json.loads(shown.data["application/vnd.sandlot.chart.v1+json"])
        assert chart["type"] == expected.get("type", kind)
        assert {name: chart[name] for name in expected} == expected


async def test_a_figure_is_shown_once(kernel: Context) -> None:
    kinds = []
    for code in ("plt.plot([1, 2]); plt.show()", "fig, ax = plt.subplots(); ax.plot([1, 2]); fig", "plt.figure().subplots(1, 2)[0].plot([1]);"):
        displays = (await kernel.run(f"import matplotlib.pyplot as plt\n{code}")).displays
        assert len(displays) == 1, code
        kinds.append(json.loads(displays[0].data["application/vnd.sandlot.chart.v1+json"])["type"])
    assert kinds == ["line", "line", "superchart"]
    assert (await kernel.run("plt.gcf().axes == []")).displays[0].data["text/plain"] == "True", "the next cell begins with none"

"""The kernel in a real sandbox: state that stays, cells that end, and a kernel that comes back."""

from __future__ import annotations

import asyncio

from sandlot.guest.kernels.cells import LEFT_OUT
from sandlot.link.types import CellError, Display, Output
from sandlot.model.ids import new_process_id
from tests.support.lives import Inside


async def value(inside: Inside, code: str) -> object:
    _, told, result = await inside.cell(code)
    assert result.status == "ok", told
    assert isinstance(told[-1], Display)
    return told[-1].data["text/plain"]


async def test_variables_stay_between_cells_and_over_an_exception(inside: Inside) -> None:
    text, told, result = await inside.cell("import os\nkept = 41\nprint('hello', os.getuid(), os.getcwd())")
    assert (text, told, result.status) == ("hello 1000 /workspace\n", [], "ok")
    _, told, result = await inside.cell("kept += 1\nraise ValueError('no')")
    assert result.status == "error"
    assert isinstance(told[0], CellError)
    assert (told[0].name, told[0].value) == ("ValueError", "no")
    assert await value(inside, "kept") == "42"


async def test_output_of_children_and_of_c_code_arrives_before_the_cell_ends(inside: Inside) -> None:
    text, _, _ = await inside.cell(
        "import os, subprocess\nprint('a')\nsubprocess.run(['sh', '-c', 'echo b; seq 1 200000 | tail -1'])\nos.write(1, b'c\\n')"
    )
    assert sorted(text.split()) == ["200000", "a", "b", "c"]


async def test_output_streams_while_the_cell_runs(inside: Inside) -> None:
    call = await inside.link.execute(
        "import time\nprint('first', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)\nprint('second')"
    )
    written = []
    async for item in call:
        if isinstance(item, Output):
            written.append(item.data)
            if written == [b"first\n"]:
                await inside.sh("touch /tmp/go")
    assert written == [b"first\n", b"second\n"]
    assert (await call.result()).status == "ok"


async def test_a_timeout_interrupts_and_leaves_the_variables(inside: Inside) -> None:
    await inside.cell("before = 'still here'")
    _, told, result = await inside.cell("import time\ntime.sleep(600)", timeout_s=0.5)
    assert result.status == "timeout"
    assert isinstance(told[0], CellError)
    assert told[0].name == "KeyboardInterrupt"
    assert await value(inside, "before") == "'still here'"


async def test_a_cell_that_will_not_stop_is_killed_and_the_next_one_works(inside: Inside) -> None:
    code = "import signal, subprocess, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '1618'])\ntime.sleep(600)"
    _, told, result = await inside.cell(code, timeout_s=0.5)
    assert result.status == "killed"
    assert isinstance(told[-1], CellError)
    assert told[-1].name == "KernelDied"
    assert await value(inside, "1 + 1") == "2"
    assert "sleep 1618" not in await inside.sh("ps -eo args"), "children of a kernel die with it"


async def test_a_kernel_that_dies_says_so_and_comes_back(inside: Inside) -> None:
    await inside.cell("gone = 1")
    _, told, result = await inside.cell("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert result.status == "died"
    assert isinstance(told[-1], CellError)
    _, told, result = await inside.cell("gone")
    assert isinstance(told[0], CellError)
    assert told[0].name == "NameError"


async def test_a_kernel_that_breaks_its_own_wire_is_replaced(inside: Inside) -> None:
    code = "import os\nfor fd in range(64, 1024):\n    try: os.write(fd, b'\\xff' * 100)\n    except OSError: pass"
    _, _, result = await inside.cell(code)
    assert result.status == "died"
    assert await value(inside, "'back'") == "'back'"


async def test_an_interrupt_and_a_restart_from_outside(inside: Inside) -> None:
    await inside.cell("import time\nkept = 1")
    call = await inside.link.execute("print('up', flush=True)\ntime.sleep(600)")
    told = []
    async for item in call:
        told.append(item)
        if isinstance(item, Output):
            assert await inside.link.interrupt()
    assert (await call.result()).status == "error"
    assert isinstance(told[-1], CellError)
    assert told[-1].name == "KeyboardInterrupt"
    assert not await inside.link.interrupt(), "nothing runs"
    assert await value(inside, "kept") == "1"
    await inside.link.restart()
    assert (await inside.cell("kept"))[2].status == "error"


async def test_cells_wait_for_each_other_in_order(inside: Inside) -> None:
    await inside.cell("seen = []")
    cells = [await inside.link.execute(f"seen.append({number})") for number in range(10)]
    await asyncio.gather(*(cell.result() for cell in cells))
    assert await value(inside, "seen") == str(list(range(10)))


async def test_a_cell_is_done_once_and_can_be_attached_to(inside: Inside) -> None:
    await inside.cell("count = 0")
    id_ = new_process_id()
    code = "count += 1\nprint('x' * 10)\ncount"
    first = await inside.link.execute(code, id=id_)
    await first.result()
    second = await inside.link.execute(code, id=id_)
    told = [item async for item in second]
    assert [item.data for item in told if isinstance(item, Output)] == [b"x" * 10 + b"\n"]
    again = await inside.link.attach_cell(id_, events_from=0, stdout_from=5, stderr_from=0)
    assert [item.data for item in [item async for item in again] if isinstance(item, Output)] == [b"x" * 5 + b"\n"]
    assert await value(inside, "count") == "1"


async def test_results_too_large_to_carry_are_left_out_and_said(inside: Inside) -> None:
    code = "class Big:\n    def _repr_png_(self): return b'0' * 9_000_000\n    def __repr__(self): return 'big'\nBig()"
    _, _, result = await inside.cell(code)
    assert result.status in {"ok", "error", "died"}
    code = "class Half:\n    def _repr_png_(self): return b'0' * 3_000_000\n    def __repr__(self): return 'half'\nfor _ in range(4): display(Half())"
    _, told, result = await inside.cell(code)
    assert result.status == "ok"
    assert not [item for item in told if isinstance(item, CellError)], "what the cell did went well"
    shown = [item.data for item in told if isinstance(item, Display)]
    assert [data["text/plain"] for data in shown] == ["half", "half", LEFT_OUT]
    assert await value(inside, "1") == "1"

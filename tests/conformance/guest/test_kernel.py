"""The kernel in a real sandbox: state that stays, cells that end, and a kernel that comes back."""

from __future__ import annotations

from sandlot.model.executions import CellError, Display
from tests.support.driver_sandboxes import GuestSession


async def value(inside: GuestSession, code: str) -> object:
    _, told, result = await inside.cell(code)
    assert result.status == "ok", told
    assert isinstance(told[-1], Display)
    return told[-1].data["text/plain"]


async def test_variables_are_kept_between_cells_and_after_an_exception(inside: GuestSession) -> None:
    text, told, result = await inside.cell("import os\nkept = 41\nprint('hello', os.getuid(), os.getcwd())")
    assert (text, told, result.status) == ("hello 1000 /workspace\n", [], "ok")
    _, told, result = await inside.cell("kept += 1\nraise ValueError('no')")
    assert result.status == "error"
    assert isinstance(told[0], CellError)
    assert (told[0].name, told[0].value) == ("ValueError", "no")
    assert await value(inside, "kept") == "42"


async def test_timeout_interrupts_and_keeps_the_variables(inside: GuestSession) -> None:
    await inside.cell("before = 'still here'")
    _, told, result = await inside.cell("import time\ntime.sleep(600)", timeout_s=0.5)
    assert result.status == "timeout"
    assert isinstance(told[0], CellError)
    assert told[0].name == "KeyboardInterrupt"
    assert await value(inside, "before") == "'still here'"


async def test_cell_that_ignores_its_timeout_is_killed_and_the_next_one_works(inside: GuestSession) -> None:
    code = "import signal, subprocess, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '1618'])\ntime.sleep(600)"
    _, told, result = await inside.cell(code, timeout_s=0.5)
    assert result.status == "timeout"
    assert isinstance(told[-1], CellError)
    assert told[-1].name == "KernelDied"
    assert "timeout of 0.5 s" in told[-1].value
    assert "variables are lost" in told[-1].value
    assert await value(inside, "1 + 1") == "2"
    assert "sleep 1618" not in await inside.sh("ps -eo args"), "children of a kernel die with it"


async def test_dead_kernel_is_reported_and_replaced(inside: GuestSession) -> None:
    await inside.cell("gone = 1")
    _, told, result = await inside.cell("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert result.status == "died"
    assert isinstance(told[-1], CellError)
    _, told, result = await inside.cell("gone")
    assert isinstance(told[0], CellError)
    assert told[0].name == "NameError"


async def test_a_kernel_that_breaks_its_own_wire_is_replaced(inside: GuestSession) -> None:
    code = "import os\nfor fd in range(64, 1024):\n    try: os.write(fd, b'\\xff' * 100)\n    except OSError: pass"
    _, _, result = await inside.cell(code)
    assert result.status == "died"
    assert await value(inside, "'back'") == "'back'"

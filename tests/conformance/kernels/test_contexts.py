"""Contexts in real sandboxes, on both runtimes: state of their own, queues, interrupts, order, back-pressure, memory, families."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from sandlot.link.kernels import CellCall
from sandlot.link.types import CellResult, KernelInfo
from sandlot.model.errors import ConflictError, LimitError, NotFoundError, SandlotError
from sandlot.model.executions import CellError, CellStarted, Display, Output
from sandlot.model.ids import new_context_id
from sandlot.model.specs import CellSpec, ProcessSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.localservice import EVERY_DAY
from tests.support.until import until

CONTEXTS = 32
SHELLS = "ps -eo args | grep -c '[b]ash/kernel.py' || true"
KERNELS = "ps -eo args | grep -c '[p]ython/kernel.py' || true"
LIMITS = replace(SMALL, pids=256)


@pytest.fixture(scope="module", params=EVERY_DAY)
async def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox that the tests of a module share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=request.param, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
async def context(inside: GuestSession) -> AsyncGenerator[str]:
    """A python context of a test's own."""
    made = await inside.link.kernels.create(new_context_id(), "python")
    yield made.kernel
    await inside.link.kernels.remove(made.kernel)


async def told(call: CellCall) -> tuple[str, list[object], CellResult]:
    """What a cell printed on its standard output, all that it told besides, and how it ended."""
    text = bytearray()
    others: list[object] = []
    async for item in call:
        if isinstance(item, Output) and item.channel == 1:
            text += item.data
        elif not isinstance(item, CellStarted):
            others.append(item)
    return text.decode("utf-8", "replace"), others, await call.result()


async def run(inside: GuestSession, context: str, code: str, **options: float | bool) -> tuple[str, list[object], CellResult]:
    return await told(await inside.link.kernels.execute(CellSpec(code, language=None, context=context, **options)))  # type: ignore[arg-type]


async def kernel_of(inside: GuestSession, context: str) -> KernelInfo:
    """What the guest tells of a context and its kernel."""
    (kernel,) = [each for each in await inside.link.kernels.list() if each.kernel == context]
    return kernel


async def begun(call: CellCall) -> CellCall:
    """The same, once its turn has come."""
    async for item in call:
        if isinstance(item, CellStarted):
            return call
    raise AssertionError("it never began")


async def test_contexts_have_their_own_state_folder_and_environment(inside: GuestSession) -> None:
    one = (await inside.link.kernels.create(new_context_id(), "python", cwd="/tmp", env={"WHICH": "one"})).kernel
    two = (await inside.link.kernels.create(new_context_id(), "python")).kernel
    await run(inside, one, "x = 1")
    await run(inside, two, "x = 2")
    code = "import os; print(x, os.getcwd(), os.environ.get('WHICH'))"
    assert (await run(inside, one, code))[0] == "1 /tmp one\n"
    assert (await run(inside, two, code))[0] == "2 /workspace None\n"
    known = {info.kernel: info for info in await inside.link.kernels.list()}
    assert (known[one].language, known[one].cwd, known[one].state, known[one].execution_count) == ("python", "/tmp", "idle", 2)
    assert known[one].pid not in {None, known[two].pid}
    for context in (one, two):
        await inside.link.kernels.remove(context)
    assert not {one, two} & {info.kernel for info in await inside.link.kernels.list()}
    with pytest.raises(NotFoundError):
        await run(inside, one, "x")


async def test_what_cannot_be_is_refused(inside: GuestSession, context: str) -> None:
    for language in ("bash", "cobol"):
        with pytest.raises(ConflictError):
            await inside.link.kernels.create(context, language)
    with pytest.raises(SandlotError, match="does not exist"):
        await inside.link.kernels.create(new_context_id(), "python", cwd="/nowhere")
    assert (await inside.link.kernels.create(context, "python")).kernel == context
    for call in (inside.link.kernels.remove, inside.link.kernels.restart, inside.link.kernels.interrupt):
        with pytest.raises(NotFoundError):
            await call(new_context_id())


async def shells(inside: GuestSession, count: int) -> None:
    """Wait until so many run: one that starts forks before it is another program, and one that was killed is not gone at once."""
    for _ in range(1000):
        if await inside.sh(SHELLS) == f"{count}\n":
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"not {count}, but {await inside.sh(SHELLS)}")


async def test_number_of_contexts_is_limited(inside: GuestSession) -> None:
    made = [(await inside.link.kernels.create(new_context_id(), "bash")).kernel for _ in range(CONTEXTS)]
    with pytest.raises(LimitError, match=str(CONTEXTS)):
        await inside.link.kernels.create(new_context_id(), "bash")
    await shells(inside, CONTEXTS)
    for context in made:
        await inside.link.kernels.remove(context)
    await shells(inside, 0)


async def test_waiting_does_not_count_for_a_cells_timeout(inside: GuestSession, context: str) -> None:
    cells = [await inside.link.kernels.execute(CellSpec(f"import time; time.sleep(0.4); print({n})", context=context, timeout_s=5)) for n in range(2)]
    cells.append(await inside.link.kernels.execute(CellSpec("print(2)", context=context, timeout_s=0.7)))
    assert [(await told(cell))[::2] for cell in cells] == [(f"{n}\n", await cells[n].result()) for n in range(3)]
    assert {(await cell.result()).status for cell in cells} == {"ok"}


async def test_interrupted_waiting_execution_is_aborted_and_the_others_run(inside: GuestSession, context: str) -> None:
    first = await inside.link.kernels.execute(CellSpec("import time; time.sleep(0.5); print('first')", context=context))
    second = await inside.link.kernels.execute(CellSpec("print('never')", context=context))
    third = await inside.link.kernels.execute(CellSpec("print('third')", context=context))
    assert await inside.link.kernels.interrupt(execution=second.id)
    text, others, result = await told(second)
    assert (text, result.status, result.execution_count) == ("", "aborted", 0)
    assert isinstance(others[0], CellError)
    assert ((await told(first))[0], (await told(third))[0]) == ("first\n", "third\n")
    assert not await inside.link.kernels.interrupt(execution=second.id), "it is over"


async def test_only_the_requested_execution_is_interrupted(inside: GuestSession, context: str) -> None:
    running = await begun(await inside.link.kernels.execute(CellSpec("import time\ntime.sleep(600)", context=context)))
    waiting = await inside.link.kernels.execute(CellSpec("print('after')", context=context))
    assert await inside.link.kernels.interrupt(execution=running.id)
    _, others, result = await told(running)
    assert result.status == "error"
    assert isinstance(others[-1], CellError)
    assert others[-1].name == "KeyboardInterrupt"
    assert (await told(waiting))[0] == "after\n"


async def test_a_kernel_that_dies_while_nobody_reads_leaves_its_context_to_the_next(inside: GuestSession, context: str) -> None:
    flood = await inside.link.kernels.execute(CellSpec("while True: print('x' * 1000)", context=context))
    while (kernel := await kernel_of(inside, context)).state != "busy":  # noqa: ASYNC110 - a kernel killed earlier is replaced
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)  # its follower takes nothing, so it stands still by now
    await inside.sh(f"kill -9 {kernel.pid}")
    text, _, result = await told(await inside.link.kernels.execute(CellSpec("print(1)", context=context)))
    assert (text, result.status) == ("1\n", "ok")
    assert (await flood.result()).status == "died"


async def test_an_error_aborts_what_waits_where_that_was_asked_for(inside: GuestSession, context: str) -> None:
    for stop, expected in ((True, "aborted"), (False, "ok")):
        failing = await inside.link.kernels.execute(CellSpec("import time; time.sleep(0.3); 1/0", context=context), stop_on_error=stop)
        waiting = await inside.link.kernels.execute(CellSpec("1", context=context))
        assert (await told(failing))[2].status == "error"
        assert (await told(waiting))[2].status == expected
    assert (await run(inside, context, "1"))[2].status == "ok"


async def test_a_restart_ends_what_runs_and_what_waits(inside: GuestSession, context: str) -> None:
    await run(inside, context, "kept = 1")
    running = await begun(await inside.link.kernels.execute(CellSpec("import time; time.sleep(600)", context=context)))
    waiting = await inside.link.kernels.execute(CellSpec("1", context=context))
    await inside.link.kernels.restart(context)
    assert ((await told(running))[2].status, (await told(waiting))[2].status) == ("killed", "aborted")
    assert (await run(inside, context, "kept"))[2].status == "error"


async def test_interrupt_reaches_every_kind_of_code_and_keeps_the_variables(inside: GuestSession, context: str) -> None:
    await run(inside, context, "import time; kept = 1")
    for code in (
        "while True: pass",
        "import subprocess; subprocess.run(['sleep', '600'])",
        "import os; os.system('sleep 600'); time.sleep(600)",
        "import threading; threading.Event().wait()",
    ):
        _, _, result = await run(inside, context, code, timeout_s=0.3)
        assert result.status == "timeout", code
        assert (await run(inside, context, "print(kept)"))[0] == "1\n", code


async def test_code_that_ignores_an_interrupt_is_killed_and_the_next_cell_has_a_new_kernel(inside: GuestSession, context: str) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"
    call = await inside.link.kernels.execute(CellSpec(f"{deaf}\nprint('in its middle', flush=True)\nsum(range(10**12))", context=context))
    async for item in call:
        if isinstance(item, Output):
            break
    assert await inside.link.kernels.interrupt(context)
    _, others, result = await told(call)
    assert result.status == "killed"
    assert isinstance(others[-1], CellError)
    assert "interrupt" in others[-1].value
    assert (await run(inside, context, "print(1)"))[0] == "1\n"


async def test_output_and_displays_arrive_in_order(inside: GuestSession, context: str) -> None:
    shows = "print(f'o{n}', end=' '); print(f'e{n}', file=sys.stderr, end=' '); display(n); os.write(1, f'c{n} '.encode())"
    code = f"import os, sys\nfor n in range(50): {shows}"
    call = await inside.link.kernels.execute(CellSpec(code, context=context))
    words: list[str] = []
    async for item in call:
        if isinstance(item, Output):
            words += item.data.decode().split()
        elif isinstance(item, Display):
            words.append(f"d{item.data['text/plain']!s}")
    # What C code writes comes after what was written and shown before it, and before what is said after it.
    assert [word for word in words if word[0] != "c"] == [f"{kind}{n}" for n in range(50) for kind in "oed"]
    for n in range(49):
        assert words.index(f"c{n}") < words.index(f"d{n + 1}")


async def test_follower_that_does_not_read_stops_its_own_kernel_only(inside: GuestSession, context: str) -> None:
    size, other = 12_000_000, (await inside.link.kernels.create(new_context_id(), "python")).kernel
    call = await inside.link.kernels.execute(
        CellSpec(
            f"import sys\nfor _ in range({size // 1000}): sys.stdout.write('x' * 1000)\nopen('/tmp/through', 'w').close()",
            language=None,
            context=context,
        )
    )
    async for _ in call:
        break
    for _ in range(3):
        assert (await run(inside, other, "print('goes on')"))[0] == "goes on\n"
        assert await inside.sh("ls /tmp/through 2>&1 || true") != "/tmp/through\n"
        await asyncio.sleep(0.2)
    text, others, result = await told(call)
    assert (len(text), others, result.status) == (size, [], "ok")
    await inside.link.kernels.remove(other)


async def test_one_that_is_interrupted_while_nobody_reads_ends_all_the_same(inside: GuestSession, context: str) -> None:
    call = await inside.link.kernels.execute(CellSpec("while True: print('x' * 1000)", context=context))
    async for _ in call:
        break
    assert await inside.link.kernels.interrupt(execution=call.id)
    assert (await run(inside, context, "print('next')"))[0] == "next\n"
    assert (await told(call))[2].status == "error"


async def test_a_cell_is_looked_at_and_gone_on_with_by_offset(inside: GuestSession, context: str) -> None:
    code = "import os, time\nprint('one'); display(1)\nwhile not os.path.exists('/tmp/two'): time.sleep(0.02)\nprint('two'); display(2)"
    call = await begun(await inside.link.kernels.execute(CellSpec(code, context=context)))
    async for item in call:
        if isinstance(item, Display):
            break
    text, others, result = await told(await inside.link.kernels.attach(call.id, wait=False))
    assert (text, len(others), result.status) == ("one\n", 1, "running")
    await inside.sh("touch /tmp/two")
    again = await inside.link.kernels.attach(call.id, events_from=2, stdout_from=4)
    text, others, result = await told(again)
    assert (text, len(others), result.status) == ("two\n", 1, "ok")
    assert (await told(await inside.link.kernels.attach(call.id)))[0] == "one\ntwo\n"


async def test_kernel_that_fills_the_memory_is_killed_and_the_sandbox_continues(inside: GuestSession, context: str) -> None:
    async def has_free_memory() -> bool:
        return (await inside.instance.usage()).memory_bytes < LIMITS.memory_bytes * 3 // 4

    for code in ("b'x' * (4 << 30)", "import time\nl = []\nwhile True: l.append(b'y' * (10 << 20)); time.sleep(0.02)"):
        _, others, result = await run(inside, context, code)
        assert result.status == "oom", code
        assert isinstance(others[-1], CellError)
        assert "memory" in others[-1].value
        await until(has_free_memory)  # gVisor returns the memory of a killed process to the host a little later
        assert (await run(inside, context, "print('lives')"))[0] == "lives\n", code


async def test_child_that_fills_the_memory_is_killed_and_its_kernel_continues(inside: GuestSession, context: str) -> None:
    await run(inside, context, "kept = 1")
    # The pauses slow the child down, so that the guest can measure in time even if this machine is busy.
    child = "import time\nl = []\nwhile True: l.append(b'z' * (1 << 20)); time.sleep(0.002)"
    text, _, result = await run(inside, context, f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {child!r}]).returncode, kept)")
    assert (text, result.status) == ("-9 1\n", "ok")


@pytest.mark.parametrize("how", ["killed", "died"])
async def test_all_descendants_of_a_kernel_end_with_it_and_commands_continue(inside: GuestSession, context: str, how: str) -> None:
    call = await inside.link.processes.start(ProcessSpec(("sleep", "1414"), timeout_s=None), attach=False)
    code = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['sleep', '1415'])\n"
        "subprocess.Popen(['sleep', '1415'], start_new_session=True, env={})\n"
        "os.system('setsid nohup sleep 1415 >/dev/null 2>&1 &')\n"
        "first = os.fork()\n"
        "if not first:\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        time.sleep(1415)\n"
        "    os._exit(0)\n"
        "os.waitpid(first, 0)\n"
    )
    await run(inside, context, "import os")
    kernels = int(await inside.sh(KERNELS))
    assert (await run(inside, context, code))[2].status == "ok"
    family = "ps -eo args | grep -c '[s]leep 1415' || true"
    assert (await inside.sh(family), int(await inside.sh(KERNELS))) == ("3\n", kernels + 1)
    if how == "killed":
        await inside.link.kernels.restart(context)
    else:
        assert (await run(inside, context, "os._exit(3)"))[2].status == "died"
    assert await inside.sh(family) == "0\n"
    assert int(await inside.sh(KERNELS)) == kernels - 1, "one that forked and was not exec'd ends as well"
    assert await inside.sh("ps -eo args | grep -c '[s]leep 1414' || true") == "1\n"
    await inside.link.processes.signal(call.id, 9)


async def test_child_with_lower_resource_limits_ends_with_its_kernel(inside: GuestSession) -> None:
    code = "for kind in f d; do (ulimit -$kind 1000000; setsid sleep 1416 > /dev/null 2>&1 &); done; sleep 0.3; ulimit -f"
    context = (await inside.link.kernels.create(new_context_id(), "bash")).kernel
    _, _, result = await run(inside, context, code)
    assert result.status == "ok"
    family = "ps -eo args | grep -c '[s]leep 1416' || true"
    assert await inside.sh(family) == "2\n"
    await inside.link.kernels.restart(context)
    assert await inside.sh(family) == "0\n"
    await inside.link.kernels.remove(context)


async def test_end_of_a_process_reports_cpu_time_and_peak_memory(inside: GuestSession) -> None:
    code = "x = bytearray(80 << 20)\nx[::4096] = b'1' * len(x[::4096])\nfor _ in range(3_000_000): pass"
    _, _, result = await inside.run("python3", "-c", code)
    assert result.cpu_s is not None
    assert 0.02 < result.cpu_s < 60
    assert result.peak_bytes is not None
    assert 80 << 20 < result.peak_bytes < 300 << 20

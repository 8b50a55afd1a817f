"""Code and contexts through both clients: streamed, interrupted, and over restarts of the service."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandlot import AsyncSandbox, Sandbox
from sandlot.sdk import AsyncClient, ExceptionInfo, Execution, ExecutionStarted, Output, Result
from tests.support.localservice import LocalService

pytestmark = pytest.mark.parametrize("service", ["container", pytest.param("gvisor", marks=pytest.mark.soak)], indirect=True)
"""tests/service/test_survival.py has cells that run on while the service is killed, on both kinds of isolation."""

TICKS = 30
SLOW = f"import time\nfor n in range({TICKS}):\n    print(n, flush=True)\n    time.sleep(0.1)\nprint('é')\nruns = globals().get('runs', 0) + 1\nruns"
TICKED = "".join(f"{n}\n" for n in range(TICKS)) + "é\n"


@pytest.fixture
async def async_sandbox(service: LocalService, sandbox: Sandbox) -> AsyncIterator[AsyncSandbox]:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        yield await AsyncSandbox.connect(sandbox.id, client=client)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_runs_continue_over_a_restart_of_the_service_and_are_not_repeated(service: LocalService, sandbox: Sandbox, number: signal.Signals) -> None:
    told: list[str] = []
    begun = threading.Event()

    def heard(text: str) -> None:
        told.append(text)
        begun.set()

    first, second, third = [sandbox.contexts.create() for _ in range(3)]
    with ThreadPoolExecutor(2) as threads:
        handle = sandbox.run_code(SLOW, context=first, background=True)
        runs = [threads.submit(sandbox.run_code, SLOW, context=second, on_stdout=heard)]
        if number is signal.SIGKILL:  # a service that stops answers a collected run with 503
            runs.append(threads.submit(sandbox.run_code, f"open('/tmp/begun', 'w').close()\n{SLOW}", context=third))
            wait_for(sandbox, "/tmp/begun")
        assert begun.wait(60)
        os.kill(service.pid, number)  # service.end() would close the connection first
        while service.is_alive():
            time.sleep(0.02)
        service.start()
        for done in (*(run.result(120) for run in runs), handle.wait()):
            assert (done.status, done.stdout, done.text) == ("ok", TICKED, "1")
    assert "".join(told) == TICKED, "nothing was lost, and nothing was told twice"
    again = sandbox.connect_code(handle.id).wait()
    assert (again.stdout, again.status) == (TICKED, "ok"), "also after its end"
    assert sandbox.connect_code(handle.id, stdout_from=len(TICKED.encode()) - 3).wait().stdout == "é\n"
    for context in (first, second, third):
        sandbox.contexts.delete(context)


def wait_for(sandbox: Sandbox, path: str) -> None:
    """Wait until a file is in the sandbox, and remove the file."""
    sandbox.commands.run(f"until test -e {path}; do sleep 0.05; done; rm {path}")


@pytest.mark.parametrize("streams", [pytest.param(False, id="collected", marks=pytest.mark.slow), pytest.param(True, id="streamed")])
def test_keyboard_interrupt_ends_the_cell_and_keeps_the_kernel(sandbox: Sandbox, streams: bool) -> None:  # noqa: FBT001 - a parameter of the test
    sandbox.run_code("kept = 7")
    watcher = threading.Thread(target=_interrupt_this_process_once, args=(sandbox, "/tmp/begun"))
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code("kept = 8; open('/tmp/begun', 'w').close()\nwhile True: pass", timeout=None, on_stdout=print if streams else None)
    watcher.join()
    assert sandbox.run_code("kept").text == "8"


def _interrupt_this_process_once(sandbox: Sandbox, path: str) -> None:
    """Send SIGINT to this process when a file is in the sandbox."""
    wait_for(sandbox, path)
    os.kill(os.getpid(), signal.SIGINT)


async def test_cancelled_run_ends_the_cell_and_keeps_the_kernel(async_sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()

    async def heard(_: str) -> None:
        begun.set()

    running = asyncio.create_task(async_sandbox.run_code("kept = 9\nprint(1, flush=True)\nwhile True: pass", timeout=None, on_stdout=heard))
    async with asyncio.timeout(60):
        await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await async_sandbox.run_code("kept")).text == "9"


async def test_events_come_in_the_order_of_the_cell(async_sandbox: AsyncSandbox) -> None:
    code = "import sys\nprint('a')\ndisplay(1)\nprint('b', file=sys.stderr)\nprint('c')\n1 / 0"
    told = [event async for event in async_sandbox.stream_code(code)]
    assert isinstance(told[0], ExecutionStarted)
    assert told[1:5] == [Output("stdout", b"a\n"), told[2], Output("stderr", b"b\n"), Output("stdout", b"c\n")]
    assert isinstance(told[2], Result)
    assert isinstance(told[5], ExceptionInfo)
    assert isinstance(told[6], Execution)
    assert (told[6].exit_code, told[6].error, len(told)) == (1, told[5], 7)


async def test_contexts_are_independent_and_an_abandoned_stream_interrupts_its_own(async_sandbox: AsyncSandbox) -> None:
    made = await async_sandbox.contexts.create(cwd="/tmp")
    async for event in async_sandbox.stream_code("x = 1\nprint(1, flush=True)\nwhile True: pass", context=made, timeout=None):
        if isinstance(event, Output):
            break
    assert (await async_sandbox.run_code("'x' in globals()")).text == "False"
    assert (await async_sandbox.run_code("x", context=made)).text == "1"
    await async_sandbox.contexts.restart(made)
    assert (await async_sandbox.run_code("'x' in globals()", context=made.id)).text == "False"
    assert made.id in [each.id for each in await async_sandbox.contexts.list()]
    await async_sandbox.contexts.delete(made)
    assert made.id not in [each.id for each in await async_sandbox.contexts.list()]

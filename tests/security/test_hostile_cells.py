"""Cells that want to break their kernel: the session reports the truth, and the next call works, or says that the kernel died and restarts.

One sandbox for each runtime, all cells in the same default context: what one of them left behind is what the next one meets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from sandlot.model.executions import CellError, Display, Output
from sandlot.model.specs import CellSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.isolations import CONTAINERS_FIRST

LIMITS = replace(SMALL, memory_bytes=1 << 30, disk_bytes=256 << 20, pids=128)
SURVIVED = {"ok", "error"}
DIED = {"died", "oom", "killed"}


@pytest.fixture(scope="module", params=CONTAINERS_FIRST)
async def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=request.param, limits=LIMITS, template="code-interpreter-slim") as sandbox:
        yield sandbox


async def run(inside: GuestSession, code: str, timeout_s: float = 120) -> tuple[str, list[str], str]:
    """A cell; its status, the names of its errors, and what it printed or showed last."""
    call = await inside.link.kernels.execute(CellSpec(code, timeout_s=timeout_s))
    errors, text = [], ""
    async for item in call:
        if isinstance(item, CellError):
            errors.append(item.name)
        elif isinstance(item, Output):
            text = (text + item.data.decode("utf-8", "replace"))[-1000:]
        elif isinstance(item, Display):
            text = str(item.data.get("text/plain", ""))[-1000:]
    return (await call.result()).status, errors, text


async def check(inside: GuestSession) -> None:
    """The next cells do all that a cell does."""
    assert await run(inside, "print('said')") == ("ok", [], "said\n")
    assert await run(inside, "21 * 2") == ("ok", [], "42")
    assert await run(inside, "1 / 0") == ("error", ["ZeroDivisionError"], "")
    status, errors, text = await run(inside, "!echo from a child")
    assert (status, errors, text.splitlines()[-1]) == ("ok", [], "from a child")
    assert await run(inside, "import asyncio\nawait asyncio.sleep(0)\n'awaited'") == ("ok", [], "'awaited'")


SURVIVABLE: tuple[tuple[str, str | None], ...] = (
    ("def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
    ("import sys; sys.setrecursionlimit(20)", None),
    ("import os; os.close(1); os.close(2)", None),
    ("import os; os.closerange(0, 256)", None),
    ("import sys; sys.stdout = None; print(1)", None),
    ("import sys; sys.stdout = sys.stderr = sys.stdin = None", None),
    ("import sys; sys.stdout.close(); print(1)", "ValueError"),
    ("print('\\0\\ud800\\udcff'); '\\0\\ud800'", None),
    ("import os; os.write(1, bytes(range(256)))", None),
    ("raise type('\\ud800', (Exception,), {})('\\0\\ud800')", "?"),
    ("import builtins\nbuiltins.open = builtins.print = builtins.len = builtins.isinstance = builtins.Exception = None", None),
    ("import builtins\nfor name in dir(builtins): setattr(builtins, name, None)", "TypeError"),
    ("del __builtins__", None),
    ("import sys\nfor name in list(sys.modules): sys.modules[name] = None", None),
    ("import sys; sys.modules.clear()", None),
    ("import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass", None),
    ("import atexit, threading, time\natexit.register(time.sleep, 1e6)\nthreading.Thread(target=time.sleep, args=(1e6,)).start()", None),
    ("get_ipython().display_formatter = get_ipython().displayhook = get_ipython().events = None", "?"),
    ("import sys; sys.settrace(None); sys.excepthook = sys.displayhook = sys.unraisablehook = None", None),
    ("import traceback, linecache; traceback.TracebackException = linecache.getline = None; 1 / 0", "ZeroDivisionError"),
    ("class Bad:\n    def __repr__(self): raise SystemExit\nBad()", "SystemExit"),
    ("class Bad(BaseException):\n    def __str__(self): raise Bad\nraise Bad", "Bad"),
    ("import asyncio; asyncio.get_event_loop().close()", None),
    ("%reset -f", None),
    ("import os; os.chdir('/tmp'); os.mkdir('gone'); os.chdir('gone'); os.rmdir('/tmp/gone')", None),
)
"""Cells, and the error that each raises; ``?`` for any or none."""

FATAL = (
    "import os; os._exit(0)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os; os.abort()",
    "import ctypes; ctypes.string_at(0)",
    "import sys; sys.setrecursionlimit(10**9)\nnested = []\nfor _ in range(10**6): nested = [nested]\nrepr(nested)",
    "import os; os.closerange(0, 4096)\nimport time; time.sleep(60)",
    "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, b'\\xff' * 100)\n    except OSError: pass\nimport time; time.sleep(60)",
)


async def test_kernel_works_after_hostile_cells(inside: GuestSession) -> None:
    await check(inside)  # what it needs is imported before a cell breaks imports
    for code, error in SURVIVABLE:
        status, errors, _ = await run(inside, code)
        assert status in SURVIVED, code
        assert error == "?" or errors == ([error] if error else []), code
        assert await run(inside, "print('said')\n21 * 2") in (("ok", [], "42"), ("ok", [], "said\n42")), code
    await check(inside)


async def test_cell_that_ends_its_kernel_is_reported_and_the_next_one_gets_a_new_kernel(inside: GuestSession) -> None:
    for code in FATAL:
        await run(inside, "before = 1")
        status, errors, _ = await run(inside, code)
        assert status in DIED, code
        assert errors[-1] == "KernelDied", code
        assert await run(inside, "before") == ("error", ["NameError"], ""), code
    await check(inside)


async def test_a_loop_without_an_end_is_ended_by_its_timeout(inside: GuestSession) -> None:
    await run(inside, "kept = 'kept'")
    assert (await run(inside, "while True: pass", timeout_s=0.5))[:2] == ("timeout", ["KeyboardInterrupt"])
    assert (await run(inside, "kept"))[2] == "'kept'"
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    status, errors, _ = await run(inside, stubborn, timeout_s=0.5)
    assert status == "timeout"
    assert errors[-1] == "KernelDied"
    await check(inside)


async def test_gigantic_string_is_cut_or_ends_its_kernel_only(inside: GuestSession) -> None:
    status, errors, text = await run(inside, "'x' * 10**9")
    if status == "ok":
        assert "1,000,000,000" in text
    else:
        assert (status in DIED) or errors == ["MemoryError"]
    await check(inside)


async def test_forked_daemons_end_with_their_kernel(inside: GuestSession) -> None:
    daemon = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        with open('/tmp/daemons', 'a') as file: print(os.getpid(), file=file)\n"
        "        time.sleep(1e6)\n"
        "while not os.path.exists('/tmp/daemons') or len(open('/tmp/daemons').readlines()) < 3: time.sleep(0.02)\n"
        "'parent'"
    )
    assert await run(inside, daemon) == ("ok", [], "'parent'")
    await check(inside)
    alive = "for pid in $(cat /tmp/daemons); do [ ! -e /proc/$pid ] || echo $pid; done"
    assert len((await inside.sh(alive)).split()) == 3
    await inside.link.kernels.restart()
    await check(inside)
    while await inside.sh(alive):  # noqa: ASYNC110 - nothing tells of their end
        await asyncio.sleep(0.05)


async def test_threads_without_end_stop_nothing(inside: GuestSession) -> None:
    code = "import threading\ndef spin():\n    while True: print('x' * 100)\nfor _ in range(2): threading.Thread(target=spin, daemon=True).start()"
    assert (await run(inside, code))[0] == "ok"
    assert await run(inside, "21 * 2") == ("ok", [], "42")
    await inside.link.kernels.restart()
    await check(inside)


async def test_broken_ipython_leaves_a_plain_kernel_that_reports_it(inside: GuestSession) -> None:
    site = "/usr/local/lib/python3.11/dist-packages"
    place = (await inside.sh("python3 -c 'import IPython; print(IPython.__path__[0])'")).strip()
    assert place.startswith(site)
    await inside.sh(f"mv {place} /tmp/IPython && mkdir {place} && echo 'raise RuntimeError(\"not me\")' > {place}/__init__.py")
    try:
        await inside.link.kernels.restart()
        status, errors, text = await run(inside, "print('works')")
        assert (status, errors) == ("ok", [])
        assert "IPython does not work here (RuntimeError: not me)" in text
        assert text.endswith("works\n")
        assert await run(inside, "21 * 2") == ("ok", [], "42")
    finally:
        await inside.sh(f"rm -r {place} && mv /tmp/IPython {place}")
    await inside.link.kernels.restart()
    await check(inside)

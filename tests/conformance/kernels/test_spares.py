"""Kernels made ahead: given at once, only where they are what a new one would be, and never in the way of anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model.executions import Display, Output
from sandlot.model.ids import new_context_id
from sandlot.model.specs import MIB, CellSpec, User
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.localservice import EVERY_DAY

PACKAGES = "/usr/local/lib/python3.11/dist-packages"


LIMITS = replace(SMALL, memory_bytes=1024 * MIB, pids=256)


@pytest.fixture(scope="module", params=EVERY_DAY)
async def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox with IPython that the tests of a module share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=request.param, template="code-interpreter-slim", limits=LIMITS) as sandbox:
        yield sandbox


async def new(inside: GuestSession, **env: str) -> str:
    return (await inside.link.kernels.create(new_context_id(), "python", env=env)).kernel


async def remove(inside: GuestSession, context: str) -> None:
    """Remove a context and wait until its kernel is gone, which would look like a spare while it ends."""
    pid = await pid_of(inside, context)
    await inside.link.kernels.remove(context)
    while pid and (await inside.sh(f"test ! -d /proc/{pid} || echo there")).strip():  # noqa: ASYNC110 - only polling shows that a process ended
        await asyncio.sleep(0.02)


async def pid_of(inside: GuestSession, context: str) -> int:
    return next(info.pid or 0 for info in await inside.link.kernels.list() if info.kernel == context)


async def value(inside: GuestSession, context: str, code: str) -> object:
    call = await inside.link.kernels.execute(CellSpec(code, context=context))
    shown = [item async for item in call if isinstance(item, Display)]
    assert (await call.result()).status == "ok"
    return shown[-1].data["text/plain"] if shown else None


async def unused(inside: GuestSession) -> list[int]:
    """The pids that no context has of the fork server and of what it has forked, oldest first. Forks have its command line."""
    found = await inside.sh("ps -eo pid,ppid,sid,args | awk '/[k]ernel.py --fork-server/ && $2 == 1 && $3 == $1 {print $1}'")
    known = {info.pid for info in await inside.link.kernels.list()}
    return [pid for pid in sorted(map(int, found.split())) if pid not in known]


async def fork_server(inside: GuestSession) -> int | None:
    return next(iter(await unused(inside)), None)


async def spare(inside: GuestSession) -> int:
    """Wait until a kernel is forked for the next context; its pid."""
    while len(pids := await unused(inside)) != 2:  # noqa: ASYNC110 - only polling shows what the guest has forked
        await asyncio.sleep(0.02)
    return pids[1]


async def test_new_context_gets_the_spare_kernel(inside: GuestSession) -> None:
    assert await value(inside, "default", "1 + 1") == "2"
    for _ in range(2):
        waiting = await spare(inside)
        context = await new(inside, WHICH="one")
        code = "import os, sys; os.environ['WHICH'], os.getppid(), os.getsid(0) == os.getpid(), 'pandas' in sys.modules"
        assert await value(inside, context, code) == "('one', 1, True, True)"
        assert await pid_of(inside, context) == waiting
        await remove(inside, context)


async def test_kernels_of_one_fork_server_draw_different_random_numbers(inside: GuestSession) -> None:
    contexts = [await new(inside) for _ in range(3)]
    code = "import random, numpy; random.random(), numpy.random.random(), __import__('os').urandom(8)"
    assert len({await value(inside, context, code) for context in contexts}) == 3
    for context in contexts:
        await remove(inside, context)


async def test_environment_needed_before_imports_starts_a_new_kernel(inside: GuestSession) -> None:
    waiting = await spare(inside)
    context = await new(inside, OMP_NUM_THREADS="1", PYTHONHASHSEED="7")
    assert await value(inside, context, "import os, sys; os.environ['OMP_NUM_THREADS'], sys.flags.hash_randomization") == "('1', 1)"
    assert await pid_of(inside, context) != waiting
    assert await spare(inside) == waiting
    await remove(inside, context)


@pytest.mark.parametrize("isolation", EVERY_DAY)
async def test_new_context_imports_packages_as_they_are_on_the_disk(isolation: str, tmp_path: Path) -> None:
    # In a sandbox of its own, because it changes installed packages.
    async with open_sandbox(tmp_path, isolation=isolation, template="code-interpreter-slim", limits=LIMITS) as inside:
        await _changed_packages_are_imported(inside)


async def _changed_packages_are_imported(inside: GuestSession) -> None:
    waiting, server = await spare(inside), await fork_server(inside)
    await inside.sh(f"mkdir {PACKAGES}/unrelated", User.ROOT)
    context = await new(inside)
    assert await value(inside, context, "1") == "1"
    assert (await pid_of(inside, context), await fork_server(inside)) == (waiting, server), "nothing that it has imported has changed"
    await remove(inside, context)
    change = "mv numpy/version.py numpy/version.old; (cat numpy/version.old; echo \"version = __version__ = 'another'\") > numpy/version.py"
    await inside.sh(f"cd {PACKAGES}; {change}; touch numpy; rmdir unrelated", User.ROOT)
    context = await new(inside)
    assert await value(inside, context, "import numpy.version; numpy.version.version") == "'another'"
    assert await fork_server(inside) != server
    await inside.sh(f"cd {PACKAGES}; mv numpy/version.old numpy/version.py; rmdir unrelated 2>/dev/null; touch .", User.ROOT)
    await remove(inside, context)


async def test_without_the_fork_server_there_are_kernels_all_the_same(inside: GuestSession) -> None:
    context = await new(inside)
    assert await value(inside, context, "x = 7; x") == "7"
    await spare(inside)
    await inside.sh(f"kill -9 {await fork_server(inside)}")
    assert await value(inside, context, "x") == "7"
    other = await new(inside)
    assert await value(inside, other, "1") == "1"
    for each in (context, other):
        await remove(inside, each)


async def test_a_fork_server_that_does_not_answer_is_waited_for_by_one_and_by_no_other(inside: GuestSession) -> None:
    await spare(inside)
    stopped = await fork_server(inside)
    state = ""
    while state != "T":  # the guest stops a fork server that still imports while a command runs, and continues it afterwards
        await inside.sh(f"kill -STOP {stopped}")
        stat = b"".join([piece async for piece in await inside.link.files.read(f"/proc/{stopped}/stat")])  # not by a command
        state = stat.rpartition(b")")[2].split()[0].decode()
    for _ in range(3):  # who has the one that waited already, who asks in vain, and who comes after that
        context = await new(inside)
        assert await value(inside, context, "1") == "1"
        await remove(inside, context)
    assert await fork_server(inside) not in {None, stopped}


async def test_kernel_that_ends_before_its_first_message_is_replaced_by_a_plain_one(inside: GuestSession) -> None:
    folder = "/tmp/dying"
    site = f"import os\nfd = os.open('{folder}/starts', os.O_CREAT | os.O_APPEND | os.O_RDWR)\nos.write(fd, b'x')\n"
    site += "if os.fstat(fd).st_size == 1:\n    os._exit(1)\nos.close(fd)\n"
    await inside.sh(f'mkdir {folder}; echo "{site}" > {folder}/sitecustomize.py')
    context = await new(inside, PYTHONPATH=folder)
    call = await inside.link.kernels.execute(CellSpec("get_ipython()", context=context))
    output = b"".join([item.data async for item in call if isinstance(item, Output)]).decode()
    assert (await call.result()).status == "error", "a plain kernel has no IPython"
    assert "did not start" in output
    assert "plain" in output
    call = await inside.link.kernels.execute(CellSpec("import os; os._exit(1)", context=context))
    assert (await call.result()).status == "died"
    assert await value(inside, context, "get_ipython() is None") == "False", "the plain one is used for one kernel"
    await remove(inside, context)

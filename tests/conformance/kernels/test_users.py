"""Kernels of a sandbox whose code runs as another user than ``user``: root, and uids without an entry in /etc/passwd."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model.executions import Display, Output
from sandlot.model.specs import MIB, CellSpec, User
from sandlot.protocol.schema import STDERR
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.localservice import EVERY_DAY

LIMITS = replace(SMALL, memory_bytes=1024 * MIB, pids=256)
UIDS = {"root": 0, "4321": 4321, "4321:4322": 4321}


@pytest.fixture(params=EVERY_DAY)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=UIDS)
def user(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def inside(isolation: str, user: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox with IPython."""
    folder: Path = tmp_path_factory.mktemp("data")
    async with open_sandbox(folder, isolation=isolation, template="code-interpreter-slim", limits=LIMITS, user=User(user)) as sandbox:
        yield sandbox


async def result(inside: GuestSession, code: str, context: str = "default") -> str:
    """Run a cell that must succeed and write nothing to standard error. Return its result."""
    call = await inside.link.kernels.execute(CellSpec(code, context=context))
    items = [item async for item in call]
    assert (await call.result()).status == "ok", items
    assert not [item for item in items if isinstance(item, Output) and item.channel == STDERR]
    return str(next(item.data["text/plain"] for item in items if isinstance(item, Display)))


async def test_kernels_run_as_the_user_and_end_with_their_processes(inside: GuestSession, user: str) -> None:
    await inside.link.warm(lean=False)
    uid = UIDS[user]
    assert await result(inside, "import os, subprocess; os.getuid(), os.getcwd()") == f"({uid}, '/workspace')"
    assert await result(inside, "open('/tmp/mine', 'w').write('1')") == "1"
    pid = await result(inside, "subprocess.Popen(['sleep', '1000'], start_new_session=True).pid")
    assert (await inside.sh(f"stat -c %u /proc/{pid} /tmp/mine", user=User.ROOT)).split() == [str(uid)] * 2
    await inside.link.kernels.restart("default")
    assert await result(inside, f"import os; os.path.exists('/proc/{pid}')") == "False"

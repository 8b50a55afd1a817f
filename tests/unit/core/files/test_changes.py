"""What a run changed, asked of a sandbox; and a guest that forges the report."""

from __future__ import annotations

import signal

import pytest

from sandlot.core.files import changes, files
from sandlot.model.errors import ConflictError, InvalidRequestError
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.protocol import values
from tests.support.service import Bench, pieces
from tests.support.serving import at, folder
from tests.support.until import until

__all__ = ["at", "folder"]


@pytest.mark.real_guest
async def test_a_mark_that_is_lost_is_said_and_one_that_nobody_asks_ends(at: Bench) -> None:
    sandbox = await at.sandbox()
    marked = await changes.mark(sandbox, ["/workspace"], User.USER)
    async with sandbox.connection() as link:
        (program,) = await link.processes()
        await link.signal(program.process, 9)
    with pytest.raises(ConflictError):
        await marked.changed()
    (await changes.mark(sandbox, ["/workspace"], User.USER)).close()

    async def none() -> bool:
        async with sandbox.connection() as link:
            return list(await link.processes()) == []

    await until(none)


@pytest.mark.parametrize("folders", [[], ["relative"], ["/x"] * 17, ["/a\0b"]])
async def test_folders_that_are_none_are_refused(at: Bench, folders: list[str]) -> None:
    with pytest.raises(InvalidRequestError):
        await changes.mark(await at.sandbox(), folders, User.USER)


@pytest.mark.parametrize(
    "told",
    [b"bytes", {}, {"files": 1}, {"files": [1]}, {"files": [{}]}, {"files": [{"path": "/a", "created": 1, "size": 1, "modified_ns": 1}]}]
    + [{"files": [{"path": "/a", "created": True, "size": size, "modified_ns": 1}]} for size in (-1, 1 << 64, True, "1")],
)
def test_a_report_that_a_guest_forged_is_none(told: object) -> None:
    with pytest.raises(ConflictError):
        changes.parsed(told)


@pytest.mark.real_guest
async def test_a_report_without_end_that_a_guest_forged_is_cut(at: Bench) -> None:
    sandbox = await at.sandbox()
    file = {"path": "/workspace/a", "created": True, "size": 1, "modified_ns": 1}
    message = values.encode_message({"files": [file] * 500})
    await files.write(sandbox, "/tmp/forged", pieces(message), user=User.USER)
    marked = await changes.mark(sandbox, ["/workspace"], User.USER)
    async with sandbox.connection() as link:
        (program,) = await link.processes()
        await link.signal(program.process, int(signal.SIGSTOP))  # before it could answer
    forging = f"while :; do cat /tmp/forged; done > /proc/{program.pid}/fd/2"
    _, _ = await at.core.processes.launch(sandbox, ProcessSpec(argv=shell_argv(forging), user=User.ROOT, timeout_s=None))
    with pytest.raises(ConflictError, match="cannot be read"):
        await marked.changed()

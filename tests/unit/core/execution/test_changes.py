"""Reports of changed files: lost trackers, invalid requests and forged reports. The comparison itself is tested in `tests/service`."""

from __future__ import annotations

import signal

import pytest

from sandlot.core.execution import changes
from sandlot.core.files import files
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, InvalidRequestError
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.protocol import values
from tests.support.service import Bench, pieces
from tests.support.serving import at, folder
from tests.support.until import until

__all__ = ["at", "folder"]


@pytest.mark.real_guest
async def test_lost_tracker_raises_and_closed_tracker_ends_its_program(at: Bench) -> None:
    sandbox = await at.sandbox()
    tracker = await changes.track(sandbox, ["/workspace"], User.USER)
    async with sandbox.connection() as link:
        (program,) = await link.processes.list()
        await link.processes.signal(program.process, 9)
    with pytest.raises(ConflictError):
        await tracker.changed()
    (await changes.track(sandbox, ["/workspace"], User.USER)).close()

    async def none() -> bool:
        async with sandbox.connection() as link:
            return list(await link.processes.list()) == []

    await until(none)


@pytest.mark.parametrize("folders", [[], [""], ["/x"] * 17, ["/a\0b"]])
async def test_invalid_folders_are_refused(at: Bench, folders: list[str]) -> None:
    with pytest.raises(InvalidRequestError):
        await changes.track(await at.sandbox(), folders, User.USER)


@pytest.mark.parametrize(
    "message",
    [b"bytes", {}, {"files": 1}, {"files": [1]}, {"files": [{}]}, {"files": [{"path": "/a", "created": 1, "size": 1, "modified_ns": 1}]}]
    + [{"files": [{"path": "/a", "created": True, "size": size, "modified_ns": 1}]} for size in (-1, 1 << 64, True, "1")],
)
def test_forged_message_is_refused(message: object) -> None:
    with pytest.raises(ConflictError):
        changes.parse_report(message)


@pytest.mark.real_guest
async def test_forged_report_without_end_is_cut_off(at: Bench) -> None:
    sandbox = await at.sandbox()
    file = {"path": "/workspace/a", "created": True, "size": 1, "modified_ns": 1}
    forged = values.encode_message({"files": [file] * 500})
    await files.write(sandbox, "/tmp/forged", pieces(forged), user=User.USER)
    tracker = await changes.track(sandbox, ["/workspace"], User.USER)
    async with sandbox.connection() as link:
        (program,) = await link.processes.list()
        await link.processes.signal(program.process, int(signal.SIGSTOP))  # before it can report
    forging = f"while :; do cat /tmp/forged; done > /proc/{program.pid}/fd/2"
    _ = (await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(argv=shell_argv(forging), user=User.ROOT, timeout_s=None))).process
    with pytest.raises(ConflictError, match="invalid report"):
        await tracker.changed()

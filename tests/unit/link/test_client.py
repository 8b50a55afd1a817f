"""All calls of a link: requests match the schema, and results are those of the guest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sandlot.link.client import Link
from sandlot.link.types import KernelInfo
from sandlot.model.errors import TimeoutExceededError
from sandlot.model.executions import ProcessInfo
from sandlot.model.files import Entry, Listing
from sandlot.model.ids import ProcessId
from sandlot.model.specs import CellSpec, ProcessSpec, User
from sandlot.protocol import schema
from tests.unit.link.peer import ENTRY, PeerCall, linked

ID = ProcessId("ab" * 16)
PROCESS = {
    "process": ID,
    "pid": 9,
    "argv": ["sleep", "1"],
    "running": True,
    "reason": None,
    "exit_code": None,
    "signal": None,
    "duration_s": 0.5,
    "pty": False,
    "stdin": True,
    "stdin_bytes": 0,
    "stdout_bytes": 5,
    "stderr_bytes": 6,
}
ENDED = {"process": ID, "pid": 9, "reason": "exited", "exit_code": 0, "signal": None, "duration_s": 1.0}
CELL = {"status": "ok", "execution_count": 1, "duration_s": 1.0}
PARSED = Entry("f", "/f", "file", 3, 0o644, 1000, 1000, 1, None)

#: call -> (how to make it, what the guest answers, what comes of it, the arguments that it must have sent)
KERNEL = {"kernel": "k", "language": "bash", "cwd": "/tmp", "state": "idle", "execution_count": 3, "pid": None}

CASES: dict[str, tuple[Callable[[Link], Awaitable[Any]], dict[str, Any], Any, dict[str, Any]]] = {
    "guest.network": (lambda link: link.set_local_domains(("corp.internal",)), {}, None, {"local_domains": ["corp.internal"]}),
    "guest.deadline": (lambda link: link.set_deadline(2.5), {}, None, {"deadline_s": 2.5}),
    "guest.limit": (lambda link: link.set_limits(pids=70), {}, None, {"pids": 70, "memory_bytes": None, "processors": None}),
    "guest.checkpoint": (lambda link: link.checkpoint(armed=True), {}, None, {"armed": True}),
    "guest.warm": (lambda link: link.warm(lean=True), {}, None, {"lean": True}),
    "guest.shutdown": (lambda link: link.shutdown(), {}, None, {}),
    "process.signal": (lambda link: link.processes.signal(ID, 9), {"running": True}, True, {"process": ID, "signal": 9}),
    "process.list": (
        lambda link: link.processes.list(),
        {"processes": [PROCESS]},
        (ProcessInfo(ID, 9, ("sleep", "1"), True, None, None, None, 0.5, False, True, 0, 5, 6),),
        {},
    ),
    "process.get": (
        lambda link: link.processes.get(ID),
        PROCESS,
        ProcessInfo(ID, 9, ("sleep", "1"), True, None, None, None, 0.5, False, True, 0, 5, 6),
        {"process": ID},
    ),
    "process.resize": (lambda link: link.processes.resize(ID, 30, 100), {"running": True}, True, {"process": ID, "rows": 30, "cols": 100}),
    "process.forget": (lambda link: link.processes.forget(ID), {}, None, {"process": ID}),
    "kernel.interrupt": (lambda link: link.kernels.interrupt("k", ID), {"running": False}, False, {"kernel": "k", "execution": ID}),
    "kernel.create": (
        lambda link: link.kernels.create("k", "bash", cwd="/tmp", env={"A": "b"}),
        KERNEL,
        KernelInfo("k", "bash", "/tmp", "idle", 3, None),
        {"kernel": "k", "language": "bash", "cwd": "/tmp", "env": {"A": "b"}},
    ),
    "kernel.list": (lambda link: link.kernels.list(), {"kernels": [KERNEL]}, (KernelInfo("k", "bash", "/tmp", "idle", 3, None),), {}),
    "kernel.remove": (lambda link: link.kernels.remove("k"), {}, None, {"kernel": "k"}),
    "kernel.restart": (lambda link: link.kernels.restart(), {}, None, {"kernel": "default"}),
    "file.stat": (
        lambda link: link.files.stat("/f", follow=False, attributes="user."),
        {**ENTRY, "attributes": {"user.a": "b"}},
        replace(PARSED, attributes={"user.a": "b"}),
        {"path": "/f", "user": "user", "follow": False, "attributes": "user."},
    ),
    "file.resolve": (lambda link: link.files.resolve("/f", user=User.ROOT), ENTRY, PARSED, {"path": "/f", "user": "root"}),
    "file.home": (lambda link: link.files.find_home(User("alice")), {"path": "/home/alice"}, "/home/alice", {"user": "alice"}),
    "file.list": (
        lambda link: link.files.list("/", limit=5000, offset=7),
        {"entries": [ENTRY], "more": True},
        Listing((PARSED,), more=True),
        {"path": "/", "user": "user", "limit": 1000, "offset": 7, "attributes": None},
    ),
    "file.mkdir": (
        lambda link: link.files.mkdir("/d", parents=False, mode=0o700, user=User.ROOT, owner=User.USER),
        ENTRY,
        PARSED,
        {"path": "/d", "user": "root", "parents": False, "mode": 0o700, "owner": "user"},
    ),
    "file.move": (
        lambda link: link.files.move("/a", "/b", user=User.ROOT, overwrite=True),
        ENTRY,
        PARSED,
        {"path": "/a", "to": "/b", "user": "root", "overwrite": True},
    ),
    "file.remove": (lambda link: link.files.remove("/a", recursive=True), {"removed": 12}, 12, {"path": "/a", "user": "user", "recursive": True}),
}
TESTED_ELSEWHERE = {
    "guest.wake",
    "guest.info",
    "process.start",
    "process.attach",
    "process.wait",
    "process.input",
    "kernel.execute",
    "kernel.attach",
    "file.read",
    "file.write",
    "port.connect",
}


def test_every_call_is_tested() -> None:
    assert CASES.keys() | TESTED_ELSEWHERE == schema.CALLS.keys()


@pytest.mark.parametrize("name", CASES)
async def test_call_sends_its_arguments_and_returns_the_result(name: str) -> None:
    make, answer, expected, args = CASES[name]

    async def serve(call: PeerCall) -> None:
        call.result(**answer)

    async with linked({name: serve}) as (link, peer):
        assert await make(link) == expected
        (call,) = peer.calls
        assert call.name == name
        assert call.args == args


async def test_all_requests_match_the_schema() -> None:
    async def anything(call: PeerCall) -> None:
        call.reset("unsupported", "no")

    async with linked(dict.fromkeys(schema.CALLS, anything), asleep=True) as (link, peer):
        await _drain(link.wake(identity="i", hostname="h", env={}, pids=1, deadline_s=None))
        link._session.transport.connection.asleep = False  # noqa: SLF001 - the wake above was refused, as everything is here
        for make, *_ in CASES.values():
            await _drain(make(link))
        for made in (
            link.info(),
            link.processes.wait(ID),
            link.processes.start(ProcessSpec(("a",))),
            link.processes.attach(ID),
            link.processes.open_input(ID),
            link.files.read("/f"),
            link.files.write("/f", b"x"),
            link.connect_port(8000),
        ):
            await _drain(made)
        for cell in (await link.kernels.execute(CellSpec("1")), await link.kernels.attach(ID)):
            await _drain(cell.result())
        assert {call.name for call in peer.calls} == schema.CALLS.keys()
        for call in peer.calls:
            assert schema.validate_fields(schema.CALLS[call.name]["args"], call.args) == "", call.name


async def _drain(made: Awaitable[Any]) -> None:
    with pytest.raises(Exception, match="no"):
        await made


async def test_warm_has_a_timeout() -> None:
    async def silent(_call: PeerCall) -> None:
        """Respond too late."""

    async with linked({"guest.warm": silent}) as (link, _):
        with pytest.raises(TimeoutExceededError, match=r"guest\.warm within 0\.05 s"):
            await link.warm(0.05)

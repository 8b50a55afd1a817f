"""Order of a wake, with the real objects of the guest: each step that matters is recorded when it happens."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot.guest import identity as identity_module
from sandlot.guest import lifecycle as module
from sandlot.guest.boot_id import BootId
from sandlot.guest.connection import LinkConnection
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.kernels.manager import KernelManager
from sandlot.guest.kernels.oom import OomWatcher
from sandlot.guest.kernels.prefork import Prefork
from sandlot.guest.kernels.process_group import ProcessGroups
from sandlot.guest.kernels.starter import KernelStarter
from sandlot.guest.lifecycle import GuestLifecycle
from sandlot.guest.loop import Loop
from sandlot.guest.net import network as network_module
from sandlot.guest.net.network import GuestNetwork
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.affinity import ShownProcessors
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.manager import ProcessManager
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.spawn import Spawner
from sandlot.guest.rpc import Call, RpcServer
from sandlot.guest.streams import StreamRouter
from sandlot.guest.wake_scripts import WakeScripts
from sandlot.protocol.connection import HOST, Connection
from tests.support.guest import RecordingCall


class Machine:
    """A guest without processes.

    Attributes:
        steps: Steps of the last wake, in order.
        at_kernels: State of the guest when its kernels were woken.
        workspace: Workspace of the next wake.
    """

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.at_kernels: dict[str, Any] = {}
        self.workspace = workspace
        self._fds = (*os.pipe(), os.open(os.devnull, os.O_RDWR))
        loop, children = Loop(), ChildTable()
        self.link, self.identity = LinkConnection(loop, *self._fds[:2]), SandboxIdentity(loop)
        router, pid_limit = StreamRouter(self.link), PidLimit(loop, children)
        spawner, rpc = Spawner(self.identity, children, pid_limit, self._fds[2]), RpcServer(router, self.link.is_asleep)
        oom, groups = OomWatcher(loop, children), ProcessGroups()
        prefork = Prefork(loop, spawner, children, self.identity, oom, groups)
        starter = KernelStarter(loop, spawner, children, self.identity, prefork, groups)
        kernels = KernelManager(loop, self.identity, starter, prefork, oom, rpc)
        processes = ProcessManager(loop, spawner, rpc, prefork.yield_cpu, prefork.resume)
        for owner, method, step in (
            (Loop, "release_clock", "clock"),
            (RpcServer, "forget_all_results", "forget calls"),
            (ProcessManager, "forget_finished", "forget processes"),
            (KernelManager, "on_copied", "forget cells"),
            (PidLimit, "set", "limits"),
            (ShownProcessors, "show", "processors"),
            (GuestNetwork, "suspend", "network off"),
            (GuestNetwork, "resume", "network on"),
            (WakeScripts, "start", "scripts"),
            (BootId, "replace", "boot id"),
        ):
            monkeypatch.setattr(owner, method, lambda _self, *_args, step=step: self.steps.append(step))
        monkeypatch.setattr(KernelManager, "on_wake", self._on_kernels_woken)
        monkeypatch.setattr(identity_module, "_add_kernel_entropy", lambda _entropy: self.steps.append("entropy"))
        monkeypatch.setattr(module, "_set_hostname", lambda _name: None)
        monkeypatch.setattr(module, "_make_tmp", lambda: None)
        monkeypatch.setattr(network_module, "write_resolv_conf", lambda: None)  # whatever a defect does, the host keeps its file
        self.lifecycle = GuestLifecycle(
            loop,
            self.link,
            router,
            rpc,
            self.identity,
            pid_limit=pid_limit,
            network=GuestNetwork(loop, router, has_card=False),
            processes=processes,
            kernels=kernels,
            oom=oom,
            wake_scripts=WakeScripts(loop, spawner, self.identity, rpc),
        )

    def _on_kernels_woken(self, _memory_bytes: int | None, env: dict[str, str], _python: str | None) -> None:
        self.steps.append("kernels")
        connection = self.link.protocol
        self.at_kernels = {
            "user": env["USER"],
            "life": env["LIFE"],
            "asleep": connection.asleep,
            "armed": connection.armed,
            "entropy": self.identity._seed,  # noqa: SLF001 - what kernels get theirs from
        }

    def wake(self, sandbox_id: str, life: str = "1", user: str = "user") -> list[str]:
        """Wake the guest; return the steps of this wake."""
        self.steps.clear()
        self.link.protocol.asleep = self.link.protocol.armed = True
        args = {
            "identity": sandbox_id,
            "hostname": "inside",
            "env": {"LIFE": life, "PATH": "/usr/bin:/bin"},
            "entropy": life.encode() * 64,
            "pids": 100,
            "memory_bytes": None,
            "processors": 1,
            "deadline_s": None,
            "workspace": str(self.workspace),
            "user": user,
            "local_domains": None,
        }
        self.lifecycle.wake(cast("Call", RecordingCall(args)))
        return list(self.steps)

    def checkpoint(self, *, armed: bool) -> list[str]:
        """Begin or end a checkpoint; return the steps."""
        self.steps.clear()
        self.lifecycle.checkpoint(cast("Call", RecordingCall({"armed": armed})))
        return list(self.steps)

    def quiesce(self) -> list[str]:
        """Let the host quiesce the guest; return the steps."""
        self.steps.clear()
        host = Connection(HOST)
        host.hello(bytes(16))
        self._receive(host)
        host.receive(self.link.protocol.next_batch())
        host.quiesce()
        self._receive(host)
        self.lifecycle.quiesced()
        return list(self.steps)

    def _receive(self, host: Connection) -> None:
        while (frame := host.next_frame()) is not None:
            self.link.protocol.receive(frame)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.close()


def test_wake_of_the_same_sandbox_keeps_what_it_remembers(machine: Machine) -> None:
    machine.wake("sb-one")

    assert machine.wake("sb-one") == ["clock", "entropy", "limits", "processors", "network on", "kernels", "scripts"]


def test_copy_is_reset_before_its_environment_is_set(machine: Machine) -> None:
    machine.wake("sb-one")

    steps = machine.wake("sb-copy")

    assert steps == [
        "clock",
        "forget calls",
        "forget processes",
        "forget cells",
        "entropy",
        "boot id",
        "limits",
        "processors",
        "network on",
        "kernels",
        "scripts",
    ]


def test_first_wake_runs_no_wake_scripts(machine: Machine) -> None:
    assert machine.wake("sb-one") == ["clock", "entropy", "limits", "processors", "network on", "kernels"]


def test_kernels_are_woken_after_everything_that_they_depend_on(machine: Machine) -> None:
    for life in ("1", "2"):
        steps = machine.wake("sb-one", life)

        assert max(steps.index("limits"), steps.index("processors")) < steps.index("kernels")
        user = lookup_account("user").name
        assert machine.at_kernels == {"user": user, "life": life, "asleep": False, "armed": False, "entropy": life.encode() * 64}


@pytest.mark.parametrize("user, uid", [("root", 0), ("4321:8", 4321), ("no-such-user", 1000)])
def test_code_and_the_workspace_belong_to_the_user_of_the_wake(machine: Machine, tmp_path: Path, user: str, uid: int) -> None:
    machine.wake("sb-one")
    assert machine.at_kernels["user"] == lookup_account("user").name
    machine.workspace = tmp_path / "above" / "new"

    machine.wake("sb-one", "2", user)

    assert machine.at_kernels["user"] == machine.identity.account().name
    assert (machine.identity.account().uid, machine.workspace.stat().st_uid, machine.workspace.parent.stat().st_uid) == (uid, uid, uid)


def test_network_is_off_during_a_checkpoint(machine: Machine) -> None:
    machine.wake("sb-one")

    assert machine.checkpoint(armed=True) == ["network off"]
    assert machine.checkpoint(armed=False) == ["clock", "network on"]


def test_network_is_off_in_a_quiesced_guest_until_its_wake(machine: Machine) -> None:
    machine.wake("sb-one")

    assert machine.quiesce() == ["network off"]
    assert "network on" in machine.wake("sb-one")

"""Wiring of the kernel manager until the guest passes objects instead of itself."""

from __future__ import annotations

from sandlot.guest.kernels.manager import KernelManager
from sandlot.guest.kernels.oom import OomWatcher
from sandlot.guest.kernels.prefork import Prefork
from sandlot.guest.kernels.process_group import ProcessGroups
from sandlot.guest.kernels.starter import KernelStarter
from sandlot.guest.spawn import environment, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Identity:
    def __init__(self, guest: Any) -> None:
        self._guest = guest

    @property
    def env(self) -> Any:
        return self._guest.env

    @property
    def workspace(self) -> str:
        return str(self._guest.workspace)

    def environment(self, who: Any, *layers: dict[str, str]) -> dict[str, str]:
        return environment(who, self.env, *layers)

    def fresh_entropy(self) -> bytes:
        return bytes(self._guest.waking.draw())


class _Spawner:
    def __init__(self, guest: Any) -> None:
        self._guest = guest
        self.dev_null = guest.dev_null

    def spawn(self, argv: Any, who: Any, fds: Any, *, env: Any = None, cwd: str = "/", keep: Any = ()) -> int:
        pid = start(argv, environment(who, self._guest.env, env or {}), cwd, who, fds, keep)
        self._guest.pids.watch()
        return pid


class _Children:
    def __init__(self, guest: Any) -> None:
        self._guest = guest
        self._children: dict[int, Any] = {}

    def add(self, pid: int, child: Any) -> None:
        self._children[pid] = child

    def reap(self, pid: int, status: int, usage: Any) -> bool:
        child = self._children.pop(pid, None)
        if child is not None:
            child.on_exit(status, usage)
        return child is not None

    def report_kill(self, pid: int, reason: str) -> None:
        child = self._children.get(pid)
        if child is not None:
            child.on_killed(reason)
        self._guest.processes.out_of_memory(pid)

    def __contains__(self, pid: object) -> bool:
        guest = self._guest
        return pid in self._children or pid in guest.processes._by_pid or pid in guest.local.by_pid or pid == guest.hooks.pid


class _Memory:
    def __init__(self, oom: OomWatcher) -> None:
        self.change = oom.change_limit


class _Spares:
    def __init__(self, prefork: Prefork) -> None:
        self.make_way = prefork.yield_cpu
        self.commands_ended = prefork.resume


class _Usage:
    def __init__(self, peak_bytes: int) -> None:
        self.ru_maxrss = peak_bytes // 1024


class Kernels:
    def __init__(self, guest: Any) -> None:
        identity, spawner, self._children = _Identity(guest), _Spawner(guest), _Children(guest)
        groups, oom = ProcessGroups(), OomWatcher(guest.loop, self._children)
        prefork = Prefork(guest.loop, spawner, self._children, identity, oom, groups)
        starter = KernelStarter(guest.loop, spawner, self._children, identity, prefork, groups)
        manager = self.manager = KernelManager(guest.loop, identity, starter, prefork, oom, guest.calls)
        self.woken, self.part = manager.on_wake, manager.on_copied
        self.memory, self.spares = _Memory(oom), _Spares(prefork)
        guest.calls.handlers.update(
            {
                "kernel.create": manager.create,
                "kernel.list": manager.list_all,
                "kernel.remove": manager.remove,
                "kernel.execute": manager.execute,
                "kernel.attach": manager.attach,
                "kernel.interrupt": manager.interrupt,
                "kernel.restart": manager.restart,
                "guest.warm": manager.warm,
            }
        )

    def reaped(self, pid: int, status: int, peak_bytes: int) -> bool:
        return self._children.reap(pid, status, _Usage(peak_bytes))

"""Objects of the guest that kernels use, in one bundle."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.service import Kernels
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.children import ChildTable
    from sandlot.guest.process.manager import ProcessManager
    from sandlot.guest.process.spawn import Spawner
    from sandlot.guest.rpc import RpcServer


class KernelServices:
    """Objects of the guest that kernels use.

    Args:
        loop: The guest's loop.
        identity: Environment, workspace and entropy.
        spawner: Starts programs.
        children: Owners of child processes.
        rpc: Refuses the ids of cells that are no longer kept.

    Attributes:
        processes: Processes of the host; set when the guest is complete.
    """

    __slots__ = ("children", "identity", "loop", "processes", "rpc", "spawner")

    processes: ProcessManager

    def __init__(self, loop: Loop, identity: SandboxIdentity, spawner: Spawner, children: ChildTable, rpc: RpcServer) -> None:
        self.loop = loop
        self.identity = identity
        self.spawner = spawner
        self.children = children
        self.rpc = rpc


class KernelChild:
    """Owner of a kernel's process in the table of children.

    Args:
        kernels: All contexts.
        pid: The process.
    """

    __slots__ = ("_kernels", "_pid")

    def __init__(self, kernels: Kernels, pid: int) -> None:
        self._kernels = kernels
        self._pid = pid

    def on_exit(self, status: int, usage: struct_rusage) -> None:
        """Report the end."""
        self._kernels.reaped(self._pid, status, usage.ru_maxrss * 1024)

    def on_killed(self, reason: str) -> None:
        """Report an end for lack of memory; the process limit is no reason of a kernel's end."""
        if reason == "oom":
            self._kernels.out_of_memory(self._pid)

"""Identity of the sandbox: its id, environment, workspace and randomness. Each wake sets all of them again.

Invariants:
- Processes that start after a wake have the environment of that wake only.
- Each wake brings new entropy of the host, which is mixed into the random number generator of the operating system, because
  all copies of a checkpoint have the same state. :meth:`SandboxIdentity.fresh_entropy` never returns the same bytes twice, in
  this sandbox or in a copy.
"""

from __future__ import annotations

import os

from sandlot.guest.loop import log
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol.fast_imports import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.accounts import Account


class SandboxIdentity:
    """Identity of the sandbox that the guest runs as.

    Attributes:
        sandbox_id: Id of the sandbox; empty before the first wake.
        env: Environment of the sandbox, added to that of an account.
        workspace: Default working directory of processes.
        began_s: Time of the loop at the start of the sandbox: the start of the guest, or the first wake of a copy.
    """

    __slots__ = ("_drawn", "_loop", "_seed", "began_s", "env", "sandbox_id", "workspace")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._seed = b""
        self._drawn = 0
        self.sandbox_id = ""
        self.env: dict[str, str] = {}
        self.workspace = "/"
        self.began_s = loop.time()

    def become(self, sandbox_id: str, env: dict[str, str], workspace: str, entropy: bytes) -> None:
        """Set the identity at a wake.

        Args:
            sandbox_id: Id of the sandbox. If the id changes, the sandbox is a copy, and its uptime begins now.
            env: Environment of the sandbox.
            workspace: Working directory, created if missing. If that fails, the home directory of ``user`` is used instead.
            entropy: Random bytes of the host, which no other sandbox has received.
        """
        if self.sandbox_id and self.sandbox_id != sandbox_id:
            self.began_s = self._loop.time()
        self.sandbox_id = sandbox_id
        self.env = env
        self._seed = entropy
        _add_kernel_entropy(entropy)
        self.workspace = _create_workspace(workspace)

    def environment(self, account: Account, *layers: dict[str, str]) -> dict[str, str]:
        """Return the environment of a process: that of the account, then that of the sandbox, then each of the layers."""
        return build_environment(account, self.env, *layers)

    def fresh_entropy(self) -> bytes:
        """Return 64 random bytes that are returned only once, in this sandbox and all copies."""
        self._drawn += 1
        return blake2b(b"%b%d:%b" % (self._seed, self._drawn, os.urandom(32))).digest()


def _add_kernel_entropy(entropy: bytes) -> None:
    """Mix random bytes into the generator of the operating system (random(4)), so that copies of a snapshot get different numbers."""
    try:
        fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, entropy)
    except OSError:
        pass
    finally:
        os.close(fd)


def _create_workspace(path: str) -> str:
    """Create the workspace if it does not exist, and return its path. Return the home directory of ``user`` if that fails."""
    try:
        if not os.path.isdir(path):
            account = lookup_account("user")
            os.makedirs(path, 0o755)
            os.chown(path, account.uid, account.gid)
    except OSError as error:
        log(f"cannot create the workspace {path}: {error}")
        return lookup_account("user").home
    return path

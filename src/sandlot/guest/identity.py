"""Identity of the sandbox: its id, environment, user, workspace and randomness. Each ``guest.wake`` call sets all five.

Invariants:
- A new process gets the variables of the most recent wake. Variables that only earlier wakes have set are dropped.
- The host sends new random bytes with each wake. The guest mixes these bytes into the random number generator of the operating
  system, because the generators in all copies of a checkpoint start with the same state.
- :meth:`SandboxIdentity.fresh_entropy` never returns the same bytes twice, in this sandbox or in a copy of the sandbox.
"""

from __future__ import annotations

import os

from sandlot.guest.boot_id import BootId
from sandlot.guest.errors import RpcError
from sandlot.guest.loop import log
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol.fast_imports import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.accounts import Account


class SandboxIdentity:
    """Id, environment, user, workspace and entropy of the sandbox in which the guest runs.

    Args:
        loop: The guest's loop, whose clock measures the uptime.

    Attributes:
        sandbox_id: Id of the sandbox; empty before the first wake.
        env: Variables of the sandbox. They are added to the variables of the account that a process runs as.
        user: User that code runs as, as for :func:`lookup_account`. The sandbox may have no such user.
        workspace: Default working directory of processes.
        began_s: Time from which the uptime is counted, in seconds of the loop's clock: the start of the guest or, in a copy of a
            sandbox, the first wake of the copy.
        boot_id: Boot id of the sandbox. A copy gets another one.
    """

    __slots__ = ("_drawn", "_loop", "_seed", "began_s", "boot_id", "env", "sandbox_id", "user", "workspace")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._seed = b""
        self._drawn = 0
        self.sandbox_id = ""
        self.env: dict[str, str] = {}
        self.user = "user"
        self.workspace = "/"
        self.began_s = loop.time()
        self.boot_id = BootId(is_active=os.getpid() == 1)

    def become(self, sandbox_id: str, env: dict[str, str], user: str, workspace: str, entropy: bytes) -> None:
        """Take over the identity that the host has sent with ``guest.wake``.

        Args:
            sandbox_id: Id of the sandbox. If the previous wake had another id, the sandbox is a copy, and its uptime begins now.
            env: Variables of the sandbox.
            user: User that code runs as.
            workspace: Default working directory of processes. If it does not exist, it is created with its parents for ``user``. If the
                creation fails, the home directory of ``user`` is used instead.
            entropy: Random bytes that the host sends to this sandbox only, for this wake only.
        """
        is_copy = self.sandbox_id not in {"", sandbox_id}
        if is_copy:
            self.began_s = self._loop.time()
        self.sandbox_id = sandbox_id
        self.env = env
        self.user = user
        self._seed = entropy
        _add_kernel_entropy(entropy)
        if is_copy:
            self.boot_id.replace(self.fresh_entropy())
        self.workspace = _create_workspace(workspace, self.account())

    def account(self) -> Account:
        """Return the account of :attr:`user`, or that of ``user`` if the sandbox has no such user. Code is then refused when it starts."""
        try:
            return lookup_account(self.user)
        except RpcError:
            return lookup_account("user")

    def environment(self, account: Account, *layers: dict[str, str]) -> dict[str, str]:
        """Return the environment for a new process.

        The sources are, in this order: variables of the account, variables of the sandbox, each of ``layers``. If two sources have
        the same variable, the later source applies.
        """
        return build_environment(account, self.env, *layers)

    def fresh_entropy(self) -> bytes:
        """Return 64 random bytes. No other call returns the same bytes, in this sandbox or in a copy of the sandbox."""
        self._drawn += 1
        return blake2b(b"%b%d:%b" % (self._seed, self._drawn, os.urandom(32))).digest()


def _add_kernel_entropy(entropy: bytes) -> None:
    """Mix bytes into the operating system's random number generator (random(4)), whose state is the same in all copies of a snapshot."""
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


def _create_workspace(path: str, account: Account) -> str:
    """Create the workspace for an account if it does not exist, and return its path.

    If the creation fails, return the home directory of the account, and log the reason.
    """
    try:
        if not os.path.isdir(path):
            missing, above = [], path
            while not os.path.lexists(above):
                missing.append(above)
                above = os.path.dirname(above)
            os.makedirs(path, 0o755)
            for made in missing:
                os.chown(made, account.uid, account.gid)
    except OSError as error:
        log(f"cannot create the workspace {path!r} ({error}); using the home directory of the account `{account.name}`")
        return account.home
    return path

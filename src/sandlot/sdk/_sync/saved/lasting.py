# Made from src/sandlot/sdk/_async/saved/lasting.py by scripts/unasync.py; change that file, not this one.
"""What outlasts the moment: a sandbox paused, hibernated, kept as a snapshot, and forked.

Law: Each of these may be asked again where the connection broke: resting and resuming change nothing a second time, and what makes something is
sent under a key that makes it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from sandlot.sdk import wire
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code.coding import Coding
from sandlot.sdk.info import SandboxInfo
from sandlot.sdk.saved.snapshots import ForkTree, SnapshotInfo

WRITTEN_TIMEOUT_S = 10 * 60.0
"""How long the service may take to write a sandbox's memory to a disk, or to read it: it can be many GiB."""


class Lasting(Coding, ABC):
    """What a sandbox does to outlast the moment."""

    def __init__(self, client: Client, info: SandboxInfo) -> None:
        super().__init__(client, info.id)
        self._info = info

    @abstractmethod
    def _another(self, info: SandboxInfo) -> Self:
        """Take hold of another sandbox over the same connections."""

    def pause(self) -> None:
        """Freeze it where it is: nothing in it runs, its memory stays, its timeout stands still.

        The next request to it resumes it by itself, unless it was made with ``auto_resume=False``. Pausing a paused one does no harm.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: It is hibernated: it rests already, more deeply.
        """
        self._verb("pause")

    def resume(self, timeout: float | None = None) -> None:
        """Let a paused or hibernated one go on, exactly where it was; one that runs is left as it is.

        Args:
            timeout: Seconds from now until its timeout; by default as many as were last set.

        Raises:
            SandboxEndedError: It has ended.
            UnavailableError: The node has no room for its memory now.
        """
        self._verb("resume", wire.given(timeout=timeout))

    def hibernate(self) -> None:
        """Write its memory to the service's disk and give it back; the next request, or :meth:`wake`, has it go on where it was.

        Connections into it (streams that are read, terminals) are cut; what runs inside is not. Hibernating a hibernated one does no harm.

        Raises:
            SandboxEndedError: It has ended.
            UnsupportedError: Its isolation cannot; says why.
            LimitError: The disk is full; it goes on as if nothing had been asked.
        """
        self._verb("hibernate")

    def wake(self, timeout: float | None = None) -> None:
        """Let a hibernated one go on: :meth:`resume` by the word that goes with :meth:`hibernate`.

        Args:
            timeout: As in :meth:`resume`.
        """
        self._verb("wake", wire.given(timeout=timeout))

    def snapshot(self, name: str | None = None, kind: str = "memory", *, idempotency_key: str | None = None) -> SnapshotInfo:
        """Keep what it is at this moment; it goes on undisturbed. ``Sandbox.create(snapshot=...)`` starts others from it, also after its end.

        Args:
            name: What to call it: unique among your snapshots; by default nothing, and its id finds it.
            kind: ``memory`` (memory and files: what is started from it goes on in the middle of everything) or ``files`` (what is started from
                it boots, and finds the files).
            idempotency_key: As in ``Sandbox.create``.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: A snapshot of yours has that name.
            UnsupportedError: Its isolation cannot; says why, and ``files`` may still do.
            LimitError: The disk is full; nothing is left of the snapshot.
        """
        return SnapshotInfo.parse(self._made("snapshot", wire.given(name=name, kind=kind), idempotency_key))

    def fork(
        self,
        count: int = 1,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        share_volumes: bool = False,
        idempotency_key: str | None = None,
    ) -> list[Self]:
        """Make sandboxes that are what it is at this moment: kernels with their variables, processes, files. It goes on undisturbed.

        From then on all of them are independent, draw random numbers of their own, and end by themselves. There are all of them, or none.

        Args:
            count: How many, 1 to 100.
            name: A name for people; of several, ``-1``, ``-2`` and so on are added to it.
            metadata: Words of yours, in place of its own.
            envs: Added to its environment, for what is started in the forks.
            timeout: Seconds until they end, by default its own.
            share_volumes: Whether they share the volumes that it writes to; without it such a fork is refused. Read-only ones are shared.
            idempotency_key: As in ``Sandbox.create``.

        Returns:
            They: always a list, also of one.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: It writes to a volume, and that is not to be shared.
            UnsupportedError: Its isolation cannot; says why.
            UnavailableError: The node has no room for so many now.
        """
        body = wire.given(
            count=count,
            name=name,
            metadata=None if metadata is None else dict(metadata),
            env=None if envs is None else dict(envs),
            timeout=timeout,
            share_volumes=share_volumes or None,
        )
        answer = self._made("fork", body, idempotency_key)
        return [self._another(SandboxInfo.parse(raw)) for raw in answer["sandboxes"]]

    def attach_volume(self, volume: str, path: str, *, read_only: bool = False) -> None:
        """Give it a volume from now on; one that rests is resumed for it. What it has so already, it has.

        Args:
            volume: Its name or id.
            path: The folder that it is to be; made where it is not there.
            read_only: Whether nothing is to be written to it from this sandbox.

        Raises:
            SandboxEndedError: It has ended.
            NotFoundError: There is no such volume.
            ConflictError: The place is another volume's, or it has this one elsewhere; or it is being forked.
            UnsupportedError: Its isolation cannot; says why.
        """
        self._verb("volumes", wire.given(volume=volume, path=path, read_only=read_only or None))

    def detach_volume(self, path: str) -> None:
        """Take a volume away from it; what is in the volume stays.

        Args:
            path: The folder that it is; or the volume's name or id.

        Raises:
            SandboxEndedError: It has ended.
            NotFoundError: It has no such volume.
            ConflictError: Something inside has a file of it open, or works in it; or it is being forked.
            UnsupportedError: Its isolation cannot; says why.
        """
        answer = self._client.request("DELETE", f"{self._path}/volumes", params={"path": path}, read_timeout_s=WRITTEN_TIMEOUT_S)
        self._info = SandboxInfo.parse(answer)

    def tree(self) -> ForkTree:
        """The forks that it belongs to: those that it came of, and those that came of it."""
        return ForkTree.parse(self._client.request("GET", f"{self._path}/tree"))

    def promote(self) -> list[str]:
        """Keep this one and end its siblings: the other forks of its parent, and what came of them. The parent lives on.

        Returns:
            The ids of those that were ended.

        Raises:
            ConflictError: It is nobody's fork.
        """
        answer = self._client.request("POST", f"{self._path}/promote", once=True, read_timeout_s=WRITTEN_TIMEOUT_S)
        return [str(each) for each in answer["ended"]]

    def _verb(self, verb: str, body: Mapping[str, Any] | None = None) -> None:
        path = f"{self._path}/{verb}"
        self._info = SandboxInfo.parse(self._client.request("POST", path, body=body, once=True, read_timeout_s=WRITTEN_TIMEOUT_S))

    def _made(self, verb: str, body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
        headers = wire.once() if key is None else {"Idempotency-Key": key}
        path = f"{self._path}/{verb}"
        return self._client.request("POST", path, body=body, headers=headers, once=True, read_timeout_s=WRITTEN_TIMEOUT_S)

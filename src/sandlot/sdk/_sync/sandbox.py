# Generated from src/sandlot/sdk/_async/sandbox.py by scripts/unasync.py; change that file.
"""A sandbox: start or connect to one, run code and commands in it, change, save and end it.

Invariants:
- A call that its caller leaves early ends what the call started: a cancelled or interrupted foreground run interrupts its code, and a cancelled
  cleanup still ends the sandbox.
- Every call that creates something has an idempotency key, so that the call can be repeated after a broken connection.
"""

from __future__ import annotations

import builtins
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self, overload

from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, DEFAULT_INSTALL_TIMEOUT_S, Limits
from sandlot.sdk import requests, responses
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code import Callbacks, CodeHandle, finished_execution, run_streamed, run_to_response, stopping
from sandlot.sdk._sync.commands import Commands, deliver_output, deliver_remainders, finished_command, stream_cut_error
from sandlot.sdk._sync.contexts import Contexts
from sandlot.sdk._sync.desktop import Desktop
from sandlot.sdk._sync.files import Files
from sandlot.sdk._sync.network import SandboxNetwork
from sandlot.sdk._sync.pty import Pty
from sandlot.sdk._sync.transport import wait_before_resuming
from sandlot.sdk._sync.tunnels import PortForward, Tunnel, forward_port, open_tunnel
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.code import CodeEvent, ExceptionInfo, Execution, Result
from sandlot.sdk.models.contexts import Context, context_id
from sandlot.sdk.models.executions import LogEntry
from sandlot.sdk.models.network import Network
from sandlot.sdk.models.processes import CommandResult, Output
from sandlot.sdk.models.sandboxes import ListeningPort, SandboxInfo, Usage
from sandlot.sdk.models.snapshots import ForkTree, SnapshotInfo
from sandlot.sdk.models.volumes import Mount
from sandlot.sdk.transcript import Transcript

CREATE_TIMEOUT_S = 30 * 60.0
"""The first sandbox of a template waits until the template's image is built, which takes minutes."""
SAVE_TIMEOUT_S = 10 * 60.0
"""Seconds that the service may take to write the memory of a sandbox to disk or to read it; this can be many GiB."""
LOCAL_HOST = "127.0.0.1"


class Sandbox:
    """An isolated place to run code, with its own kernel, files and processes.

    ``with Sandbox.create() as sandbox:`` ends the sandbox together with the block. Without a block, the sandbox ends at its timeout or by
    :meth:`kill`.

    Args:
        client: Client of the service; closing the sandbox object does not close it.
        info: Description of the sandbox, from ``client.sandboxes``.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, was_created: bool = False, users: set[str] | None = None) -> None:
        self._client = client
        self._transport = client.transport
        self._info = info
        self._path = f"/v1/sandboxes/{info.id}"
        self._users = users
        """Ids of the sandboxes that share a client which the last of them closes; None if the caller closes the client."""
        if users is not None:
            users.add(info.id)
        self._is_promoted = False
        self.was_created = was_created
        """True if this object's call created the sandbox; False if the sandbox existed before."""
        self.files = Files(self._transport, info.id)
        """Files of the sandbox: :class:`Files`."""
        self.commands = Commands(self._transport, info.id)
        """Commands and processes: :class:`Commands`."""
        self.pty = Pty(self._transport, info.id)
        """Interactive terminals: :class:`Pty`."""
        self.contexts = Contexts(self._transport, info.id)
        """Code contexts, each with its own variables: :class:`Contexts`."""
        self.desktop = Desktop(self._transport, info.id, self.commands, self.files)
        """Screen, pointer and keys of a desktop: :class:`Desktop`."""
        self.network = SandboxNetwork(self._transport, info.id)
        """Network activity: :class:`SandboxNetwork`."""

    @classmethod
    @backend.awaitable_context
    def create(  # noqa: PLR0913 - passed by name
        cls,
        template: str | None = None,
        *,
        snapshot: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        persistent: bool = False,
        idle_timeout: float | None = None,
        on_timeout: str | None = None,
        auto_resume: bool | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        isolation: str | None = None,
        network: Network | str | Iterable[str] | None = None,
        volumes: Mapping[str, str | Mount] | None = None,
        file_ids: Iterable[str] | None = None,
        cwd: str | None = None,
        public_ports: bool = False,
        mask_request_host: str | None = None,
        idempotency_key: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> Self:
        """Create a sandbox and wait until it runs.

        Args:
            template: Template to start from. Default: ``code-interpreter``.
            snapshot: Id or name of a snapshot to start from; template, limits, isolation and network are then those of the snapshot.
            name: Name of the sandbox, unique among the caller's live sandboxes; it can be used in place of the id.
            metadata: Key-value pairs that are kept with the sandbox.
            envs: Environment variables of everything that runs in the sandbox.
            timeout: Seconds until the timeout, at most 7 days. Default: 300.
            persistent: Create the sandbox without a timeout.
            idle_timeout: Seconds without activity after which ``on_timeout`` applies. Default: none.
            on_timeout: Action at the timeout: ``kill`` (default), ``pause``, ``hibernate`` or ``hibernate_files``, which keeps only the files.
            auto_resume: Let the next request resume the sandbox while it is paused or hibernated. Default: True.
            cpus: CPU cores; fractions are allowed. Default: 1.
            memory: Memory limit in bytes, or as text such as ``"512M"`` or ``"2G"``. Default: 1 GiB.
            disk: Limit of written data, in the same forms. Default: 5 GiB.
            pids: Maximum number of processes and threads. Default: 512.
            isolation: Name of a driver, such as ``gvisor``, or ``auto``. Default: the service's.
            network: ``Network``, its mode (``"none"``, ``"packages"``, ``"allowlist"`` or ``"internet"``), or the rules of an allowlist as a list.
                Default: ``"packages"``, or the policy of the snapshot.
            volumes: Volumes by the absolute path at which they are mounted: the name or id of a volume, or a ``Mount``.
            file_ids: Ids of files of the file store to copy into the working directory.
            cwd: Absolute path of the working directory, in which programs start and relative paths begin; it is created if it does not exist.
                Default: ``/workspace``, or that of the snapshot.
            public_ports: Let everyone open the preview URLs of the ports without a token. The quota ``public_ports`` of the key must allow it.
            mask_request_host: ``Host`` header that programs see behind a preview URL: a host name with or without a port, in which ``${PORT}``
                stands for the port. Default: ``localhost:PORT``.
            idempotency_key: Key under which the service creates at most one sandbox. Default: a new key for each call.
            url: Address of the service, as for :class:`Client`.
            api_key: API key, as for :class:`Client`.
            client: Client to use in place of ``url`` and ``api_key``; it stays open when the sandbox is closed.

        Raises:
            NotFoundError: The template, snapshot, volume or file does not exist.
            ConflictError: Another live sandbox of the caller has the name.
            InvalidRequestError: A value is out of range.
            ForbiddenError: The operator or the key does not allow the isolation, the network mode or public ports.
            UnsupportedError: The service cannot enforce what was requested.
            LimitError: The quota of the API key is used up.
            UnavailableError: The service cannot be reached, or has no room for the sandbox now.
        """
        body = requests.sandbox_body(
            template=template,
            snapshot=snapshot,
            name=name,
            metadata=metadata,
            envs=envs,
            timeout=timeout,
            persistent=persistent,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            limits=requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids),
            isolation=isolation,
            network=network,
            volumes=volumes,
            file_ids=file_ids,
            cwd=cwd,
            public_ports=public_ports,
            mask_request_host=mask_request_host,
        )
        return cls._create(body, idempotency_key, url, api_key, client)

    @classmethod
    @backend.awaitable_context
    def get_or_create(  # noqa: PLR0913 - passed by name
        cls,
        name: str,
        template: str | None = None,
        *,
        snapshot: str | None = None,
        metadata: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        persistent: bool = False,
        idle_timeout: float | None = None,
        on_timeout: str | None = None,
        auto_resume: bool | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        isolation: str | None = None,
        network: Network | str | Iterable[str] | None = None,
        volumes: Mapping[str, str | Mount] | None = None,
        file_ids: Iterable[str] | None = None,
        cwd: str | None = None,
        public_ports: bool = False,
        mask_request_host: str | None = None,
        idempotency_key: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> Self:
        """Return the caller's live sandbox of a name, or create it. Of several simultaneous calls, one creates the sandbox.

        A sandbox that is being created is waited for, and a suspended one is resumed. If the sandbox exists, all arguments but ``name`` are ignored;
        :attr:`was_created` says which case it was.

        Args:
            name: Name of the sandbox.
            template: As for :meth:`create`, like all other arguments.
            snapshot: As for :meth:`create`.
            metadata: As for :meth:`create`.
            envs: As for :meth:`create`.
            timeout: As for :meth:`create`.
            persistent: As for :meth:`create`.
            idle_timeout: As for :meth:`create`.
            on_timeout: As for :meth:`create`.
            auto_resume: As for :meth:`create`.
            cpus: As for :meth:`create`.
            memory: As for :meth:`create`.
            disk: As for :meth:`create`.
            pids: As for :meth:`create`.
            isolation: As for :meth:`create`.
            network: As for :meth:`create`.
            volumes: As for :meth:`create`.
            file_ids: As for :meth:`create`.
            cwd: As for :meth:`create`.
            public_ports: As for :meth:`create`.
            mask_request_host: As for :meth:`create`.
            idempotency_key: As for :meth:`create`.
            url: As for :meth:`create`.
            api_key: As for :meth:`create`.
            client: As for :meth:`create`.
        """
        body = requests.sandbox_body(
            template=template,
            snapshot=snapshot,
            name=name,
            metadata=metadata,
            envs=envs,
            timeout=timeout,
            persistent=persistent,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            limits=requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids),
            isolation=isolation,
            network=network,
            volumes=volumes,
            file_ids=file_ids,
            cwd=cwd,
            public_ports=public_ports,
            mask_request_host=mask_request_host,
        )
        return cls._create({**body, "if_exists": "return"}, idempotency_key, url, api_key, client)

    @classmethod
    @backend.awaitable_context
    def connect(
        cls,
        id: str,  # noqa: A002 - the word of the API
        *,
        timeout: float | None = None,
        resume: bool = True,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> Self:
        """Connect to a live sandbox, and resume it if it is paused or hibernated.

        Args:
            id: Id or name of the sandbox.
            timeout: Seconds from now until the timeout. Default: unchanged.
            resume: Resume a suspended sandbox.
            url: As for :meth:`create`.
            api_key: As for :meth:`create`.
            client: As for :meth:`create`.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        connections = client or Client(url=url, api_key=api_key)
        try:
            info = connections.sandboxes.get(id)
            responses.check_alive(info)
            sandbox = cls(connections, info, users=None if client else set())
            if resume and info.state in responses.SUSPENDED:
                sandbox.resume(timeout)
            elif timeout is not None:
                sandbox.set_timeout(timeout)
        except BaseException:
            if client is None:
                connections.close()
            raise
        return sandbox

    @classmethod
    def list(
        cls,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        name: str | None = None,
        ended: bool = False,
        limit: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> builtins.list[SandboxInfo]:
        """List live sandboxes, oldest first: the caller's own, or everybody's with an operator's key.

        Args:
            state: Only sandboxes in this state, or in one of these states.
            metadata: Only sandboxes that have all of these entries.
            name: Only sandboxes of this name.
            ended: Include ended sandboxes whose records the service still keeps.
            limit: Maximum number of sandboxes. Default: all.
            url: As for :meth:`create`.
            api_key: As for :meth:`create`.
            client: As for :meth:`create`.
        """
        if client is not None:
            return client.sandboxes.list(state=state, metadata=metadata, name=name, ended=ended, limit=limit)
        with Client(url=url, api_key=api_key) as connections:
            return connections.sandboxes.list(state=state, metadata=metadata, name=name, ended=ended, limit=limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with backend.shielded():
            self.kill()

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self._info.id

    @property
    def sandbox_id(self) -> str:
        """The same as :attr:`id`, under E2B's name."""
        return self._info.id

    @property
    def template(self) -> str:
        """Template that the sandbox was created from."""
        return self._info.template

    @property
    def isolation(self) -> str:
        """Name of the driver that isolates the sandbox, such as ``gvisor``."""
        return self._info.isolation

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata in the last response of the service; :meth:`info` requests the current metadata."""
        return self._info.metadata

    @property
    def limits(self) -> Limits:
        """Limits in the last response of the service; :meth:`info` requests the current limits."""
        return self._info.limits

    def kill(self: Sandbox | str, *, url: str | None = None, api_key: str | None = None) -> None:
        """End the sandbox and delete everything in it. Killing an ended sandbox does nothing.

        ``Sandbox.kill("sb-...")`` ends a sandbox by its id or name.

        Args:
            url: Only with an id or name: as for :meth:`create`.
            api_key: Only with an id or name: as for :meth:`create`.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        if isinstance(self, str):
            with Client(url=url, api_key=api_key) as client:
                client.sandboxes.kill(self)
            return
        try:
            self._client.sandboxes.kill(self.id)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the sandbox keeps running until its timeout."""
        if self._users is not None:
            self._users.discard(self.id)
            if not self._users:
                self._client.close()

    def info(self) -> SandboxInfo:
        """Get the current state, limits and timeouts."""
        self._info = self._client.sandboxes.get(self.id)
        return self._info

    def get_info(self) -> SandboxInfo:
        """Do the same as :meth:`info`, under E2B's name."""
        return self.info()

    def is_running(self) -> bool:
        """Return True if the sandbox runs; False if it is suspended or has ended."""
        return (self.info()).state == "running"

    def usage(self) -> Usage:
        """Get the CPU time, memory, disk and processes in use, with their limits."""
        return structure(Usage, self._transport.request("GET", f"{self._path}/usage"))

    def set_timeout(self, timeout: float) -> None:
        """Set the timeout to a number of seconds from now, whatever it was before. :meth:`update` also removes a timeout."""
        self.update(timeout=timeout)

    def update(  # noqa: PLR0913 - passed by name
        self,
        *,
        timeout: float | None = None,
        persistent: bool | None = None,
        idle_timeout: float | None = None,
        on_timeout: str | None = None,
        auto_resume: bool | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        network: Network | str | Iterable[str] | None = None,
        public_ports: bool | None = None,
        mask_request_host: str | None = None,
    ) -> SandboxInfo:
        """Change properties of the sandbox: all given values, or none of them. Values that are not given stay.

        On ``gvisor``, programs inside still see the memory size and the number of CPUs of the start; the new limits hold nevertheless.

        Args:
            timeout: Seconds from now until the timeout, at most 7 days.
            persistent: True removes the timeout.
            idle_timeout: Seconds without activity after which ``on_timeout`` applies; 0 removes the idle timeout.
            on_timeout: Action at the timeout: ``kill``, ``pause``, ``hibernate`` or ``hibernate_files``.
            auto_resume: Let the next request resume the sandbox while it is paused or hibernated.
            name: New name, unique among the caller's live sandboxes.
            metadata: New metadata; it replaces all entries.
            cpus: CPU cores.
            memory: Memory limit in bytes, or as text such as ``"512M"``.
            disk: Limit of written data, in the same forms.
            pids: Maximum number of processes and threads.
            network: Network policy, as for :meth:`create`; it replaces the present one as a whole. Connections that it does not allow are reset.
            public_ports: True: everyone can open the preview URLs of the ports without a token, which the quota ``public_ports`` of the key must
                allow. False: a token is needed.
            mask_request_host: ``Host`` header that programs see behind a preview URL, as for :meth:`create`; empty for ``localhost:PORT``.

        Raises:
            InvalidRequestError: A value is out of range.
            ForbiddenError: The operator or the key does not allow the network mode or public ports.
            ConflictError: The sandbox uses more than the new limit, or the name is taken.
            UnsupportedError: The driver cannot change this limit of a running sandbox.
            UnavailableError: The node does not have the resources now.
            SandboxEndedError: The sandbox has ended.
        """
        body = requests.omit_none(
            timeout=timeout,
            persistent=persistent,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            name=name,
            metadata=None if metadata is None else dict(metadata),
            limits=requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids) or None,
            network=requests.network_body(network),
            public_ports=public_ports,
            mask_request_host=mask_request_host,
        )
        self._info = structure(SandboxInfo, self._transport.request("PATCH", self._path, body=body))
        return self._info

    def pause(self) -> None:
        """Freeze the sandbox and keep its memory; :meth:`hibernate` also frees the memory.

        The timeout stands still. The next request resumes the sandbox, unless it was created with ``auto_resume=False``.

        Raises:
            ConflictError: The sandbox is hibernated.
            SandboxEndedError: The sandbox has ended.
        """
        self._suspend_or_resume("pause")

    def resume(self, timeout: float | None = None) -> None:
        """Resume a paused or hibernated sandbox; a running sandbox stays as it is.

        Args:
            timeout: Seconds from now until the timeout. Default: as many as were set last.

        Raises:
            UnavailableError: The node has no room for the memory of the sandbox now.
            SandboxEndedError: The sandbox has ended.
        """
        self._suspend_or_resume("resume", requests.omit_none(timeout=timeout))

    def hibernate(self) -> None:
        """Write the memory of the sandbox to disk and free it; :meth:`pause` keeps the memory.

        The next request or :meth:`resume` continues the processes where they were. Connections into the sandbox are closed. Hibernating a hibernated
        sandbox does nothing.

        Raises:
            UnsupportedError: The driver cannot hibernate this sandbox.
            LimitError: The disk of the service is full; the sandbox keeps running.
            SandboxEndedError: The sandbox has ended.
        """
        self._suspend_or_resume("hibernate")

    def snapshot(self, name: str | None = None, kind: str = "memory", *, idempotency_key: str | None = None) -> SnapshotInfo:
        """Save the sandbox, which keeps running. ``Sandbox.create(snapshot=...)`` starts other sandboxes from the snapshot.

        Args:
            name: Name of the snapshot, unique among the caller's snapshots. Default: none.
            kind: ``memory`` (memory, processes and files) or ``files`` (files only; a sandbox that starts from the snapshot boots).
            idempotency_key: As for :meth:`create`.

        Raises:
            ConflictError: Another snapshot of the caller has the name.
            UnsupportedError: The driver cannot save memory; ``files`` may be possible.
            LimitError: The disk of the service is full.
            SandboxEndedError: The sandbox has ended.
        """
        return structure(SnapshotInfo, self._post_once("snapshots", requests.omit_none(name=name, kind=kind), idempotency_key))

    def create_snapshot(self, name: str | None = None, kind: str = "memory", *, idempotency_key: str | None = None) -> SnapshotInfo:
        """Do the same as :meth:`snapshot`, under E2B's name.

        Args:
            name: As for :meth:`snapshot`.
            kind: As for :meth:`snapshot`.
            idempotency_key: As for :meth:`snapshot`.
        """
        return self.snapshot(name, kind, idempotency_key=idempotency_key)

    @backend.awaitable_context
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
    ) -> ForkBatch:
        """Create copies of the running sandbox with its memory, processes and files: all of them, or none.

        The sandbox keeps running. The copies are independent of it and of each other, and have their own random numbers.

        Args:
            count: Number of copies, 1 to 100.
            name: Name of the copy; with several, ``-1``, ``-2`` and so on are appended. Default: none.
            metadata: Metadata of the copies. Default: the sandbox's.
            envs: Environment variables that are added for programs that start in the copies.
            timeout: Seconds until the timeout of the copies. Default: the sandbox's.
            share_volumes: Allow copies to share volumes that the sandbox can write to. Read-only volumes are always shared.
            idempotency_key: As for :meth:`create`.

        Returns:
            The copies: a sequence, and a context manager that ends them.

        Raises:
            ConflictError: The sandbox has a writable volume and ``share_volumes`` is False, or a name is taken.
            UnsupportedError: The driver cannot fork this sandbox.
            UnavailableError: The node has no room for the copies now.
            SandboxEndedError: The sandbox has ended.
        """
        body = requests.omit_none(
            count=count,
            name=name,
            metadata=None if metadata is None else dict(metadata),
            env=None if envs is None else dict(envs),
            timeout=timeout,
            share_volumes=share_volumes or None,
        )
        response = self._post_once("forks", body, idempotency_key)
        infos = structure_list(SandboxInfo, response, "sandboxes")
        return ForkBatch([type(self)(self._client, info, was_created=True, users=self._users) for info in infos])

    def fork_tree(self) -> ForkTree:
        """Get the tree of sandboxes that were forked from one another and that contains this sandbox."""
        return structure(ForkTree, self._transport.request("GET", f"{self._path}/fork-tree"))

    def promote(self) -> builtins.list[str]:
        """Keep this fork and end its siblings, which are the other forks of its parent, and their forks. The parent keeps running.

        Returns:
            Ids of the sandboxes that were ended.

        Raises:
            ConflictError: The sandbox is not a fork.
        """
        response = self._transport.request("POST", f"{self._path}/promote", idempotent=True, read_timeout_s=SAVE_TIMEOUT_S)
        self._is_promoted = True
        return [str(each) for each in response["ended"]]

    @overload
    def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        background: Literal[False] = False,
        check: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution: ...

    @overload
    def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        background: Literal[True],
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> CodeHandle: ...

    def run_code(  # noqa: PLR0913 - passed by name
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        background: bool = False,
        check: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution | CodeHandle:
        """Run code in a context, in which variables, imports and functions of earlier calls persist.

        Code that raises an exception is a result: see ``error``. Runs of one context follow one another. A foreground run is interrupted if its
        caller is cancelled.

        Args:
            code: Code to run, at most 4 MiB.
            language: ``python``, ``javascript``, ``typescript``, ``bash`` or ``r``. Default: the context's, or ``python``.
            context: Context to run in. Default: the language's default context.
            envs: Environment variables for this run.
            timeout: Seconds until the code is interrupted, counted from its start. None: no limit. Default: 60.
            background: Return a handle at once instead of waiting for the end.
            check: Raise ``ExecutionFailedError`` if the code fails; only in the foreground.
            on_stdout: Called with each piece of standard output as it arrives; of a background run, by :meth:`CodeHandle.wait`.
            on_stderr: The same for standard error.
            on_result: Called with each rich result as it arrives.
            on_error: Called with the exception that ended the code.

        Raises:
            ExecutionFailedError: ``check`` is True and the code failed.
            NotFoundError: ``context_not_found``.
            UnsupportedError: The template has no interpreter for this language.
            SandboxEndedError: The sandbox has ended.
        """
        path, body = f"{self._path}/code", _code_body(code, language, context, envs, timeout)
        headers = requests.idempotency_headers()
        callbacks = Callbacks(on_stdout, on_stderr, on_result, on_error)
        if background:
            response = self._transport.request("POST", path, body={**body, "background": True}, headers=headers, idempotent=True)
            return CodeHandle(self._transport, path, Transcript(id=str(response["id"])), callbacks)
        if not callbacks and self._transport.can_wait_silently:
            execution = run_to_response(self._transport, path, body, headers)
        else:
            transcript = Transcript()
            with closing(run_streamed(self._transport, path, body, transcript, headers)) as pieces:
                for piece in pieces:
                    callbacks.deliver(transcript, piece)
            deliver_remainders(transcript, on_stdout, on_stderr)
            execution = finished_execution(transcript)
        return execution.check() if check else execution

    def stream_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
    ) -> Generator[CodeEvent]:
        """Run code and iterate over its events as they arrive. Closing the iterator interrupts the code.

        Args:
            code: As for :meth:`run_code`.
            language: As for :meth:`run_code`.
            context: As for :meth:`run_code`.
            envs: As for :meth:`run_code`.
            timeout: As for :meth:`run_code`.

        Yields:
            ExecutionStarted, Output, Result, OutputCleared and ExceptionInfo as they arrive, and the Execution at the end.
        """
        path, body = f"{self._path}/code", _code_body(code, language, context, envs, timeout)
        transcript = Transcript()
        with closing(run_streamed(self._transport, path, body, transcript, requests.idempotency_headers())) as pieces:
            for piece in pieces:
                yield piece
        yield finished_execution(transcript)

    def connect_code(
        self,
        id: str,  # noqa: A002 - the word of the API
        *,
        events_from: int = 0,
        stdout_from: int = 0,
        stderr_from: int = 0,
    ) -> CodeHandle:
        """Return a handle of a run that was started before, also by another client or before a restart of the service.

        Args:
            id: Id of the execution.
            events_from: Number of events other than output to skip.
            stdout_from: Byte of standard output at which the handle starts.
            stderr_from: The same for standard error.
        """
        transcript = Transcript(id=id, events=events_from)
        transcript.stdout.offset, transcript.stderr.offset = stdout_from, stderr_from
        return CodeHandle(self._transport, f"{self._path}/code", transcript, Callbacks())

    def create_code_context(self, cwd: str | None = None, language: str | None = None, envs: Mapping[str, str] | None = None) -> Context:
        """Do the same as ``contexts.create``, under E2B's name and with its order of arguments.

        Args:
            cwd: As for ``contexts.create``.
            language: As for ``contexts.create``.
            envs: As for ``contexts.create``.
        """
        return self.contexts.create(language or "python", cwd=cwd, envs=envs)

    def install(
        self,
        packages: str | Sequence[str],
        *,
        manager: str = "pip",
        user: str | None = None,
        timeout: float | None = DEFAULT_INSTALL_TIMEOUT_S,
        check: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_output: backend.Callback[Output] | None = None,
    ) -> CommandResult:
        """Install packages; code that runs already can import them afterwards.

        A failed installation is a result: see ``exit_code``, and ``stderr`` for the message of the package manager. An installation is ended if its
        caller is cancelled.

        Args:
            packages: One or several names, with versions in the form of the package manager (``requests>=2``, ``lodash@^4``). For pip also
                ``-r FILE``: a requirements file in the sandbox, relative to the working directory.
            manager: ``pip`` (default), ``npm`` or ``apt``.
            user: User who installs, by name or uid; default: that of the sandbox; apt always runs as root.
            timeout: Seconds until the installation is killed. None: no limit. Default: 300.
            check: Raise ``ExecutionFailedError`` if the installation fails.
            on_stdout: Called with each piece of standard output as it arrives.
            on_stderr: The same for standard error.
            on_output: Called with each piece of either stream as bytes.

        Raises:
            ExecutionFailedError: ``check`` is True and the installation failed.
            InvalidRequestError: A name is not that of a package, but another option, a path or a URL.
            SandboxEndedError: The sandbox has ended.
        """
        names = [packages] if isinstance(packages, str) else [*packages]
        body = {"manager": manager, "packages": names, "timeout": timeout, **requests.omit_none(user=user)}
        path, headers, transcript, tries = f"{self._path}/packages", requests.idempotency_headers(), Transcript(), 0
        with stopping(self._transport, path, body, transcript, headers, self._terminate):
            if on_stdout is None and on_stderr is None and on_output is None and self._transport.can_wait_silently:
                response = self._transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=None)
                result = structure(CommandResult, response)
                return result.check() if check else result
            while not transcript.over():
                tries += 1
                try:
                    with self._transport.event_stream("POST", path, body=body, headers=headers) as events:
                        for event in events:
                            piece = transcript.feed(event)
                            if isinstance(piece, Output):
                                tries = 1
                                backend.call(on_output, piece)
                                deliver_output(transcript, piece, on_stdout, on_stderr)
                    error: SandlotError = stream_cut_error("installation")
                except SandlotError as caught:
                    error = caught
                if not transcript.over():
                    wait_before_resuming(error, tries)
        deliver_remainders(transcript, on_stdout, on_stderr)
        result = finished_command(transcript)
        return result.check() if check else result

    def _terminate(self, process: str) -> bool:
        """Let a package manager clean up and end."""
        return self.commands.kill(process, "SIGTERM")

    def attach_volume(self, volume: str, path: str, *, read_only: bool = False) -> None:
        """Mount a volume in the running sandbox; a suspended sandbox is resumed. Repeating the call does nothing.

        Args:
            volume: Name or id of the volume.
            path: Absolute path of the directory; it is created if it does not exist.
            read_only: Refuse writes to the volume from this sandbox.

        Raises:
            NotFoundError: ``volume_not_found``.
            ConflictError: Another volume is mounted at the path, the volume is mounted elsewhere in the sandbox, or the sandbox is being forked.
            UnsupportedError: The driver cannot mount volumes in a running sandbox.
            SandboxEndedError: The sandbox has ended.
        """
        self._suspend_or_resume("volumes", requests.omit_none(volume=volume, path=path, read_only=read_only or None))

    def detach_volume(self, path: str) -> None:
        """Unmount a volume; its content stays.

        Args:
            path: Path at which the volume is mounted, or the name or id of the volume.

        Raises:
            NotFoundError: The sandbox has no such volume.
            ConflictError: A process has a file of the volume open or works in it, or the sandbox is being forked.
            UnsupportedError: The driver cannot unmount volumes of a running sandbox.
            SandboxEndedError: The sandbox has ended.
        """
        response = self._transport.request("DELETE", f"{self._path}/volumes", params={"path": path}, read_timeout_s=SAVE_TIMEOUT_S)
        self._info = structure(SandboxInfo, response)

    def ports(self) -> builtins.list[ListeningPort]:
        """List the TCP ports on which programs inside listen, by number.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        response = self._transport.request("GET", f"{self._path}/ports")
        return structure_list(ListeningPort, response, "ports")

    def get_url(self, port: int, *, path_form: bool = False, expires_in: float | None = None) -> str:
        """Get the URL under which a browser opens a server inside the sandbox. The server need not run yet.

        Each port has its own origin: cookies, absolute paths, WebSockets and hot reload work. Unless the ports of the sandbox are public, the URL
        contains a token, which opens this port only, and which the browser exchanges for a cookie. A request to the URL resumes a suspended sandbox.

        Args:
            port: Port inside the sandbox, 1 to 65535.
            path_form: Return ``http://DOMAIN/p/TOKEN/`` instead. Use this form for simple pages, files and APIs, and for clients that cannot resolve
                the host name: Python and Node.js do not resolve ``*.localhost`` on all systems. Browsers isolate pages of this form: cookies,
                storage and absolute paths (``/style.css``) do not work.
            expires_in: Seconds until the token expires, 1 to 604800. Default: 86400.

        Raises:
            SandlotError: ``unsupported``: the service serves no previews; start it with ``--preview-port``.
            SandboxEndedError: The sandbox has ended.
        """
        response = self._preview(port, expires_in)
        return str(response["path_url" if path_form else "url"])

    def get_host(self, port: int) -> str:
        """Get the host of the URL of :meth:`get_url`, as E2B's method of this name does: ``PORT-SANDBOX.DOMAIN``.

        A port number follows unless the previews have the default port of HTTP or HTTPS. Unless the ports of the sandbox are public, send the token
        of :meth:`get_preview_token` with each request.

        Args:
            port: Port inside the sandbox, 1 to 65535.
        """
        return str((self._preview(port, None))["host"])

    def get_preview_token(self, port: int, *, expires_in: float | None = None) -> str:
        """Get a token that opens one port of the sandbox. A program sends the token in the header ``X-Sandlot-Preview-Token`` of each request.

        Args:
            port: Port inside the sandbox, 1 to 65535.
            expires_in: Seconds until the token expires, 1 to 604800. Default: 86400.
        """
        return str((self._preview(port, expires_in))["token"])

    def _preview(self, port: int, expires_in: float | None) -> dict[str, Any]:
        body = {} if expires_in is None else {"expires_in": expires_in}
        response: dict[str, Any] = self._transport.request("POST", f"{self._path}/ports/{port}/url", body=body, idempotent=True)
        return response

    @backend.awaitable_context
    def tunnel(self, port: int) -> Tunnel:
        """Connect to a port on the loopback interface of the sandbox; the sandbox needs no network for this.

        Args:
            port: Port inside the sandbox, 1 to 65535.

        Raises:
            NotFoundError: ``port_not_found``: no program listens on the port.
            LimitError: The sandbox has 64 tunnels.
            TimeoutExceededError: The program did not accept the connection within 10 s.
            ConflictError: ``sandbox_paused``: the sandbox is suspended and has ``auto_resume=False``.
            SandboxEndedError: The sandbox has ended.
        """
        return open_tunnel(self._transport, self.id, port)

    @backend.awaitable_context
    def forward(
        self, port: int, local_port: int = 0, *, host: str = LOCAL_HOST, on_error: backend.Callback[SandlotError] | None = None
    ) -> PortForward:
        """Listen on a port of this machine and forward each connection to a port in the sandbox.

        Args:
            port: Port inside the sandbox, 1 to 65535; a program may start to listen on it later.
            local_port: Port on this machine; 0 chooses a free port, see :attr:`PortForward.local_port`.
            host: Address to listen on. Everybody who can reach it can reach the port inside.
            on_error: Called with the error of each connection that could not be forwarded.

        Raises:
            OSError: The local port is in use.
        """
        return forward_port(self._transport, self.id, port, host, local_port, on_error)

    def export_notebook(self, path: str | Path) -> Path:
        """Write a Jupyter notebook with the code that ran in the sandbox, its output, charts and exceptions.

        ``client.executions.notebook`` does the same for a sandbox that has ended.

        Args:
            path: File to write on this machine, such as ``run.ipynb``.

        Returns:
            The path.

        Raises:
            UnsupportedError: The package ``nbformat`` is not installed (``pip install 'sandlot[notebook]'``).
        """
        target, text = Path(path), self._client.executions.notebook(self.id)
        backend.in_thread(target.write_text, text, "utf-8")
        return target

    def logs(self, stream: str = "both") -> builtins.list[LogEntry]:
        """Read the output of code and commands that ran in the sandbox, in the order of their starts.

        The log has at most the newest 200 runs and 1 MiB of text, and of each stream its beginning and its end. Output of a background process
        is there once the process has ended; ``commands.connect`` reads it before.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.
        """
        response = self._transport.request("GET", f"{self._path}/logs", params={"stream": stream})
        return structure_list(LogEntry, response, "entries")

    def follow_logs(self, stream: str = "both") -> Iterator[LogEntry]:
        """Iterate over the entries of :meth:`logs` and then over new output as it is written, until the sandbox ends.

        Following the log does not count as activity for the idle timeout.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.

        Raises:
            UnavailableError: The connection broke.
        """
        with self._transport.event_stream("GET", f"{self._path}/logs", params={"stream": stream}) as events:
            for event in events:
                if event.name in {"entry", "output", "lost"}:
                    yield structure(LogEntry, event.data)
                elif event.name == "ended":
                    return
        raise UnavailableError(
            "The service closed the log stream before the sandbox ended.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Follow the log again; it starts from the beginning.",
        )

    @classmethod
    def _create(cls, body: Mapping[str, Any], idempotency_key: str | None, url: str | None, api_key: str | None, client: Client | None) -> Self:
        connections = client or Client(url=url, api_key=api_key)
        try:
            status, raw = connections.transport.exchange(
                "POST",
                "/v1/sandboxes",
                body=body,
                headers=requests.idempotency_headers(idempotency_key),
                idempotent=True,
                read_timeout_s=CREATE_TIMEOUT_S,
            )
        except BaseException:
            if client is None:
                connections.close()
            raise
        return cls(connections, structure(SandboxInfo, raw), was_created=status == HTTPStatus.CREATED, users=None if client else set())

    def _suspend_or_resume(self, action: str, body: Mapping[str, Any] | None = None) -> None:
        response = self._transport.request("POST", f"{self._path}/{action}", body=body, idempotent=True, read_timeout_s=SAVE_TIMEOUT_S)
        self._info = structure(SandboxInfo, response)

    def _post_once(self, resource: str, body: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
        headers = requests.idempotency_headers(idempotency_key)
        path = f"{self._path}/{resource}"
        return self._transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=SAVE_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class ForkBatch(Sequence[Sandbox]):
    """The sandboxes that one :meth:`Sandbox.fork` created, in order.

    As a context manager, the batch kills every fork that still runs at the end of the block, except a promoted one.
    """

    def __init__(self, sandboxes: Sequence[Sandbox]) -> None:
        self._sandboxes = tuple(sandboxes)

    @overload
    def __getitem__(self, index: int) -> Sandbox: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sandbox]: ...

    def __getitem__(self, index: int | slice) -> Sandbox | Sequence[Sandbox]:
        return self._sandboxes[index]

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._sandboxes)

    def __len__(self) -> int:
        return len(self._sandboxes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        errors: list[SandlotError] = []
        with backend.shielded():
            for sandbox in self._sandboxes:
                if sandbox._is_promoted:  # noqa: SLF001 - the batch and its sandboxes are one concept
                    continue
                try:
                    sandbox.kill()
                except NotFoundError:
                    pass  # ended long ago
                except SandlotError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(sandbox.id for sandbox in self._sandboxes)}>"


def _code_body(
    code: str, language: str | None, context: Context | str | None, envs: Mapping[str, str] | None, timeout: float | None
) -> dict[str, Any]:
    """Body of a run; a ``timeout`` of None is sent, because it means "no limit"."""
    options = requests.omit_none(language=language, context=context_id(context), env=None if envs is None else dict(envs))
    return {"code": code, "timeout": timeout, **options}

# Made from src/sandlot/sdk/_async/sandbox.py by scripts/unasync.py; change that file, not this one.
"""A sandbox: what users of the SDK hold in their hands."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from sandlot.model.errors import SandlotError
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S, Limits
from sandlot.sdk import wire
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code.following import again
from sandlot.sdk._sync.commands import Commands
from sandlot.sdk._sync.files import Files
from sandlot.sdk._sync.handle import cut_short, ended, tell, tell_rest
from sandlot.sdk._sync.ports.reaching import Reaching
from sandlot.sdk._sync.terminal import Pty
from sandlot.sdk.info import Network, SandboxInfo, Usage
from sandlot.sdk.results import CommandResult, Output
from sandlot.sdk.transcript import Transcript

CREATE_TIMEOUT_S = 30 * 60.0
"""The first sandbox of a template waits until the template's image has been built, which takes minutes."""


class Sandbox(Reaching):
    """An isolated place to run code in.

    ``with Sandbox.create() as sb`` ends it together with the block. Otherwise :meth:`kill` does, or its timeout.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, owns_client: bool, users: set[str] | None = None) -> None:
        super().__init__(client, info)
        self._owns_client = owns_client
        # Forks use the connections of what they came of; the last one closes them.
        self._users = set() if users is None else users
        self._users.add(info.id)
        self.commands = Commands(client, info.id)
        """Commands: :class:`Commands`."""
        self.pty = Pty(client, info.id)
        """Terminals: :class:`Pty`."""
        self.files = Files(client, info.id)
        """Files: :class:`Files`."""

    @classmethod
    def create(  # noqa: PLR0913 - all by name, and each the field's
        cls,
        template: str | None = None,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        persistent: bool = False,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        isolation: str | None = None,
        network: Network | None = None,
        name: str | None = None,
        unique_name: bool = False,
        files: Iterable[str] | None = None,
        snapshot: str | None = None,
        on_timeout: str | None = None,
        auto_resume: bool | None = None,
        volumes: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> Self:
        """Make a sandbox; it runs when this returns.

        Args:
            template: What it starts from, by default ``code-interpreter``.
            timeout: Seconds until it is ended, 300 by default, 7 days at most; :meth:`set_timeout` moves that.
            idle_timeout: Seconds of doing nothing after which it is ended; by default it may idle until its timeout.
            persistent: It has no timeout: it lives until it is killed.
            envs: Environment of everything that runs in it.
            metadata: Your own words, kept with it.
            cpus: Cores, 1 by default; fractions are a share of one core.
            memory: Bytes, or text such as ``512M`` or ``2GiB``; 1 GiB by default.
            disk: What may be written, in the same form; 5 GiB by default.
            pids: Processes and threads, 512 by default.
            isolation: ``auto`` (the default), or a driver by name.
            network: Network policy, as in ``Network("none")``; by default ``Network("packages")``: the package indexes of the service's host.
            name: A name for people.
            unique_name: Whether it is refused while you have a live sandbox of that name.
            files: Ids of files of the file store, which are in ``/workspace`` when this returns.
            snapshot: Id or name of a snapshot to start from; template, limits, isolation and network are its own then.
            on_timeout: What becomes of it at its timeout: ``kill`` (the default), ``pause`` or ``hibernate``.
            auto_resume: Whether the next request resumes it while it is paused or hibernated, as by default; otherwise :meth:`resume` does.
            volumes: Its volumes: path -> name or id, followed by ``:ro`` where it may not write, as in ``{"/data": "sets:ro"}``.
            idempotency_key: A name for this very request, by default a new one: where the connection breaks, the request is sent again under
                the same, and the service makes one sandbox. With your own, that holds for your program's repetitions as well.
            url: The service's address, by default ``SANDLOT_URL`` or the local service.
            api_key: The key, by default ``SANDLOT_API_KEY``.
            client: A connection pool to share, instead of an address and a key; it stays open when the sandbox is closed.

        Raises:
            NotFoundError: There is no such template, or volume.
            InvalidRequestError: A limit, the environment or the timeout is out of bounds.
            UnsupportedError: The service cannot enforce what was asked for, and therefore does not pretend to.
            UnavailableError: No service answers, or its host is full.
            HostError: This machine cannot run sandboxes; the message says what to do.
        """
        body = wire.sandbox_body(
            template=template,
            timeout=timeout,
            idle_timeout=idle_timeout,
            persistent=persistent,
            envs=envs,
            metadata=metadata,
            limits=wire.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids),
            isolation=isolation,
            network=network,
            name=name,
            unique_name=unique_name,
            files=files,
            snapshot=snapshot,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            volumes=volumes,
        )
        headers = wire.once() if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        pool = client or Client(url=url, api_key=api_key)
        try:
            raw = pool.request("POST", "/v1/sandboxes", body=body, headers=headers, once=True, read_timeout_s=CREATE_TIMEOUT_S)
        except BaseException:
            if client is None:
                pool.close()
            raise
        return cls(pool, SandboxInfo.parse(raw), owns_client=client is None)

    @classmethod
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
        """Take hold of a sandbox that lives already; one that is paused or hibernated goes on.

        Args:
            id: Its id.
            timeout: Seconds from now until it is ended; by default that stays as it is.
            resume: Whether one that rests is resumed.
            url: As in :meth:`create`.
            api_key: As in :meth:`create`.
            client: As in :meth:`create`.

        Raises:
            NotFoundError: There was never one of this id.
            SandboxEndedError: It has ended.
        """
        pool = client or Client(url=url, api_key=api_key)
        try:
            info = SandboxInfo.parse(pool.request("GET", f"/v1/sandboxes/{wire.segment(id)}"))
            wire.check_alive(info)
            sandbox = cls(pool, info, owns_client=client is None)
            if resume and info.state in wire.RESTING:
                sandbox.resume(timeout)
            elif timeout is not None:
                sandbox.set_timeout(timeout)
        except BaseException:
            if client is None:
                pool.close()
            raise
        return sandbox

    @classmethod
    def list(
        cls,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ended: bool = False,
        name: str | None = None,
        limit: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> builtins.list[SandboxInfo]:
        """The sandboxes that live now, oldest first: your own, or with an operator's key everybody's.

        ``client.iter_sandboxes`` gives the same one by one, reading page by page.

        Args:
            state: Only those in this state, or in one of these.
            metadata: Only those that have all of these entries.
            ended: Also those that have ended, for as long as the service keeps their records.
            name: Only those of this name.
            limit: So many at most; all of them where left out.
            url: As in :meth:`create`.
            api_key: As in :meth:`create`.
            client: As in :meth:`create`.
        """
        if client is not None:
            return client.sandboxes(state=state, metadata=metadata, ended=ended, name=name, limit=limit)
        with Client(url=url, api_key=api_key) as pool:
            return pool.sandboxes(state=state, metadata=metadata, ended=ended, name=name, limit=limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with backend.shielded():
            self.kill()

    @property
    def id(self) -> str:
        """Its id."""
        return self._info.id

    @property
    def template(self) -> str:
        """What it was made from."""
        return self._info.template

    @property
    def isolation(self) -> str:
        """What isolates it: ``gvisor`` or ``container``."""
        return self._info.isolation

    @property
    def metadata(self) -> Mapping[str, str]:
        """Its owner's words, as this object last heard; :meth:`info` asks."""
        return self._info.metadata

    @property
    def limits(self) -> Limits:
        """What it may use, as this object last heard; :meth:`info` asks."""
        return self._info.limits

    def kill(self: Sandbox | str, *, url: str | None = None, api_key: str | None = None) -> None:
        """End it and remove every trace of it. Doing so twice does no harm.

        ``Sandbox.kill("sb-...")`` ends a sandbox that one only has the id of.

        Args:
            url: Only with an id: as in :meth:`create`.
            api_key: Only with an id: as in :meth:`create`.

        Raises:
            NotFoundError: There was never one of this id.
        """
        if isinstance(self, str):
            with Client(url=url, api_key=api_key) as client:
                client.kill(self)
            return
        try:
            self._client.kill(self.id)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the sandbox lives on until its timeout."""
        self._users.discard(self.id)
        if self._owns_client and not self._users:
            self._client.close()

    def info(self) -> SandboxInfo:
        """Its state, limits and deadline as they are now."""
        self._info = SandboxInfo.parse(self._client.request("GET", self._path))
        return self._info

    def is_running(self) -> bool:
        """Whether it lives, and does not rest."""
        return (self.info()).state == "running"

    def set_timeout(self, timeout: float | None) -> None:
        """End it this many seconds from now, whatever was set before; with None it lives until it is killed."""
        self._change({"persistent": True} if timeout is None else {"timeout": timeout})

    def set_idle_timeout(self, idle_timeout: float | None) -> None:
        """End it once it has done nothing for this many seconds; with None it may idle until its timeout."""
        self._change({"idle_timeout": 0 if idle_timeout is None else idle_timeout})

    def rename(self, name: str, *, unique: bool = False) -> None:
        """Give it another name; with ``unique`` none that another live sandbox of its owner has."""
        self._change({"name": name, "unique_name": unique})

    def update_metadata(self, metadata: Mapping[str, str]) -> Mapping[str, str]:
        """Give it other words of yours, in place of all that it had; they are returned as they are now."""
        self._change({"metadata": dict(metadata)})
        return self._info.metadata

    def set_limits(
        self, *, cpus: float | None = None, memory: int | str | None = None, disk: int | str | None = None, pids: int | None = None
    ) -> Limits:
        """Change what it may use while it runs: all of what is given, or nothing. What is left out stays.

        What runs inside is not told: on ``gvisor`` MemTotal, the number of processors and the size of /dev/shm stay what they were
        at the start, and the new limits hold all the same.

        Args:
            cpus: Cores; fractions are a share of one core.
            memory: Bytes, or text such as ``512M`` or ``2GiB``.
            disk: The same; what this service's drivers cannot change is refused with the reason.
            pids: Processes and threads.

        Returns:
            All of its limits from now on.

        Raises:
            InvalidRequestError: Out of bounds, or more than the node could ever give.
            ConflictError: It uses more than it would be allowed.
            UnsupportedError: This limit cannot be changed while a sandbox runs.
            UnavailableError: The node has not so much to give now, and did not have it for the next seconds either.
            SandboxEndedError: It has ended.
        """
        limits = wire.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids)
        self._change({"limits": limits})
        return self._info.limits

    def usage(self) -> Usage:
        """What it has used of processor time, memory, disk and processes, beside its limits."""
        return Usage.parse(self._client.request("GET", f"{self._path}/usage"))

    def install(
        self,
        packages: str | Sequence[str],
        *,
        manager: str = "pip",
        user: str | None = None,
        timeout: float | None = DEFAULT_INSTALL_TIMEOUT_S,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_output: backend.Callback[Output] | None = None,
    ) -> CommandResult:
        """Install packages; code that runs already can import them afterwards.

        An install that fails is a result like any other: look at ``exit_code``, and at what the package manager says in ``stderr``.

        Args:
            packages: Names, with or without versions as the manager writes them (``requests>=2``, ``lodash@^4``, ``tree``): one, or several.
            manager: ``pip`` (the default), ``npm`` or ``apt``.
            user: Who installs: ``user`` (the default) or ``root``; apt always as root.
            timeout: Seconds until it is ended, 300 by default; None sets no limit but the sandbox's.
            on_stdout: Called with each piece of text of the manager's standard output as it arrives.
            on_stderr: The same for standard error.
            on_output: Called with each piece of either stream as bytes.

        Returns:
            What came of it.

        Raises:
            InvalidRequestError: A word is no package: an option, a path, a URL.
            SandboxEndedError: The sandbox ended, now or before.
        """
        words = [packages] if isinstance(packages, str) else list(packages)
        body = {"manager": manager, "packages": words, "timeout": timeout, **wire.given(user=user)}
        path, headers = f"{self._path}/packages", wire.once()
        if on_stdout is None and on_stderr is None and on_output is None and self._client.waits:
            return CommandResult.parse(self._client.request("POST", path, body=body, headers=headers, once=True, read_timeout_s=None))
        transcript, tries = Transcript(), 0
        while not transcript.over():
            tries += 1
            try:
                with self._client.event_stream("POST", path, body=body, headers=headers) as events:
                    for event in events:
                        piece = transcript.take(event)
                        if isinstance(piece, Output):
                            tries = 1
                            backend.call(on_output, piece)
                            tell(transcript, piece, on_stdout, on_stderr)
                error: SandlotError = cut_short("install")
            except SandlotError as caught:
                error = caught
            if not transcript.over():
                again(error, tries)
        tell_rest(transcript, on_stdout, on_stderr)
        return ended(transcript)

    def set_rest(self, *, on_timeout: str | None = None, auto_resume: bool | None = None) -> None:
        """Change what becomes of it at its timeout, and whether the next request resumes it; what is left out stays. As in :meth:`create`."""
        self._change(wire.given(on_timeout=on_timeout, auto_resume=auto_resume))

    def _another(self, info: SandboxInfo) -> Self:
        return type(self)(self._client, info, owns_client=self._owns_client, users=self._users)

    def _change(self, change: Mapping[str, object]) -> None:
        self._info = SandboxInfo.parse(self._client.request("PATCH", self._path, body=change))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

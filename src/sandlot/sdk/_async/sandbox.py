"""A sandbox: what users of the SDK hold in their hands."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Self, overload

from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, DEFAULT_INSTALL_TIMEOUT_S, Limits
from sandlot.sdk import requests, responses
from sandlot.sdk._async import backend
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk._async.code import AsyncCodeHandle, Callbacks, answered, finished_execution, run
from sandlot.sdk._async.commands import AsyncCommands, cut_short, finished_command, tell, tell_rest
from sandlot.sdk._async.contexts import AsyncContexts
from sandlot.sdk._async.files import AsyncFiles
from sandlot.sdk._async.pty import AsyncPty
from sandlot.sdk._async.transport import wait_before_resuming
from sandlot.sdk._async.tunnels import AsyncForward, AsyncTunnel
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.code import CodeEvent, ExceptionInfo, Execution, Result
from sandlot.sdk.models.contexts import Context, context_id
from sandlot.sdk.models.executions import LogEntry
from sandlot.sdk.models.processes import CommandResult, Output
from sandlot.sdk.models.sandboxes import ListeningPort, Network, SandboxInfo, Usage
from sandlot.sdk.models.snapshots import ForkTree, SnapshotInfo
from sandlot.sdk.transcript import Transcript

CREATE_TIMEOUT_S = 30 * 60.0
"""The first sandbox of a template waits until the template's image has been built, which takes minutes."""
BOTH = "both"
LOCAL_HOST = "127.0.0.1"
WRITTEN_TIMEOUT_S = 10 * 60.0
"""How long the service may take to write a sandbox's memory to a disk, or to read it: it can be many GiB."""


class AsyncSandbox:
    """An isolated place to run code in.

    ``async with await AsyncSandbox.create() as sb`` ends it together with the block. Otherwise :meth:`kill` does, or its timeout.
    """

    def __init__(self, client: AsyncClient, info: SandboxInfo, *, owns_client: bool = False, users: set[str] | None = None) -> None:
        self._client = client
        self._transport = client.transport
        self._info = info
        self._path = f"/v1/sandboxes/{info.id}"
        self._code = f"{self._path}/code"
        self._owns_client = owns_client
        # Forks use the connections of what they came of; the last one closes them.
        self._users = set() if users is None else users
        self._users.add(info.id)
        self.commands = AsyncCommands(self._transport, info.id)
        """Commands: :class:`AsyncCommands`."""
        self.pty = AsyncPty(self._transport, info.id)
        """Terminals: :class:`AsyncPty`."""
        self.files = AsyncFiles(self._transport, info.id)
        """Files: :class:`AsyncFiles`."""
        self.contexts = AsyncContexts(self._transport, f"{self._path}/contexts")
        """Contexts: :class:`AsyncContexts`."""

    @classmethod
    async def create(  # noqa: PLR0913 - all by name, and each the field's
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
        files: Iterable[str] | None = None,
        snapshot: str | None = None,
        on_timeout: str | None = None,
        auto_resume: bool | None = None,
        volumes: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: AsyncClient | None = None,
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
            name: Name of the sandbox, unique among your live sandboxes.
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
        body = requests.sandbox_body(
            template=template,
            timeout=timeout,
            idle_timeout=idle_timeout,
            persistent=persistent,
            envs=envs,
            metadata=metadata,
            limits=requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids),
            isolation=isolation,
            network=network,
            name=name,
            files=files,
            snapshot=snapshot,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            volumes=volumes,
        )
        headers = requests.idempotency_headers() if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        pool = client or AsyncClient(url=url, api_key=api_key)
        try:
            raw = await pool.transport.request("POST", "/v1/sandboxes", body=body, headers=headers, idempotent=True, read_timeout_s=CREATE_TIMEOUT_S)
        except BaseException:
            if client is None:
                await pool.aclose()
            raise
        return cls(pool, structure(SandboxInfo, raw), owns_client=client is None)

    @classmethod
    async def connect(
        cls,
        id: str,  # noqa: A002 - the word of the API
        *,
        timeout: float | None = None,
        resume: bool = True,
        url: str | None = None,
        api_key: str | None = None,
        client: AsyncClient | None = None,
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
        pool = client or AsyncClient(url=url, api_key=api_key)
        try:
            info = await pool.sandboxes.get(id)
            responses.check_alive(info)
            sandbox = cls(pool, info, owns_client=client is None)
            if resume and info.state in responses.SUSPENDED:
                await sandbox.resume(timeout)
            elif timeout is not None:
                await sandbox.set_timeout(timeout)
        except BaseException:
            if client is None:
                await pool.aclose()
            raise
        return sandbox

    @classmethod
    async def list(
        cls,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ended: bool = False,
        name: str | None = None,
        limit: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: AsyncClient | None = None,
    ) -> builtins.list[SandboxInfo]:
        """The sandboxes that live now, oldest first: your own, or with an operator's key everybody's.

        ``client.sandboxes.iter`` gives the same one by one, reading page by page.

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
            return await client.sandboxes.list(state=state, metadata=metadata, ended=ended, name=name, limit=limit)
        async with AsyncClient(url=url, api_key=api_key) as pool:
            return await pool.sandboxes.list(state=state, metadata=metadata, ended=ended, name=name, limit=limit)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with backend.shielded():
            await self.kill()

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

    async def kill(self: AsyncSandbox | str, *, url: str | None = None, api_key: str | None = None) -> None:
        """End it and remove every trace of it. Doing so twice does no harm.

        ``AsyncSandbox.kill("sb-...")`` ends a sandbox that one only has the id of.

        Args:
            url: Only with an id: as in :meth:`create`.
            api_key: Only with an id: as in :meth:`create`.

        Raises:
            NotFoundError: There was never one of this id.
        """
        if isinstance(self, str):
            async with AsyncClient(url=url, api_key=api_key) as client:
                await client.sandboxes.kill(self)
            return
        try:
            await self._client.sandboxes.kill(self.id)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; the sandbox lives on until its timeout."""
        self._users.discard(self.id)
        if self._owns_client and not self._users:
            await self._client.aclose()

    async def info(self) -> SandboxInfo:
        """Its state, limits and deadline as they are now."""
        self._info = structure(SandboxInfo, await self._transport.request("GET", self._path))
        return self._info

    async def is_running(self) -> bool:
        """Whether it lives, and does not rest."""
        return (await self.info()).state == "running"

    async def set_timeout(self, timeout: float | None) -> None:
        """End it this many seconds from now, whatever was set before; with None it lives until it is killed."""
        await self._change({"persistent": True} if timeout is None else {"timeout": timeout})

    async def set_idle_timeout(self, idle_timeout: float | None) -> None:
        """End it once it has done nothing for this many seconds; with None it may idle until its timeout."""
        await self._change({"idle_timeout": 0 if idle_timeout is None else idle_timeout})

    async def rename(self, name: str) -> None:
        """Give the sandbox a name that no other live sandbox of its owner has."""
        await self._change({"name": name})

    async def update_metadata(self, metadata: Mapping[str, str]) -> Mapping[str, str]:
        """Give it other words of yours, in place of all that it had; they are returned as they are now."""
        await self._change({"metadata": dict(metadata)})
        return self._info.metadata

    async def set_limits(
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
        limits = requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids)
        await self._change({"limits": limits})
        return self._info.limits

    async def usage(self) -> Usage:
        """What it has used of processor time, memory, disk and processes, beside its limits."""
        return structure(Usage, await self._transport.request("GET", f"{self._path}/usage"))

    async def install(
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
        body = {"manager": manager, "packages": words, "timeout": timeout, **requests.omit_none(user=user)}
        path, headers = f"{self._path}/packages", requests.idempotency_headers()
        if on_stdout is None and on_stderr is None and on_output is None and self._transport.can_wait_silently:
            return structure(
                CommandResult, await self._transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=None)
            )
        transcript, tries = Transcript(), 0
        while not transcript.over():
            tries += 1
            try:
                async with self._transport.event_stream("POST", path, body=body, headers=headers) as events:
                    async for event in events:
                        piece = transcript.feed(event)
                        if isinstance(piece, Output):
                            tries = 1
                            await backend.call(on_output, piece)
                            await tell(transcript, piece, on_stdout, on_stderr)
                error: SandlotError = cut_short("install")
            except SandlotError as caught:
                error = caught
            if not transcript.over():
                await wait_before_resuming(error, tries)
        await tell_rest(transcript, on_stdout, on_stderr)
        return finished_command(transcript)

    async def set_rest(self, *, on_timeout: str | None = None, auto_resume: bool | None = None) -> None:
        """Change what becomes of it at its timeout, and whether the next request resumes it; what is left out stays. As in :meth:`create`."""
        await self._change(requests.omit_none(on_timeout=on_timeout, auto_resume=auto_resume))

    async def ports(self) -> builtins.list[ListeningPort]:
        """The TCP ports on which something listens inside, by number.

        Raises:
            SandboxEndedError: It has ended.
        """
        told = await self._transport.request("GET", f"{self._path}/ports")
        return [ListeningPort(int(each["port"]), str(each["address"])) for each in told["ports"]]

    async def logs(self, stream: str = BOTH) -> builtins.list[LogEntry]:
        """What its runs wrote, in the order in which they were begun: code and commands, whoever ran them and by which API.

        It comes out of the log of runs, so a sandbox that has ended has it too, for as long as the service keeps that. The newest 200 runs are told,
        of a mebibyte of text at most, and of each stream of a run its beginning and its end. What a process in the background writes is there once
        it has ended; ``commands`` has it before.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.
        """
        told = await self._transport.request("GET", f"{self._path}/logs", params=requests.omit_none(stream=stream))
        return structure_list(LogEntry, told, "entries")

    async def follow_logs(self, stream: str = BOTH) -> AsyncIterator[LogEntry]:
        """The same, and then what they write as they write it, until the sandbox ends or you stop iterating. It is not kept from being idle.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.

        Raises:
            UnavailableError: The service is gone, or the connection was cut.
        """
        async with self._transport.event_stream("GET", f"{self._path}/logs", params=requests.omit_none(stream=stream)) as events:
            async for event in events:
                if event.name in {"entry", "output", "lost"}:
                    yield structure(LogEntry, event.data)
                elif event.name == "ended":
                    return
        raise UnavailableError(
            "The log was cut off before the sandbox ended.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Follow it again: it begins anew."
        )

    @overload
    async def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        background: Literal[False] = False,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution: ...

    @overload
    async def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        background: Literal[True],
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> AsyncCodeHandle: ...

    async def run_code(  # noqa: PLR0913 - all by name, and each the field's
        self,
        code: str,
        language: str | None = None,
        *,
        background: bool = False,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution | AsyncCodeHandle:
        """Run code in a context, where variables, imports and functions of the calls before are still there.

        Code that raises is a result like any other: look at ``error``. Cells of one context run one after another.

        Args:
            code: The code, 4 MiB at most.
            language: ``python``, ``bash`` or ``javascript``; by default the context's, or ``python``.
            background: Return at once with a handle instead of waiting for the end.
            context: Where, of ``sandbox.contexts``; by default the one of the language that is there always.
            timeout: Seconds from when its turn came until it is interrupted, 60 by default; None sets no limit but the sandbox's.
            envs: Environment variables for this run.
            silent: It leaves no trace: no execution count, no history, no value of its last expression.
            store_history: Whether it takes a place in the context's history and raises its execution count.
            stop_on_error: Where it fails, the cells that wait behind it never run.
            on_stdout: Called with each piece of text of standard output as it arrives; in the background by :meth:`AsyncCodeHandle.wait`.
            on_stderr: The same for standard error.
            on_result: Called with each rich result as it arrives.
            on_error: Called with the exception that ended the code.

        Returns:
            What came of it; in the background, a handle.

        Raises:
            SandboxEndedError: The sandbox ended, now or before.
            NotFoundError: ``context_not_found``.
            UnsupportedError: The sandbox has no interpreter for this language.
        """
        body = _body(code, language, context, timeout, envs, silent=silent, store_history=store_history, stop_on_error=stop_on_error)
        callbacks = Callbacks(on_stdout, on_stderr, on_result, on_error)
        if background:
            answer = await self._transport.request(
                "POST", self._code, body={**body, "background": True}, headers=requests.idempotency_headers(), idempotent=True
            )
            return AsyncCodeHandle(self._transport, self._code, Transcript(id=str(answer["execution"])), callbacks)
        if not callbacks and self._transport.can_wait_silently:
            return await answered(self._transport, self._code, body, requests.idempotency_headers())
        transcript = Transcript()
        async with aclosing(run(self._transport, self._code, body, transcript, requests.idempotency_headers())) as pieces:
            async for piece in pieces:
                await callbacks.tell(transcript, piece)
        await tell_rest(transcript, on_stdout, on_stderr)
        return finished_execution(transcript)

    async def stream_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
    ) -> AsyncGenerator[CodeEvent]:
        """Run code, and iterate what it tells as it comes. Who stops iterating interrupts it.

        Args:
            code: As in :meth:`run_code`.
            language: As in :meth:`run_code`.
            context: As in :meth:`run_code`.
            timeout: As in :meth:`run_code`.
            envs: As in :meth:`run_code`.
            silent: As in :meth:`run_code`.
            store_history: As in :meth:`run_code`.
            stop_on_error: As in :meth:`run_code`.

        Yields:
            Started, Output, Result, Cleared and ExceptionInfo as they come, and the Execution as the last.
        """
        body = _body(code, language, context, timeout, envs, silent=silent, store_history=store_history, stop_on_error=stop_on_error)
        transcript = Transcript()
        async with aclosing(run(self._transport, self._code, body, transcript, requests.idempotency_headers())) as pieces:
            async for piece in pieces:
                yield piece
        yield finished_execution(transcript)

    def attach_code(self, id: str, *, events_from: int = 0, stdout_from: int = 0, stderr_from: int = 0) -> AsyncCodeHandle:  # noqa: A002 - the word
        """A handle for a cell that was begun before, running or done, also by somebody else or before a restart of the service.

        Args:
            id: The execution's id.
            events_from: How many of its events that are no output have been seen.
            stdout_from: Byte of its standard output that the handle reads first.
            stderr_from: The same of its standard error.
        """
        transcript = Transcript(id=id, events=events_from)
        transcript.stdout.offset, transcript.stderr.offset = stdout_from, stderr_from
        return AsyncCodeHandle(self._transport, self._code, transcript, Callbacks())

    async def create_code_context(self, cwd: str | None = None, language: str | None = None, envs: Mapping[str, str] | None = None) -> Context:
        """``contexts.create`` by the name that it has elsewhere."""
        return await self.contexts.create(language or "python", cwd=cwd, envs=envs)

    async def pause(self) -> None:
        """Freeze it where it is: nothing in it runs, its memory stays, its timeout stands still.

        The next request to it resumes it by itself, unless it was made with ``auto_resume=False``. Pausing a paused one does no harm.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: It is hibernated: it rests already, more deeply.
        """
        await self._verb("pause")

    async def resume(self, timeout: float | None = None) -> None:
        """Let a paused or hibernated one go on, exactly where it was; one that runs is left as it is.

        Args:
            timeout: Seconds from now until its timeout; by default as many as were last set.

        Raises:
            SandboxEndedError: It has ended.
            UnavailableError: The node has no room for its memory now.
        """
        await self._verb("resume", requests.omit_none(timeout=timeout))

    async def hibernate(self) -> None:
        """Write its memory to the service's disk and give it back; the next request, or :meth:`wake`, has it go on where it was.

        Connections into it (streams that are read, terminals) are cut; what runs inside is not. Hibernating a hibernated one does no harm.

        Raises:
            SandboxEndedError: It has ended.
            UnsupportedError: Its isolation cannot; says why.
            LimitError: The disk is full; it goes on as if nothing had been asked.
        """
        await self._verb("hibernate")

    async def wake(self, timeout: float | None = None) -> None:
        """Let a hibernated one go on: :meth:`resume` by the word that goes with :meth:`hibernate`.

        Args:
            timeout: As in :meth:`resume`.
        """
        await self._verb("wake", requests.omit_none(timeout=timeout))

    async def snapshot(self, name: str | None = None, kind: str = "memory", *, idempotency_key: str | None = None) -> SnapshotInfo:
        """Keep what it is at this moment; it goes on undisturbed. ``AsyncSandbox.create(snapshot=...)`` starts others from it, also after its end.

        Args:
            name: What to call it: unique among your snapshots; by default nothing, and its id finds it.
            kind: ``memory`` (memory and files: what is started from it goes on in the middle of everything) or ``files`` (what is started from
                it boots, and finds the files).
            idempotency_key: As in ``AsyncSandbox.create``.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: A snapshot of yours has that name.
            UnsupportedError: Its isolation cannot; says why, and ``files`` may still do.
            LimitError: The disk is full; nothing is left of the snapshot.
        """
        return structure(SnapshotInfo, await self._made("snapshot", requests.omit_none(name=name, kind=kind), idempotency_key))

    async def fork(
        self,
        count: int = 1,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        share_volumes: bool = False,
        idempotency_key: str | None = None,
    ) -> builtins.list[Self]:
        """Make sandboxes that are what it is at this moment: kernels with their variables, processes, files. It goes on undisturbed.

        From then on all of them are independent, draw random numbers of their own, and end by themselves. There are all of them, or none.

        Args:
            count: How many, 1 to 100.
            name: Name of the fork, unique among your live sandboxes; of several forks, ``-1``, ``-2`` and so on are appended.
            metadata: Words of yours, in place of its own.
            envs: Added to its environment, for what is started in the forks.
            timeout: Seconds until they end, by default its own.
            share_volumes: Whether they share the volumes that it writes to; without it such a fork is refused. Read-only ones are shared.
            idempotency_key: As in ``AsyncSandbox.create``.

        Returns:
            They: always a list, also of one.

        Raises:
            SandboxEndedError: It has ended.
            ConflictError: It writes to a volume, and that is not to be shared.
            UnsupportedError: Its isolation cannot; says why.
            UnavailableError: The node has no room for so many now.
        """
        body = requests.omit_none(
            count=count,
            name=name,
            metadata=None if metadata is None else dict(metadata),
            env=None if envs is None else dict(envs),
            timeout=timeout,
            share_volumes=share_volumes or None,
        )
        answer = await self._made("fork", body, idempotency_key)
        return [self._another(info) for info in structure_list(SandboxInfo, answer, "sandboxes")]

    async def attach_volume(self, volume: str, path: str, *, read_only: bool = False) -> None:
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
        await self._verb("volumes", requests.omit_none(volume=volume, path=path, read_only=read_only or None))

    async def detach_volume(self, path: str) -> None:
        """Take a volume away from it; what is in the volume stays.

        Args:
            path: The folder that it is; or the volume's name or id.

        Raises:
            SandboxEndedError: It has ended.
            NotFoundError: It has no such volume.
            ConflictError: Something inside has a file of it open, or works in it; or it is being forked.
            UnsupportedError: Its isolation cannot; says why.
        """
        answer = await self._transport.request("DELETE", f"{self._path}/volumes", params={"path": path}, read_timeout_s=WRITTEN_TIMEOUT_S)
        self._info = structure(SandboxInfo, answer)

    async def tree(self) -> ForkTree:
        """The forks that it belongs to: those that it came of, and those that came of it."""
        return structure(ForkTree, await self._transport.request("GET", f"{self._path}/tree"))

    async def promote(self) -> builtins.list[str]:
        """Keep this one and end its siblings: the other forks of its parent, and what came of them. The parent lives on.

        Returns:
            The ids of those that were ended.

        Raises:
            ConflictError: It is nobody's fork.
        """
        answer = await self._transport.request("POST", f"{self._path}/promote", idempotent=True, read_timeout_s=WRITTEN_TIMEOUT_S)
        return [str(each) for each in answer["ended"]]

    async def _verb(self, verb: str, body: Mapping[str, Any] | None = None) -> None:
        path = f"{self._path}/{verb}"
        self._info = structure(SandboxInfo, await self._transport.request("POST", path, body=body, idempotent=True, read_timeout_s=WRITTEN_TIMEOUT_S))

    async def _made(self, verb: str, body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
        headers = requests.idempotency_headers() if key is None else {"Idempotency-Key": key}
        path = f"{self._path}/{verb}"
        return await self._transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=WRITTEN_TIMEOUT_S)

    async def tunnel(self, port: int) -> AsyncTunnel:
        """Connect to what listens on a port inside: on the sandbox's own loopback, so that it needs no network.

        Args:
            port: 1 to 65535.

        Raises:
            InvalidRequestError: There is no such port.
            NotFoundError: ``port_not_found``: nothing listens there.
            LimitError: It has 64 connections already.
            TimeoutExceededError: What listens there accepts nobody for 10 s.
            ConflictError: ``sandbox_paused``: it rests and is not resumed by being used.
            SandboxEndedError: It has ended.
        """
        return await AsyncTunnel.open(self._transport, self._info.id, port)

    async def forward(
        self, port: int, local_port: int = 0, *, host: str = LOCAL_HOST, on_error: backend.Callback[SandlotError] | None = None
    ) -> AsyncForward:
        """Listen on this machine, and carry every connection to a port inside.

        Args:
            port: Inside, 1 to 65535. What listens there may come later.
            local_port: Here; 0 is any that is free, which :attr:`AsyncForward.local_port` tells.
            host: Where to listen; whoever reaches that reaches the port inside.
            on_error: Called where a connection cannot be carried, for example because nothing listens inside.

        Raises:
            OSError: The local port is somebody else's.
        """
        return await AsyncForward(self._transport, self._info.id, port, host, on_error).begin(local_port)

    def _another(self, info: SandboxInfo) -> Self:
        return type(self)(self._client, info, owns_client=self._owns_client, users=self._users)

    async def _change(self, change: Mapping[str, object]) -> None:
        self._info = structure(SandboxInfo, await self._transport.request("PATCH", self._path, body=change))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


def _body(
    code: str, language: str | None, context: Context | str | None, timeout: float | None, envs: Mapping[str, str] | None, **flags: bool
) -> dict[str, Any]:
    """The body that runs code; ``timeout`` None is sent, because it means "no limit"."""
    words = requests.omit_none(language=language, context=context_id(context), env=None if envs is None else dict(envs))
    return {"code": code, "timeout": timeout, **words, **{name: flag for name, flag in flags.items() if flag is not (name == "store_history")}}

"""Runs the plan of one build in sandboxes of its owner.

Invariants:
- Each stage has a sandbox, which is started only if a step must run. All sandboxes of the build end with it.
- What a command does, writes or leaves behind stays in its sandbox. The files of the last stage leave it once, at the end, as one layer.
- The key of every step is known before anything runs, so that an unchanged build starts no sandbox at all.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from sandlot.builds import copying, overlays
from sandlot.builds.bases import BaseResolver, BaseRoot
from sandlot.builds.context import Context, Item, empty_context, read_context
from sandlot.builds.copying import CopyStream, Destination, Renamed
from sandlot.builds.layer_maker import LayerMaker
from sandlot.builds.limits import CHUNK_BYTES, BuildLimits
from sandlot.builds.log import BuildLog, OutputLines
from sandlot.builds.overlays import FileEnd, FileRecord, OverlayReader
from sandlot.builds.patterns import ComparisonBudget, NamePattern, has_wildcards
from sandlot.builds.plan import (
    DEFAULT_SHELL,
    BuildPlan,
    Copy,
    Env,
    FixedSteps,
    ImageBase,
    Run,
    SetUser,
    Shell,
    Stage,
    StageBase,
    Start,
    Step,
    WorkingDirectory,
)
from sandlot.builds.step_cache import StepCache, base_key, step_key
from sandlot.core.node import Node
from sandlot.core.ports import Clock
from sandlot.host.blocking import outlast_cancellation, run_blocking, run_in_own_thread
from sandlot.model.access import INTERNAL, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.executions import Output, ProcessEnded, ProcessOutcome
from sandlot.model.images import ImageConfig, Layer
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import ExitReason
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, UpdateSandboxParams
from sandlot.model.specs import ProcessSpec, User
from sandlot.model.templates import BuildRecord, BuiltRoot, TemplateSettings
from sandlot.protocol.tar import PATH_BYTES

BUILD: Final = "sandlot.build"
"""Key in the metadata of a sandbox: id of the build that uses it."""
EXTRA_S: Final = 600.0
"""Seconds that the sandboxes of a build can live longer than the build may take."""
_NO_ROOM: Final = frozenset({ErrorCode.BUSY, ErrorCode.LIMIT_EXCEEDED, ErrorCode.QUOTA_EXCEEDED, ErrorCode.NODE_DISK_FULL})
"""Codes of errors with which a good snapshot cannot be restored now."""
MAX_MATCHES: Final = 10_000
"""Maximum number of paths to which the sources of one copy expand."""
_ENDS: Final[Mapping[str, str]] = {
    ExitReason.OOM: "The sandbox of the build had no memory left.",
    ExitReason.DISK: "The disk of the sandbox of the build was full.",
}
_CREATE_USER: Final = (
    'id -u "$1" >/dev/null 2>&1 || useradd -m -s /bin/bash "$1" 2>/dev/null || adduser -D "$1" 2>/dev/null || '
    '{ echo "the image has no program that creates the user $1" >&2; exit 1; }'
)
_CREATE_SECOND_USER: Final = (
    'id -u "$1" >/dev/null 2>&1 || { groupadd --non-unique --gid 1000 "$1" && '
    'useradd --non-unique --uid 1000 --gid "$1" --create-home --shell /bin/bash "$1"; }'
)
"""Commands that add a user with the same id as the user of the built-in templates, whose files belong to both."""


@dataclass(frozen=True, slots=True)
class _State:
    """State of a stage beside its files: everything else that steps change.

    Args:
        starts: True once a step has set the program to start.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = "/"
    shell: tuple[str, ...] = DEFAULT_SHELL
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    starts: bool = False

    def key_parts(self) -> Mapping[str, Any]:
        """Return everything on which commands depend, as JSON values for the key of a step."""
        return {"env": dict(self.env), "user": self.user, "folder": self.folder, "shell": self.shell}


@dataclass(frozen=True, slots=True)
class _PlannedStep:
    """A step with the state before it, and the key after it."""

    step: Step
    state: _State
    key: str


@dataclass(slots=True)
class _StageRun:
    """A stage, its steps and its sandbox.

    Args:
        base: Base of the stage; for ``FROM STAGE``, the base of that stage.
        below: Index of the stage that FROM names; None if FROM names an image.
        start_key: Key of the base.
        sandbox: Id of the sandbox, once it has run all steps.
    """

    stage: Stage
    base: BaseRoot
    below: int | None
    start_key: str
    steps: list[_PlannedStep]
    final: _State
    sandbox: str = ""

    @property
    def key(self) -> str:
        return self.steps[-1].key if self.steps else self.start_key


class Executor:
    """One build."""

    def __init__(
        self,
        node: Node,
        principal: Principal,
        build: BuildRecord,
        plan: BuildPlan,
        bases: BaseResolver,
        layer_maker: LayerMaker,
        cache: StepCache,
        log: BuildLog,
        limits: BuildLimits,
        clock: Clock,
    ) -> None:
        self._node = node
        self._principal = principal
        self._build = build
        self._plan = plan
        self._bases = bases
        self._layer_maker = layer_maker
        self._cache = cache
        self._log = log
        self._limits = limits
        self._clock = clock
        self._stages: dict[int | str, _StageRun] = {}
        self._contexts: dict[str, Context] = {}
        self._comparisons = ComparisonBudget()
        self._sandboxes: set[str] = set()

    async def execute(self) -> BuildRecord:
        """Run the plan, and return the build with its root file system and its settings. Remove all sandboxes of the build.

        Raises:
            SandlotError: A step failed. The message names the step, its exit code and the last lines of its output.
        """
        async with AsyncExitStack() as opened:
            opened.push_async_callback(self._close)
            for warning in self._plan.warnings:
                self._log.warn(warning)
            await self._log.step("base", "Preparing the base")
            for index in self._plan.needed():
                self._stages[index] = await self._plan_stage(index)
            last = self._stages[len(self._plan.stages) - 1]
            layer = None if self._plan.ignores_cache else await self._cache.find_layer(last.key, self._layer_maker.layers)
            if layer is None:
                await self._run(last)
                await self._log.step("finalize", "Saving the files of the template")
                layer = await self._save_layer(last)
            else:
                for planned in last.steps:
                    self._log.add(f"CACHED {planned.step.text}")
                await self._log.step("finalize", "Nothing has changed")
            return replace(self._build, root=_add_layer(last.base.root, layer), settings=self._settings(last.final))

    async def _close(self) -> None:
        await outlast_cancellation(self._clean_up())

    async def _clean_up(self) -> None:
        """Remove the sandboxes of the build, and the temporary files of its contexts."""
        for context in self._contexts.values():
            await run_blocking(context.close)
        while self._sandboxes:
            sandbox = next(iter(self._sandboxes))
            with suppress(NotFoundError):
                await self._node.sandboxes.kill(self._principal, sandbox)
            self._sandboxes.discard(sandbox)

    # Planning --------------------------------------------------------------------------------------------------------

    async def _plan_stage(self, index: int) -> _StageRun:
        """Find the base of a stage, and plan the steps of the stage. The stages below are planned already."""
        stage, below = self._plan.stages[index], None
        if isinstance(stage.base, StageBase):
            below = stage.base.stage
            lower = self._stages[below]
            base, state, start_key = lower.base, replace(lower.final, shell=DEFAULT_SHELL), lower.key
            config = replace(base.config, env=state.env, user=state.user, working_dir=state.folder)
        else:
            base = await self._bases.resolve(self._principal, stage.base, self._log.add)
            config = base.config
            state = _State(config.env, config.user, config.working_dir or "/", DEFAULT_SHELL, config.entrypoint, config.cmd)
            limits = self._build.limits
            start_key = step_key(
                base_key(self._build.owner, base.key), {"memory": limits.memory_bytes, "cpus": limits.cpus, "disk": limits.disk_bytes}
            )
        if index == len(self._plan.stages) - 1:
            state = replace(state, user=self._plan.user or state.user, folder=self._plan.working_dir or state.folder)
        steps, final = await self._plan_steps(stage, config, state, start_key)
        return _StageRun(stage, base, below, start_key, steps, final)

    async def _plan_steps(self, stage: Stage, config: ImageConfig, state: _State, key: str) -> tuple[list[_PlannedStep], _State]:
        """Return the steps of a stage with their keys, and the state after the last one.

        Args:
            stage: Stage to plan.
            config: Configuration of the base.
            state: State before the first step.
            key: Key of the base.
        """
        steps = []
        for step in await run_in_own_thread(stage.source.steps, config):
            try:
                parts = await self._key_parts(step, state)
            except SandlotError as error:
                await self._log.step(step.label, step.text)
                raise _failed(step, error) from error
            key = key if parts is None else step_key(key, {**parts, **state.key_parts()})
            steps.append(_PlannedStep(step, state, key))
            state = _state_after(step, state)
        return steps, state

    async def _key_parts(self, step: Step, state: _State) -> Mapping[str, Any] | None:
        """Return everything on which the files after a step depend, as JSON values for its key; None if the step changes no file."""
        match step.action:
            case Run() as run:
                stdin = None if run.stdin is None else hashlib.sha256(run.stdin).hexdigest()
                return {"run": run.command, "with": dict(run.env), "as": run.user, "stdin": stdin, "network": run.has_network}
            case Copy() as copy:
                about = (copy.sources, copy.destination, copy.owner, copy.mode, copy.unpack, copy.follow)
                files = [(file.name, hashlib.sha256(file.content).hexdigest()) for file in copy.files]
                return {"copy": about, "files": files, "from": await self._origin_key(copy)}
            case WorkingDirectory(path=path):
                return {"folder": copying.absolute(path, state.folder)}
            case SetUser(user=user, creates=True):
                return {"user": user}
            case _:
                return None

    async def _origin_key(self, copy: Copy) -> str:
        if isinstance(copy.origin, str):
            context = await self._context(copy.origin)
            items = await run_in_own_thread(_find_all, context, copy)
            return (await run_blocking(context.digest, items)).hex()
        return (await self._origin(copy.origin)).key

    async def _origin(self, origin: int | ImageBase) -> _StageRun:
        """Return the stage from which a step copies; an image becomes a stage without steps."""
        if isinstance(origin, int):
            return self._stages[origin]
        known = self._stages.get(origin.reference)
        if known is None:
            base = await self._bases.resolve(self._principal, origin, self._log.add)
            start = base_key(self._build.owner, base.key)
            known = self._stages[origin.reference] = _StageRun(Stage(origin, FixedSteps()), base, None, start, [], _State())
        return known

    async def _context(self, name: str) -> Context:
        if name not in self._contexts:
            archive = self._plan.contexts.get(name)
            if archive is None and name:
                raise NotFoundError("The files of this step were not uploaded.", hint="Upload the files, and start the build again.")
            if archive is None:
                self._contexts[name] = empty_context()
            else:
                self._contexts[name] = await run_in_own_thread(
                    read_context, archive, self._layer_maker.temporary, self._limits, self._comparisons, ignores=not name
                )
        return self._contexts[name]

    # Running ---------------------------------------------------------------------------------------------------------

    async def _run(self, run: _StageRun) -> None:
        """Run the steps of a stage that the cache does not have."""
        if run.sandbox:
            return
        sandbox, done = await self._start(run)
        for number, planned in enumerate(run.steps):
            step = planned.step
            await self._log.step(step.label, f"CACHED {step.text}" if number < done else step.text)
            if step.warning:
                self._log.warn(step.warning)
            if number < done:
                continue
            began_s = self._clock.monotonic_s()
            try:
                await self._execute(sandbox, planned)
            except SandlotError as error:
                raise _failed(step, error) from error
            if self._clock.monotonic_s() - began_s >= self._limits.cached_step_s:
                await self._cache.save(self._principal, sandbox, self._build.owner, planned.key)
        run.sandbox = sandbox

    async def _start(self, run: _StageRun) -> tuple[str, int]:
        """Start the sandbox of a stage. Return its id, and the number of steps that it has done already."""
        if not self._plan.ignores_cache:
            for number in range(len(run.steps), 0, -1):
                key = run.steps[number - 1].key
                if number < len(run.steps) and key == run.steps[number].key:
                    continue  # the step changes no file
                snapshot = await self._cache.find(self._build.owner, key)
                if snapshot is not None:
                    try:
                        return await self._create(snapshot=snapshot.id), number
                    except SandlotError as error:
                        if error.code not in _NO_ROOM:  # it is damaged, cannot be restored here, or was just removed
                            await self._cache.forget(snapshot)
        if run.below is not None:
            below = self._stages[run.below]
            await self._run(below)
            (child,) = await self._node.sandboxes.fork(self._principal, below.sandbox, ForkParams(metadata={BUILD: self._build.id}))
            self._sandboxes.add(child.id)
            return child.id, 0
        return await self._start_from_base(run), 0

    async def _start_from_base(self, run: _StageRun) -> str:
        sandbox = await self._create(template=run.base.template)
        digest = (await self._node.sandboxes.get(self._principal, sandbox)).spec.template.digest
        if run.base.digests and digest not in run.base.digests:
            raise ConflictError(f"The template {run.base.template} was updated during the build.", hint="Start the build again.")
        if run.base.user:
            await self._command(sandbox, Run(("/bin/sh", "-c", _CREATE_SECOND_USER, "sh", run.base.user), user="root"), _State())
        folder = (run.steps[0].state if run.steps else run.final).folder
        if folder != "/":  # an image can name a working directory that none of its layers has
            await self._node.files.make_directory(self._principal, sandbox, folder, user=User.ROOT)
        return sandbox

    async def _create(self, **source: str) -> str:
        lifetime_s = self._principal.quota.lifetime_s
        timeout_s = self._limits.build_s + EXTRA_S
        params = CreateSandboxParams(
            metadata={BUILD: self._build.id},
            limits=LimitsChange.to(self._build.limits),
            timeout_s=timeout_s if lifetime_s is None else min(timeout_s, lifetime_s),
            network=self._limits.network,
            cwd="/" if "template" in source else None,
            **source,  # type: ignore[arg-type]
        )
        info = await self._node.sandboxes.create(self._principal, params, single_use=True, snapshot_owner=INTERNAL)
        self._sandboxes.add(info.id)
        return info.id

    async def _execute(self, sandbox: str, planned: _PlannedStep) -> None:
        state = planned.state
        match planned.step.action:
            case Run() as run:
                await self._command(sandbox, run, state)
            case Copy() as copy:
                await self._copy(sandbox, copy, state)
            case WorkingDirectory(path=path):
                await self._node.files.make_directory(
                    self._principal, sandbox, copying.absolute(path, state.folder), user=User.ROOT, owner=_user(state.user)
                )
            case SetUser(user=user, creates=True):
                await self._command(sandbox, Run(("/bin/sh", "-c", _CREATE_USER, "sh", user.partition(":")[0]), user="root"), _State())
            case _:
                return

    async def _command(self, sandbox: str, run: Run, state: _State) -> None:
        argv = run.command if isinstance(run.command, tuple) else (*state.shell, run.command)
        spec = ProcessSpec(argv, {**state.env, **run.env}, state.folder, _user(run.user or state.user), timeout_s=None)
        network = None
        if not run.has_network:
            network = (await self._node.sandboxes.get(self._principal, sandbox)).spec.network
            await self._set_network(sandbox, NetworkPolicy(NetworkMode.NONE))
        lines = OutputLines(self._log)
        outcome: ProcessOutcome | None = None
        stream = await self._node.processes.stream(self._principal, sandbox, spec, stdin=run.stdin or b"")
        try:
            async for event in stream:
                if isinstance(event, Output):
                    lines.feed(event.channel, event.data)
                elif isinstance(event, ProcessEnded):
                    outcome = event.outcome
        finally:
            await stream.aclose()
        lines.finish()
        if network is not None:
            await self._set_network(sandbox, network)
        if outcome is None:
            raise ConflictError("The command has ended without a result.", hint="Start the build again.")
        if outcome.exit_code:
            raise _exit_error(outcome, lines.tail_text())

    async def _set_network(self, sandbox: str, network: NetworkPolicy) -> None:
        await self._node.sandboxes.update(self._principal, sandbox, UpdateSandboxParams(network=network))

    # Copying ---------------------------------------------------------------------------------------------------------

    async def _copy(self, sandbox: str, copy: Copy, state: _State) -> None:
        if isinstance(copy.origin, str):
            context = await self._context(copy.origin)
            items = await run_in_own_thread(_find_all, context, copy)
            to = await self._destination(sandbox, copy, state, len(items) + len(copy.files))
            stream = CopyStream(copy, to).from_context(context, items, self._layer_maker.temporary, self._limits)
            await self._node.files.copy_files(self._principal, sandbox, _in_threads(stream), owner=copy.owner)
            return
        origin = await self._origin(copy.origin)
        await self._run(origin)
        found = [each for source in copy.sources for each in await self._find(origin.sandbox, source)]
        to = await self._destination(sandbox, copy, state, len(found) + len(copy.files))
        await self._node.files.copy_files(self._principal, sandbox, self._between(origin.sandbox, copy, to, found), owner=copy.owner)

    async def _destination(self, sandbox: str, copy: Copy, state: _State, number: int) -> Destination:
        path = copying.absolute(copy.destination, state.folder)
        try:
            entry = await self._node.files.stat(self._principal, sandbox, path, user=User.ROOT)
        except NotFoundError:
            return copying.destination(copy, state.folder, number=number, exists_as_folder=False)
        return copying.destination(copy, state.folder, number=number, exists_as_folder=entry.kind == "directory")

    async def _find(self, sandbox: str, source: str) -> list[tuple[str, Item]]:
        """Return the real paths in another sandbox that a source names, at least one. The items have name and kind."""
        if len(source) > PATH_BYTES:
            raise InvalidRequestError(f"The path {source[:64]!r}… has {len(source)} characters.", hint=f"Use at most {PATH_BYTES} characters.")
        paths = [""]
        for is_pattern, parts in groupby(copying.absolute(source, "/").strip("/").split("/"), has_wildcards):
            if is_pattern:
                for part in parts:
                    paths = await self._matching(sandbox, paths, NamePattern(part))
            else:
                below = "/".join(parts)
                paths = [f"{path}/{below}" for path in paths]
        found = []
        for path in paths:
            try:
                entry = await self._node.files.resolve(self._principal, sandbox, path, user=User.ROOT)
            except NotFoundError:
                continue
            found.append((entry.path, Item(path.rpartition("/")[2], entry.kind)))
        if not found:
            raise InvalidRequestError(f"The other stage or image has no file {source[:200]!r}.", hint="Check the path.")
        return found

    async def _matching(self, sandbox: str, folders: Sequence[str], pattern: NamePattern) -> list[str]:
        """Return the paths in folders of a sandbox whose names match a pattern."""
        found: list[str] = []
        for folder in folders:
            names = await self._names(sandbox, folder or "/")
            matching = await run_blocking(lambda: [each for each in names if pattern.matches(each, self._comparisons)])  # noqa: B023
            found += [f"{folder}/{name}" for name in matching]
            if len(found) > MAX_MATCHES:
                raise LimitError(f"A pattern names more than {MAX_MATCHES} files.", hint="Copy the folder.")
        return found

    async def _names(self, sandbox: str, path: str) -> list[str]:
        names: list[str] = []
        with suppress(NotFoundError, InvalidRequestError):
            while True:
                page = await self._node.files.list(self._principal, sandbox, path, offset=len(names), user=User.ROOT)
                names += [entry.name for entry in page.entries]
                if not page.more or len(names) > MAX_MATCHES:
                    break
        return names

    async def _between(self, source: str, copy: Copy, to: Destination, found: list[tuple[str, Item]]) -> AsyncIterator[bytes]:
        """Yield files of one sandbox for another one, without keeping them on the host."""
        stream = CopyStream(copy, to)
        for data in stream.begin():
            yield data
        renamed = Renamed([(path, to.of(item.name, is_folder=item.kind == "directory")) for path, item in found])
        reader = OverlayReader(self._limits.layer_bytes, self._limits.layer_entries)
        changes = await self._node.files.collect(self._principal, source, [path for path, _ in found])
        is_kept = False
        try:
            async for data in changes:
                batch = bytearray()
                for event in reader.feed(data):
                    if isinstance(event, FileRecord):
                        record = _renamed(event, renamed)
                        is_kept = record is not None
                        batch += b"" if record is None else stream.entry(record if record.kind == "symlink" else stream.changed(record))
                    elif is_kept:
                        batch += overlays.CONTENT_END if isinstance(event, FileEnd) else overlays.piece(event)
                    if len(batch) >= CHUNK_BYTES:
                        yield bytes(batch)
                        batch.clear()
                if batch:
                    yield bytes(batch)
            reader.close()
        finally:
            await changes.aclose()
        for file in copy.files:
            yield stream.entry(stream.changed(FileRecord("file", to.of(file.name, is_folder=False).encode(), mode=copying.DEFAULT_FILE_MODE)))
            yield overlays.piece(file.content) + overlays.CONTENT_END
        yield stream.end()

    # The end ---------------------------------------------------------------------------------------------------------

    async def _save_layer(self, run: _StageRun) -> Layer:
        """Store the files that a stage has changed as a layer."""
        changes = await self._node.snapshots.stream_changes(self._principal, run.sandbox)
        layer = await self._layer_maker.make(changes, OverlayReader(self._limits.layer_bytes, self._limits.layer_entries))
        await self._cache.save_layer(run.key, layer)
        return layer

    def _settings(self, state: _State) -> TemplateSettings:
        start = self._plan.start_command
        if not start and state.starts:
            start = shlex.join((*state.entrypoint, *state.cmd))
        return TemplateSettings(state.env, state.user, state.folder, start, self._plan.ready_command)


def _state_after(step: Step, state: _State) -> _State:
    """Return the state after a step. Pure."""
    match step.action:
        case Env(values=values):
            return replace(state, env={**state.env, **values})
        case WorkingDirectory(path=path):
            return replace(state, folder=copying.absolute(path, state.folder))
        case SetUser(user=user):
            return replace(state, user=user)
        case Shell(argv=argv):
            return replace(state, shell=argv)
        case Start(entrypoint=entrypoint, cmd=cmd):
            # A new entrypoint has no arguments, unless a step of the plan has set them.
            arguments = state.cmd if entrypoint is None or state.starts else ()
            return replace(
                state,
                entrypoint=state.entrypoint if entrypoint is None else entrypoint,
                cmd=arguments if cmd is None else cmd,
                starts=True,
            )
        case _:
            return state


def _find_all(context: Context, copy: Copy) -> list[Item]:
    """Return the entries of a context that the sources of a copy name. Blocks."""
    return [item for source in copy.sources for item in context.find(source, follow=copy.follow)]


def _user(user: str) -> User:
    return User(user or "root")


def _add_layer(root: BuiltRoot, layer: Layer) -> BuiltRoot:
    return replace(root, layers=(*root.layers, layer), size_bytes=root.size_bytes + layer.size_bytes)


def _renamed(record: FileRecord, renamed: Renamed) -> FileRecord | None:
    path = renamed.path(record.path)
    if path is None or path == b"/" or record.kind == "gone":
        return None
    if record.kind != "link":
        return replace(record, path=path)
    target = renamed.path(record.target)
    return None if target is None else replace(record, path=path, target=target)


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of a blocking iterator in batches."""

    def batch() -> bytes:
        data = bytearray()
        for piece in pieces:
            data += piece
            if len(data) >= CHUNK_BYTES:
                break
        return bytes(data)

    while data := await run_blocking(batch):
        yield data


def _exit_error(outcome: ProcessOutcome, tail: str) -> SandlotError:
    why = f"The command failed with exit code {outcome.exit_code}"
    if outcome.reason in {"oom", "pids"}:
        why += " because the sandbox had no memory left" if outcome.reason == "oom" else " because the sandbox has the maximum number of processes"
    return InvalidRequestError(
        f"{why}.{' The last lines of its output:' + chr(10) + tail if tail else ''}",
        hint="Correct the command.",
        fields={"exit_code": outcome.exit_code},
    )


def _failed(step: Step, error: SandlotError) -> SandlotError:
    """Return the error of a build whose step failed."""
    message, hint = error.message, error.hint
    if isinstance(error, SandboxEndedError):
        reason = str(error.fields.get("reason") or "for an unknown reason")
        detail = error.fields.get("detail")
        message = _ENDS.get(reason) or f"The sandbox of the build has ended ({reason}{f': {detail}' if detail else ''})."
        hint = "Correct the command, or request a template with more memory or disk space."
    message = f"Step {step.label} ({step.text}) failed: {message}"
    return type(error)(message, code=error.code, hint=hint, fields={**error.fields, "step": step.label}, fault=error.fault)

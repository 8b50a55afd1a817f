"""A prepared sandbox, nothing of anyone's running in it yet: it is warmed, and then booted, restored or destroyed.

======  =============================================================================================================================
cold    folder, group, disk, pipes and stage. ``boot`` lets the stage run the runtime; ``restore`` lets it create and then restores.
warm    created: the runtime's own processes run with nothing in them, frozen, because gVisor's take 3 to 4 % of a core each even so
        (20240729). ``restore`` and ``boot`` thaw them.
======  =============================================================================================================================

Law: until the guest runs, the record says ``prepare``; a service that is killed before leaves nothing that could be adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.checkpoint import images
from sandlot.drivers.oci.checkpoint import manifest as manifests
from sandlot.drivers.oci.holding import Holding, not_attached
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.places import VIEW_FOLDER, Folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import EngineError, Live, Program, Runtime
from sandlot.host.launch import Order, Stage, StageError, Started
from sandlot.host.threads import finished, run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, SandboxEndedError
from sandlot.model.ports import Attachment, Instance
from sandlot.model.specs import SandboxSpec, Shape


class OciBlank:
    """One; made by the driver.

    Args:
        holding: All that it holds.
        shape: What it was made from.
        runtime: What is particular to its runtime.
        program: What it is going to run on.
        first_id: The first of its own ids, where it takes some.
    """

    __slots__ = ("_created", "_first_id", "_holding", "_lock", "_program", "_runtime", "_shape", "_used", "_volumes")

    def __init__(self, holding: Holding, shape: Shape, runtime: Runtime, program: Program, first_id: int | None) -> None:
        self._holding = holding
        self._shape = shape
        self._runtime = runtime
        self._program = program
        self._first_id = first_id
        self._volumes: tuple[Attachment, ...] = ()
        self._lock = asyncio.Lock()
        self._used = False
        self._created: Started | None = None
        """Its processes, frozen, once it is warm."""

    async def warm(self) -> None:
        """Start the runtime's own processes, frozen. Idempotent; if it fails, the blank is given back.

        Raises:
            UnsupportedError: The runtime knows of no snapshots.
            ConflictError: It was started already.
            HostError: The runtime could not; the message has its words.
            SandboxEndedError: It was destroyed.
        """
        self._runtime.engine(self._program)
        async with self._lock:
            if self._created is not None and not self._used and not self._holding.is_doomed():
                return
            async with self._attempt("make a sandbox ready"):
                created = await self._create()
                await self._holding.freeze()
            self._created = created

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Mount volumes where its runtime, or its file server, finds them.

        Raises:
            HostError: The kernel refused; says why.
            SandboxEndedError: It was destroyed.
        """
        if self._holding.is_doomed():
            raise _destroyed(self._holding.ref)
        self._volumes = (*self._volumes, *volumes)
        try:
            await self._holding.attach(self._stage.descriptor(), volumes)
        except (StageError, OSError) as error:
            raise not_attached(error) from error

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest; returns once the runtime says that it runs. Once only.

        Raises:
            ConflictError: It was started already.
            SandboxEndedError: It was destroyed meanwhile.
            HostError: The runtime could not start it; the message has its words.
        """
        async with self._lock:
            async with self._attempt("start the sandbox"):
                self._used = True
                if self._created is None:
                    record = replace(self._record, step=Step.BOOT)
                    await run_blocking(self._write_bundle, spec, record)
                    started = await self._stage.start(self._order(self._runtime.run_argv(*self._called)))
                else:
                    self._holding.cgroup.thaw()
                    engine, started = self._runtime.engine(self._program), self._created
                    record = await self._running(started, engine.start(self._live(started)))
            return await self._instance(record, started)

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:  # noqa: ARG002 - the guest is told who it is when it wakes
        """Start from a snapshot. Once only; one that does not fit uses up nothing.

        Raises:
            UnsupportedError: The runtime knows of no snapshots.
            ConflictError: It was started already; ``snapshot_unusable``: the snapshot does not fit, the message says why.
            SandboxEndedError: It was destroyed meanwhile.
            HostError: The runtime could not; the message has its words.
        """
        engine = self._runtime.engine(self._program)
        if why_not := await run_blocking(self._misfit, snapshot):
            raise unusable(why_not)
        async with self._lock:
            async with self._attempt("restore the sandbox"):
                self._used = True
                started = self._created or await self._create()
                # One that was not warm is not frozen.
                self._holding.cgroup.thaw()
                async with self._holding.headroom(self._runtime.group_limits):
                    record = await self._running(started, engine.restore(self._live(started), snapshot))
            return await self._instance(record, started)

    async def destroy(self) -> None:
        """Give everything back, also while or after it boots. Idempotent."""
        await self._holding.release()

    @contextlib.asynccontextmanager
    async def _attempt(self, what: str) -> AsyncIterator[None]:
        """Something that is done to it once; if it fails, all is given back, and the error is told as the port promises."""
        if self._used:
            raise ConflictError("This sandbox was started already.", code=ErrorCode.CONFLICT)
        holding = self._holding
        if holding.is_doomed():
            raise _destroyed(holding.ref)
        try:
            yield
        except BaseException as error:
            is_theirs = isinstance(error, StageError | EngineError | OSError)
            was_destroyed = holding.is_doomed()
            words = await run_blocking(_runtime_words, holding.folder) if isinstance(error, StageError) else ""
            await holding.discard()
            if was_destroyed and is_theirs:
                raise _destroyed(holding.ref) from None
            if isinstance(error, EngineError) and error.is_foreign:
                raise unusable("it was written on a processor with features that this host's does not have") from error
            if is_theirs:
                raise HostError(
                    f"{self._program.name} could not {what}: {words or error}",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="`sandlot doctor` says what is missing.",
                ) from error
            raise

    async def _create(self) -> Started:
        """Its processes, with nothing in them and not frozen."""
        await run_blocking(self._write_bundle, None, self._record)
        async with self._holding.headroom(self._runtime.group_limits):
            created = await self._stage.start(self._order(self._runtime.create_argv(*self._called)))
            await self._runtime.engine(self._program).ready(self._live(created))
            return created

    async def _running(self, started: Started, beginning: Coroutine[Any, Any, None]) -> Record:
        """Let what was created begin, and make it one that may be adopted. The record is written meanwhile: what is left is a rename."""
        record = replace(self._record, step=Step.BOOT)
        writing = asyncio.ensure_future(run_blocking(self._holding.draft, record))
        try:
            await beginning
        finally:
            await finished(writing)
        writing.result()
        self._runtime.settle(started)
        self._holding.issue(record)
        return record

    async def _instance(self, record: Record, started: Started) -> OciInstance:
        if self._holding.is_doomed():
            await self._holding.release()
            raise _destroyed(self._holding.ref)
        return OciInstance(self._holding, record, started, self._runtime, lambda: self._program)

    def _misfit(self, snapshot: Path) -> str:
        manifest = manifests.read(snapshot)
        if manifest is None:
            return "its manifest is missing or cannot be read"
        return manifest.misfit(self._shape, self._record.driver, self._program.sha256) or images.lacks(snapshot, manifest)

    def _order(self, argv: tuple[str, ...]) -> Order:
        return Order(argv=argv, env={}, folder=VIEW_FOLDER, stdin=f"{VIEW_FOLDER}/in", stdout=f"{VIEW_FOLDER}/out", pid_file=f"{VIEW_FOLDER}/pid")

    def _write_bundle(self, spec: SandboxSpec | None, record: Record) -> None:
        self._holding.intend(record)
        config = self._runtime.config(self._shape, spec, self._first_id, self._volumes)
        self._holding.folder.config.write_text(json.dumps(config), encoding="utf-8")

    def _live(self, started: Started) -> Live:
        return Live(self._holding.folder, started, self._program)

    @property
    def _called(self) -> tuple[Program, str, int]:
        return self._program, self._holding.ref, self._shape.limits.disk_bytes

    @property
    def _stage(self) -> Stage:
        if self._holding.stage is None:
            raise StageError("it has no stage")
        return self._holding.stage

    @property
    def _record(self) -> Record:
        if self._holding.record is None:
            raise StageError("it has no record")
        return self._holding.record


def unusable(why_not: str) -> ConflictError:
    """A snapshot cannot be restored into a sandbox.

    Args:
        why_not: The reason, as a part of a sentence.
    """
    return ConflictError(
        f"This snapshot cannot be restored here: {why_not}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Ask for what the snapshot was written with, or make a new one.",
        fields={"reason": why_not},
    )


def _runtime_words(folder: Folder) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        last = folder.runtime_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
        return str(json.loads(last)["msg"])
    return ""


def _destroyed(ref: str) -> SandboxEndedError:
    return SandboxEndedError("The sandbox was destroyed while it started.", code=ErrorCode.SANDBOX_ENDED, fields={"ref": ref, "reason": "killed"})

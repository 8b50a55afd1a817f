"""A prepared sandbox, in which no guest runs yet. It is booted, restored or destroyed, and can be warmed before that.

======  ==============================================================================================================================
cold    Folder, group, disk, pipes and stage exist. ``boot`` starts the runtime with a guest. ``restore`` starts the runtime's own processes
        first, and then restores the snapshot.
warm    The runtime's own processes exist, without a guest. They are frozen, because idle processes of gVisor use 3 to 4 % of a core each
        (measured with runsc 20240729). ``restore`` and ``boot`` thaw them.
======  ==============================================================================================================================

Invariant: a sandbox is adopted only if its guest runs. In the warm state and during ``restore``, the record contains the step ``prepare`` until the
guest runs. A cold ``boot`` changes the record before the guest runs. Adoption also needs the file ``live``, which is written only when the sandbox
runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.headroom import freeze
from sandlot.drivers.oci.host_resources import SandboxHostResources, attach_error
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.paths import VIEW_FOLDER, SandboxFolder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime, Runtime
from sandlot.drivers.oci.snapshots import image_files
from sandlot.drivers.oci.snapshots import manifest as manifests
from sandlot.host.blocking import finished, run_blocking
from sandlot.host.launcher import Order, Stage, StageError, Started
from sandlot.model.errors import ConflictError, ErrorCode, HostError, SandboxEndedError
from sandlot.model.ports import Attachment, Instance
from sandlot.model.specs import SandboxSpec, Shape


class OciPreparedSandbox:
    """One prepared sandbox; created by the driver.

    Args:
        resources: Host resources of the sandbox.
        shape: Shape of the sandbox.
        runtime: Runtime of the sandbox.
        program: Program of the runtime with which the sandbox will be started.
        first_id: First id of the sandbox's own range of user and group ids on the host. None: the runtime uses no ranges.
        has_card: True if the sandbox gets a network card that leads to the guest.
    """

    __slots__ = ("_created", "_first_id", "_has_card", "_lock", "_program", "_resources", "_runtime", "_shape", "_used", "_volumes")

    def __init__(
        self, resources: SandboxHostResources, shape: Shape, runtime: Runtime, program: Program, first_id: int | None, *, has_card: bool
    ) -> None:
        self._resources = resources
        self._shape = shape
        self._runtime = runtime
        self._program = program
        self._first_id = first_id
        self._has_card = has_card
        self._volumes: tuple[Attachment, ...] = ()
        self._lock = asyncio.Lock()
        self._used = False
        self._created: Started | None = None
        """Frozen processes of a warm sandbox."""

    async def warm(self) -> None:
        """Start the runtime's own processes and freeze them. Idempotent. If a step fails, the sandbox is destroyed.

        Raises:
            UnsupportedError: The runtime does not support snapshots.
            ConflictError: The sandbox was started already.
            HostError: The runtime failed. The error contains the runtime's own message.
            SandboxEndedError: The sandbox was destroyed.
        """
        self._runtime.engine(self._program)
        async with self._lock:
            if self._created is not None and not self._used and not self._resources.is_releasing():
                return
            async with self._destroyed_on_failure("warm the sandbox"):
                created = await self._create()
                await freeze(self._resources.cgroup)
            self._created = created

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Mount volumes in the mount namespace from which the runtime, or its file server, will read them.

        Raises:
            HostError: The kernel refused a mount; the message gives the reason.
            SandboxEndedError: The sandbox was destroyed.
        """
        if self._resources.is_releasing():
            raise _destroyed_error(self._resources.ref)
        self._volumes = (*self._volumes, *volumes)
        try:
            await self._resources.attach_volumes(self._stage.descriptor(), volumes)
        except (StageError, OSError) as error:
            raise attach_error(error) from error

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest, and return when the runtime reports that the guest is running. May be called once.

        Raises:
            ConflictError: The sandbox was started already.
            SandboxEndedError: The sandbox was destroyed before or during this call.
            HostError: The runtime failed. The error contains the runtime's own message.
        """
        async with self._lock:
            async with self._destroyed_on_failure("start the sandbox"):
                self._used = True
                if self._created is None and not self._runtime.boots_with_engine(self._program):
                    record = replace(self._record, step=Step.BOOT)
                    await run_blocking(self._write_bundle, spec, record)
                    started = await self._stage.start(self._order(self._runtime.run_argv(*self._call_args)))
                else:
                    engine, started = self._runtime.engine(self._program), self._created or await self._create()
                    self._resources.cgroup.thaw()
                    record = await self._begin(started, engine.start(self._running(started)))
            return await self._instance(record, started)

    async def restore(
        self,
        snapshot: Path,
        spec: SandboxSpec,  # noqa: ARG002 - the guest learns its identity when it wakes
        *,
        headroom_bytes: int,
    ) -> Instance:
        """Start the sandbox from a snapshot. May be called once.

        The manifest and the files of the snapshot are checked first. If they do not fit this sandbox, nothing is started, and the method may be
        called again with another snapshot. After a later error the sandbox is destroyed.

        Raises:
            UnsupportedError: The runtime does not support snapshots.
            ConflictError: The sandbox was started already. ``snapshot_unusable``: the snapshot cannot be restored; the message gives the reason.
            SandboxEndedError: The sandbox was destroyed before or during this call.
            HostError: The runtime failed. The error contains the runtime's own message.
        """
        engine = self._runtime.engine(self._program)
        if reason := await run_blocking(self._unusable_reason, snapshot):
            raise unusable_error(reason)
        async with self._lock:
            async with self._destroyed_on_failure("restore the sandbox"):
                self._used = True
                started = self._created or await self._create()
                self._resources.cgroup.thaw()
                async with self._resources.headroom.raised(headroom_bytes):
                    record = await self._begin(started, engine.restore(self._running(started), snapshot))
            return await self._instance(record, started)

    async def destroy(self) -> None:
        """Destroy the sandbox and release its resources on the host, also during or after a start. Idempotent."""
        await self._resources.release()

    @contextlib.asynccontextmanager
    async def _destroyed_on_failure(self, action: str) -> AsyncIterator[None]:
        """Run one step in a ``with`` block. If the step fails, destroy the sandbox and raise an error that the driver interface allows.

        Args:
            action: Description of the step for the error message, such as "start the sandbox".
        """
        if self._used:
            raise ConflictError("This sandbox was started already.")
        resources = self._resources
        if resources.is_releasing():
            raise _destroyed_error(resources.ref)
        try:
            yield
        except BaseException as error:
            is_host_error = isinstance(error, StageError | EngineError | OSError)
            was_destroyed = resources.is_releasing()
            message = await run_blocking(_last_runtime_message, resources.folder) if isinstance(error, StageError) else ""
            await resources.try_release()
            if was_destroyed and is_host_error:
                raise _destroyed_error(resources.ref) from None
            if isinstance(error, EngineError) and error.needs_other_cpu:
                raise unusable_error("it was written on a processor with features that this host's processor lacks") from error
            if is_host_error:
                raise HostError(
                    f"{self._program.name} could not {action}: {message or error}",
                    hint="Run `sandlot doctor` to see what the host lacks.",
                ) from error
            raise

    async def _create(self) -> Started:
        """Start the runtime's own processes without a guest."""
        await run_blocking(self._write_bundle, None, self._record)
        async with self._resources.headroom.raised(0):
            created = await self._stage.start(self._order(self._runtime.create_argv(*self._call_args)))
            await self._runtime.engine(self._program).set_up(self._running(created))
            return created

    async def _begin(self, started: Started, begin: Coroutine[Any, Any, None]) -> Record:
        """Start the guest of a sandbox whose runtime processes exist, then record that the sandbox may be adopted.

        The new record is written to a second file while the guest starts. After the start, this file only has to be renamed.
        """
        record = replace(self._record, step=Step.BOOT)
        staging = asyncio.ensure_future(run_blocking(self._resources.stage_intent, record))
        try:
            await begin
        finally:
            await finished(staging)
        staging.result()
        self._runtime.after_start(started)
        self._resources.commit_intent(record)
        return record

    async def _instance(self, record: Record, started: Started) -> OciInstance:
        if self._resources.is_releasing():
            await self._resources.release()
            raise _destroyed_error(self._resources.ref)
        return OciInstance(self._resources, record, started, self._runtime, lambda: self._program)

    def _unusable_reason(self, snapshot: Path) -> str:
        manifest = manifests.read(snapshot)
        if manifest is None:
            return "its manifest is missing or cannot be read"
        return manifest.misfit(self._shape, self._record.driver, self._program.sha256) or image_files.find_damage(snapshot, manifest)

    def _order(self, argv: tuple[str, ...]) -> Order:
        return Order(argv=argv, env={}, folder=VIEW_FOLDER, stdin=f"{VIEW_FOLDER}/in", stdout=f"{VIEW_FOLDER}/out", pid_file=f"{VIEW_FOLDER}/pid")

    def _write_bundle(self, spec: SandboxSpec | None, record: Record) -> None:
        self._resources.write_intent(record)
        config = self._runtime.config(self._program, self._shape, spec, self._first_id, self._volumes, has_card=self._has_card)
        self._resources.folder.config.write_text(json.dumps(config), encoding="utf-8")

    def _running(self, started: Started) -> RunningOciRuntime:
        return RunningOciRuntime(self._resources.folder, started, self._program)

    @property
    def _call_args(self) -> tuple[Program, str, int]:
        return self._program, self._resources.ref, self._shape.limits.disk_bytes

    @property
    def _stage(self) -> Stage:
        if self._resources.stage is None:
            raise StageError("the stage process of the sandbox was not started")
        return self._resources.stage

    @property
    def _record(self) -> Record:
        if self._resources.record is None:
            raise StageError(f"the sandbox {self._resources.ref} has no record")
        return self._resources.record


def unusable_error(reason: str) -> ConflictError:
    """Return the error for a snapshot that cannot be restored.

    Args:
        reason: Reason, as a clause without a full stop.
    """
    return ConflictError(
        f"This snapshot cannot be restored here: {reason}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Use the template and limits that the snapshot was written with, or create a new snapshot.",
        fields={"reason": reason},
    )


def _last_runtime_message(folder: SandboxFolder) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        last = folder.runtime_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
        return str(json.loads(last)["msg"])
    return ""


def _destroyed_error(ref: str) -> SandboxEndedError:
    return SandboxEndedError(f"Sandbox {ref} was destroyed before it was running.", fields={"ref": ref, "reason": "killed"})

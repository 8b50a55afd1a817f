"""Makes one root image in a sandbox of the service: sends layers into the sandbox, runs the merge program there, and reads the image and its index.

The sandbox is a gVisor sandbox without network, from the internal image ``builder``. It ends with the build. Everything that comes out of it is
bounded: lines by number and length, files by their size. The files are written to the cache and never parsed on the host.

A root image on top of the image of a built-in template begins with the blocks of that image, which the host copies. Only the superblock and what
follows these blocks come out of the sandbox.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import UUID

import structlog

from sandlot.builds.merge_program.erofs import BLOCK_BYTES
from sandlot.core.node import Node
from sandlot.host.blocking import outlast_cancellation, run_in_own_thread
from sandlot.images import command_lines, rootfs_layout
from sandlot.images.erofs_image import BASE, IMAGE, INDEX, read_uuid
from sandlot.images.store import BUILDER, WITH_BASE
from sandlot.link.payload import GUEST_ROOT
from sandlot.model.access import INTERNAL
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    InternalError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    SandboxEndedError,
    SandlotError,
)
from sandlot.model.executions import Channel, Output
from sandlot.model.images import Layer
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, MIB, ProcessSpec, User

PURPOSE: Final = "sandlot.root_image"
"""Key in the metadata of the sandbox: digest of the root image that is made."""

_FOLDER: Final = "/build"
_PROGRAM: Final = f"{_FOLDER}/merge.zip"
_JOB: Final = f"{_FOLDER}/job.json"
_ARGV: Final = (
    *("/usr/bin/python3", "-I", "-X", "utf8", "-c"),
    f"import sys; sys.path.insert(0, {_PROGRAM!r}); from sandlot.builds.merge_program.main import main; main({_JOB!r})",
)
_MODULES: Final = ("builds/merge_program", "host/image_index.py", "protocol/tar.py")
"""Modules of the program, which imports nothing else of Sandlot."""
_ISOLATION: Final = "gvisor"
_TIMEOUT_S: Final = 3600.0
_MEMORY_BYTES: Final = 1 * GIB
_CPUS: Final = 2.0
_DISK_EXTRA_BYTES: Final = 256 * MIB
_WRITE_BYTES: Final = 4 * MIB
_MAX_LINE: Final = 1000
_MAX_LINES: Final = 10_000
_MAX_INDEX_BYTES: Final = 256 * MIB
_COPIED_BYTES: Final = 64 * MIB

_log = structlog.get_logger("sandlot.builds")


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """Limits of one root image.

    Args:
        bytes: Largest size of all layers together without compression.
        ratio: Largest size of all layers without compression, as a multiple of their size as they are stored.
        ratio_free_bytes: Size without compression to which ``ratio`` does not apply.
        entries: Largest number of entries of all layers together.
    """

    bytes: int = 16 * GIB
    ratio: int = 10
    ratio_free_bytes: int = GIB
    entries: int = 300_000

    def expanded_bytes(self, stored_bytes: int) -> int:
        """Return the largest size of layers without compression.

        Args:
            stored_bytes: Size of the layers as they are stored.
        """
        return min(self.bytes, self.ratio_free_bytes + self.ratio * stored_bytes)


@dataclass(frozen=True, slots=True)
class BaseImage:
    """Root image of a built-in template.

    Args:
        digest: Digest of the image of the template, without the guest.
        path: File of the root image.
        uuid: UUID of the root image, which determines the places of all files in it.
    """

    digest: str
    path: Path
    uuid: UUID


@dataclass(frozen=True, slots=True)
class MergeJob:
    """A root image to make.

    Args:
        digest: Digest of the root image, 64 hexadecimal digits.
        uuid: UUID of the image.
        layers: Layers, the lowest first.
        base: Root image of a built-in template below the layers. None: the first layer is the lowest.
        limits: Limits of the root image.
        check_space: Function that raises an error if the disk of the cache has too little free space.
    """

    digest: str
    uuid: UUID
    layers: tuple[Layer, ...]
    base: BaseImage | None
    limits: MergeLimits
    check_space: Callable[[], object]


async def merge(node: Node, job: MergeJob, layers: Callable[[Layer], AsyncIterator[bytes]], folder: Path, report: Callable[[str], object]) -> int:
    """Make a root image.

    Args:
        node: Node of the sandbox.
        job: The root image.
        layers: Function that returns a layer as it is stored.
        folder: Folder that gets the files ``root.erofs`` and ``root.index``.
        report: Function that is called with a line of text for each step.

    Returns:
        Size of all files in the root image.
    """
    run = _Merge(node, job, report)
    base_bytes = asyncio.create_task(run_in_own_thread(_copy_base, job.base, folder / IMAGE, job.check_space))  # while the sandbox works
    try:
        await run.open()
        await run.send(layers)
        size_bytes = await run.execute()
        await base_bytes
        report("reading the image")
        await run.receive(IMAGE, folder, run.expanded_bytes + run.extra_bytes)
        await run_in_own_thread(_replace_superblock, folder / IMAGE, base_bytes.result())
        await run.receive(INDEX, folder, _MAX_INDEX_BYTES)
    except SandboxEndedError as error:
        raise _ended(error) from error
    finally:
        try:
            await outlast_cancellation(run.close())
        finally:
            await outlast_cancellation(asyncio.gather(base_bytes, return_exceptions=True))
    return size_bytes


class _Merge:
    """The sandbox of one root image."""

    def __init__(self, node: Node, job: MergeJob, report: Callable[[str], object]) -> None:
        self._node = node
        self._job = job
        self._report = report
        self._sandbox = ""
        self._blobs = {layer.digest: layer for layer in job.layers}
        stored = sum(layer.size_bytes for layer in self._blobs.values())
        self.expanded_bytes = job.limits.expanded_bytes(stored)
        self.extra_bytes = _DISK_EXTRA_BYTES + self.expanded_bytes // 4  # files take whole blocks in the image
        self._disk_bytes = stored + self.expanded_bytes + self.extra_bytes
        self._base_path = ""
        """File of the sandbox with the image below the layers; empty: there is none."""

    async def open(self) -> None:
        """Start the sandbox. The image below the layers is a part of its root file system, because the link takes seconds for some 100 MB."""
        self._report("starting the sandbox that makes the image")
        if self._job.base is not None:
            try:
                self._sandbox = await self._create(f"{WITH_BASE}{self._job.base.digest}", self._disk_bytes)
            except SandlotError as error:  # such as a disk of the cache without space for this root file system
                _log.info("root_image.base_is_sent", digest=self._job.digest, reason=str(error))
            else:
                self._base_path = f"/{BASE}"
                return
            self._disk_bytes += self._job.base.path.stat().st_size
        self._sandbox = await self._create(BUILDER, self._disk_bytes)

    async def _create(self, template: str, disk_bytes: int) -> str:
        params = CreateSandboxParams(
            template=template,
            metadata={PURPOSE: self._job.digest},
            limits=LimitsChange(cpus=_CPUS, memory_bytes=_MEMORY_BYTES, disk_bytes=disk_bytes),
            timeout_s=_TIMEOUT_S,
            isolation=_ISOLATION,
            network=NetworkPolicy(NetworkMode.NONE),
        )
        return (await self._node.sandboxes.create(INTERNAL, params, single_use=True)).id

    async def close(self) -> None:
        if self._sandbox:
            with suppress(NotFoundError):
                await self._node.sandboxes.kill(INTERNAL, self._sandbox)

    async def send(self, layers: Callable[[Layer], AsyncIterator[bytes]]) -> None:
        """Send the program, its job and everything that it merges."""
        await self._write(_PROGRAM, _once(_program()))
        if self._job.base is not None and not self._base_path:
            self._report("sending the image of the template")
            self._base_path = f"{_FOLDER}/base"
            await self._write(self._base_path, _pieces(self._job.base.path))
        for number, layer in enumerate(self._blobs.values(), 1):
            self._report(f"sending layer {number} of {len(self._blobs)}")
            await self._write(_blob(layer), _bounded(layer, layers(layer)))
        await self._write(_JOB, _once(json.dumps(self._description()).encode()))

    async def execute(self) -> int:
        """Run the program. Return the size of all files of the root image."""
        spec = ProcessSpec(_ARGV, user=User.ROOT, cwd="/", timeout_s=_TIMEOUT_S, hidden=True)
        lines = _Lines(self._report)
        result = await self._node.processes.run(INTERNAL, self._sandbox, spec, on_output=lines.feed)
        if lines.refused is not None:
            raise _refusal(lines.refused)
        if result.outcome.exit_code != 0 or lines.size_bytes is None:
            detail = result.stderr.text()[-2000:]
            _log.error("root_image.failed", digest=self._job.digest, exit_code=result.outcome.exit_code, stderr=detail)
            raise InternalError(f"The program that makes root images failed: {detail.strip().rpartition(chr(10))[2][:300] or 'without a message'}.")
        return lines.size_bytes

    async def receive(self, name: str, folder: Path, max_bytes: int) -> None:
        """Read a file out of the sandbox, to the end of a file that can exist.

        Args:
            name: Name of the file.
            folder: Folder on the host with the file.
            max_bytes: Largest size of what is read.
        """
        stream, size = await self._node.files.read(INTERNAL, self._sandbox, f"{_FOLDER}/{name}", user=User.ROOT), 0
        pending = bytearray()
        with (folder / name).open("ab") as file:
            try:
                async for chunk in stream:
                    pending += chunk
                    size += len(chunk)
                    if size > max_bytes:
                        raise LimitError(f"The root image has more than {max_bytes} bytes.", code=ErrorCode.TOO_LARGE)
                    if len(pending) >= _WRITE_BYTES:
                        await self._store(file, pending)
                        pending = bytearray()
            finally:
                await stream.aclose()
            await self._store(file, pending)

    async def _store(self, file: BinaryIO, data: bytearray) -> None:
        self._job.check_space()
        await run_in_own_thread(file.write, data)

    async def _write(self, path: str, chunks: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(chunks):
            await self._node.files.write(INTERNAL, self._sandbox, path, chunks, user=User.ROOT)

    def _description(self) -> Mapping[str, Any]:
        """Return the job of the program (``merge_program/main.py``)."""
        layers = [
            {"digest": layer.digest, "size_bytes": layer.size_bytes, "diff_id": layer.diff_id, "path": _blob(layer)} for layer in self._job.layers
        ]
        return {
            "base": self._base_path,
            "base_uuid": "" if self._job.base is None else str(self._job.base.uuid),
            "layers": layers,
            "max_bytes": self.expanded_bytes,
            "max_entries": self._job.limits.entries,
            "guest": GUEST_ROOT,
            "folders": {path: [mode, owner] for path, (mode, owner) in rootfs_layout.FOLDERS.items()},
            "files": {**rootfs_layout.FILES, "/usr/bin/sudo": rootfs_layout.SUDO},
            "home": rootfs_layout.HOME,
            "user": command_lines.USER_ID,
            "time_s": command_lines.BUILD_TIME_S,
            "uuid": str(self._job.uuid),
            "image": f"{_FOLDER}/{IMAGE}",
            "index": f"{_FOLDER}/{INDEX}",
        }


class _Lines:
    """Reads the lines of the program: JSON objects, of which one is the result."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._rest = b""
        self._left = _MAX_LINES
        self.refused: Mapping[str, Any] | None = None
        self.size_bytes: int | None = None

    def feed(self, output: Output) -> None:
        """Read the next bytes of the output. Lines that are not valid are ignored."""
        if output.channel != Channel.STDOUT:
            return
        *lines, self._rest = (self._rest + output.data).split(b"\n")
        self._rest = self._rest[-_MAX_LINE:]
        for line in lines:
            self._left -= 1
            if self._left < 0 or len(line) > _MAX_LINE:
                continue
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                self._take(value)

    def _take(self, value: dict[str, Any]) -> None:
        if "refused" in value:
            self.refused = value
        elif isinstance(size_bytes := value.get("size_bytes"), int):
            self.size_bytes = size_bytes
        elif isinstance(step := value.get("step"), str):
            self._report(step)


def _refusal(value: Mapping[str, Any]) -> SandlotError:
    """Return the error of an image that the program has refused."""
    layer, entry, reason = (str(value.get(name, "")) for name in ("layer", "entry", "refused"))
    message = f"The image is refused: {reason}."
    if layer:
        message = f"The layer {layer} of the image is refused: {reason}."
    fields = {"layer": layer, "entry": entry}
    if value.get("is_limit"):
        return LimitError(message, code=ErrorCode.TOO_LARGE, hint="Use a smaller image.", fields=fields)
    return InvalidRequestError(message, hint="Make the image again, with a program that writes valid layers.", fields=fields)


def _ended(error: SandboxEndedError) -> SandlotError:
    if error.fields.get("reason") == "oom":
        return LimitError(
            f"The image needs more than the {_MEMORY_BYTES // MIB} MiB of memory in which its root file system is made.",
            code=ErrorCode.TOO_LARGE,
            hint="Use an image with fewer files.",
        )
    return error


def _blob(layer: Layer) -> str:
    return f"{_FOLDER}/{layer.digest.replace(':', '-')}"


def _program() -> bytes:
    """Return the program as a zip of its modules."""
    root, archive = resources.files("sandlot"), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as program:
        for package in ("", "builds/", "host/", "protocol/"):
            program.writestr(f"sandlot/{package}__init__.py", b"")
        for name in _MODULES:
            entry = root / name
            for module in entry.iterdir() if entry.is_dir() else (entry,):
                if module.name.endswith(".py"):
                    path = f"{name}/{module.name}" if entry.is_dir() else name
                    program.writestr(f"sandlot/{path}", module.read_bytes())
    return archive.getvalue()


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


async def _bounded(layer: Layer, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield a layer, at most one byte more than its size: the program then refuses the layer."""
    left = layer.size_bytes + 1
    try:
        async for chunk in chunks:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    """Yield a file."""
    with path.open("rb", buffering=0) as file:
        while piece := await run_in_own_thread(file.read, MIB):
            yield piece


def _copy_base(base: BaseImage | None, image: Path, check_space: Callable[[], object]) -> int:
    """Begin an image with the image below, and return the size of the latter; 0 if there is none.

    Raises:
        ConflictError: The image below was removed or replaced meanwhile.
    """
    check_space()
    with image.open("xb") as target:
        if base is not None:
            try:
                with base.path.open("rb") as source:
                    while os.copy_file_range(source.fileno(), target.fileno(), _COPIED_BYTES):
                        check_space()
                is_same = read_uuid(image) == base.uuid
            except FileNotFoundError:
                is_same = False
            if not is_same:  # the sandbox has placed the files of the layers behind another image
                raise ConflictError("The image of the template was made again during the build.", hint="Build the template again.")
            os.fsync(target.fileno())  # now, not when somebody waits for the image
        return os.fstat(target.fileno()).st_size


def _replace_superblock(image: Path, base_bytes: int) -> None:
    """Let an image begin with the block that follows the image below, which is the superblock of both together."""
    with image.open("r+b") as file:
        os.pwrite(file.fileno(), os.pread(file.fileno(), BLOCK_BYTES, base_bytes), 0)

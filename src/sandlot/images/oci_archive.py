"""Images in files: OCI image layouts, archives of ``docker save``, and archives of a root filesystem. All methods block.

Invariants:
- The file is hostile. Nothing is unpacked to the disk by a name of the archive: a member is read where it is, and names are only compared.
- The number of members, the size of headers and documents, and the size of a decompressed archive are limited.
- A layer is verified like one of a registry: its size, its digest and the size of its image.

Layouts can be folders or tar archives, and archives may be compressed with gzip. A gzip archive is decompressed into a file without a name.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from sandlot.model.errors import InvalidRequestError, LimitError, NotFoundError
from sandlot.model.image_manifests import (
    INDEX_TYPES,
    MAX_DOCUMENT_BYTES,
    MAX_LAYERS,
    MAX_PLATFORMS,
    TAR,
    TAR_GZIP,
    check_platform,
    choose_manifest,
    machine_architecture,
    media_type_of,
    parse_config,
    parse_diff_ids,
    parse_document,
    parse_image,
    parse_manifest,
    refused,
    too_large,
)
from sandlot.model.images import DIGEST, Image, ImageConfig, Layer

MAX_MEMBERS: Final = 10_000
"""Maximum number of members of an archive with an image."""
MAX_BYTES: Final = 64 * 1024**3
"""Default limit for the size of a decompressed archive."""
PIECE_BYTES: Final = 256 * 1024
_MAX_HEADERS: Final = 32 * 1024 * 1024
"""Maximum size of all headers that are read, in bytes."""
_MAX_LINKS: Final = 8
_GZIP: Final = b"\x1f\x8b"
_COMPRESSED: Final = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class _Files(Protocol):
    """Files of a layout, by name."""

    def size(self, name: str) -> int | None:
        """Return the size of a regular file, or None if there is none of this name."""
        ...

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a regular file. The file must exist."""
        ...


class ImageArchive:
    """Images in one file or folder. :func:`open_archive` opens one.

    Args:
        files: Files of the layout.
        images: Name that the layout gives an image -> how to read the image.
    """

    def __init__(self, files: _Files, images: Mapping[str, _Entry]) -> None:
        self._files = files
        self._images = images
        self._layers: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the images, as the archive has them. An image without a name is the empty text."""
        return tuple(self._images)

    def image(self, name: str | None = None) -> Image:
        """Return an image for the platform of this machine.

        Args:
            name: One of :attr:`names`. None: the only image.

        Raises:
            InvalidRequestError: The image is invalid, or the archive has several images and ``name`` is None.
            NotFoundError: There is no such image, or none for this platform.
        """
        if name is None:
            if len(set(self._images.values())) != 1:
                raise InvalidRequestError(f"The archive has several images: {', '.join(self.names)[:500]}.", hint="Name one of them.")
            name = self.names[0]
        entry = self._images.get(name)
        if entry is None:
            raise NotFoundError(f"The archive has no image {name[:200]!r}; it has {', '.join(self.names)[:500] or 'one without a name'}.")
        return entry.read(self, name or "in the archive")

    def read_layer(self, layer: Layer) -> Iterator[bytes]:
        """Yield a layer as it is stored. Its digest and size are verified before the last piece is yielded.

        Args:
            layer: Layer of an image that :meth:`image` has returned.

        Raises:
            InvalidRequestError: The layer differs from its digest or size.
            NotFoundError: The archive does not have the layer.
        """
        name = self._layers.get(layer.digest, _blob(layer.digest))
        size = self._files.size(name)
        if size is None:
            raise NotFoundError(f"The archive does not have the layer {layer.digest}.")
        if size != layer.size_bytes:
            raise InvalidRequestError(f"The layer {layer.digest} has {size} bytes instead of {layer.size_bytes}.")
        digest, held = hashlib.sha256(), b""
        with self._files.open(name) as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                if held:
                    yield held
                held = piece
        if f"sha256:{digest.hexdigest()}" != layer.digest:
            raise InvalidRequestError(f"The content of the layer {layer.digest} does not match its digest.")
        yield held

    def document(self, name: str, image: str, what: str) -> bytes:
        """Return a manifest or a configuration. For the entries of this module."""
        size = self._files.size(name)
        if size is None:
            raise refused(image, f"the archive does not have its {what}")
        if size > MAX_DOCUMENT_BYTES:
            raise too_large(image, what)
        with self._files.open(name) as file:
            return file.read(size)

    def blob(self, digest: str, size_bytes: int | None, image: str, what: str) -> bytes:
        """Return a manifest or a configuration that a digest names. For the entries of this module."""
        data = self.document(_blob(digest), image, what)
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest or size_bytes not in {None, len(data)}:
            raise refused(image, f"its {what} does not match its digest or size")
        return data

    def add_layer(self, name: str, image: str, number: int) -> tuple[str, int, str]:
        """Read a layer whose digest the archive does not name. Return its digest, size and media type. For the entries of this module."""
        size = self._files.size(name)
        if size is None:
            raise refused(image, f"the archive does not have layer {number}")
        with self._files.open(name) as file:
            piece = file.read(PIECE_BYTES)
            digest, is_gzip = hashlib.sha256(piece), piece.startswith(_GZIP)
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
        found = f"sha256:{digest.hexdigest()}"
        self._layers[found] = name
        return found, size, TAR_GZIP if is_gzip else TAR


class _Entry(Protocol):
    def read(self, archive: ImageArchive, image: str) -> Image: ...


@dataclass(frozen=True, slots=True)
class _OciEntry:
    """An entry of ``index.json``."""

    digest: str

    def read(self, archive: ImageArchive, image: str) -> Image:
        data, digest = archive.blob(self.digest, None, image, "manifest"), self.digest
        architecture = machine_architecture()
        if media_type_of(data, image) in INDEX_TYPES:
            chosen = choose_manifest(data, image, architecture)
            data, digest = archive.blob(chosen.digest, chosen.size_bytes, image, "manifest"), chosen.digest
        manifest = parse_manifest(data, image)
        config = archive.blob(manifest.config.digest, manifest.config.size_bytes, image, "configuration")
        return parse_image(config, manifest, digest=digest, image=image, architecture=architecture)


@dataclass(frozen=True, slots=True)
class _DockerEntry:
    """An entry of ``manifest.json``. The digest of the image is that of its configuration, because the archive has no manifest of a registry."""

    config: str
    layers: tuple[str, ...]

    def read(self, archive: ImageArchive, image: str) -> Image:
        data = archive.document(self.config, image, "configuration")
        document = parse_document(data, image, "configuration")
        check_platform(document, image, machine_architecture())
        diff_ids = parse_diff_ids(document, image)
        if len(diff_ids) != len(self.layers):
            raise refused(image, f"its manifest has {len(self.layers)} layers, and its configuration {len(diff_ids)} (`rootfs.diff_ids`)")
        layers = []
        for number, (name, diff_id) in enumerate(zip(self.layers, diff_ids, strict=True), 1):
            digest, size, media_type = archive.add_layer(name, image, number)
            if media_type == TAR and digest != diff_id:
                raise refused(image, f"layer {number} ({diff_id}) does not match its digest")
            layers.append(Layer(digest, size, media_type, diff_id))
        return Image(f"sha256:{hashlib.sha256(data).hexdigest()}", parse_config(document, image), tuple(layers))


@dataclass(frozen=True, slots=True)
class _RootEntry:
    """An archive of a root filesystem, which is the only layer of its image."""

    def read(self, archive: ImageArchive, image: str) -> Image:
        digest, size, media_type = archive.add_layer("", image, 1)
        return Image(digest, ImageConfig(), (Layer(digest, size, media_type, digest),))


@contextmanager
def open_archive(
    path: Path, *, scratch: Path | None = None, max_bytes: int = MAX_BYTES, check_space: Callable[[], None] = lambda: None
) -> Iterator[ImageArchive]:
    """Open an image in a file or a folder.

    Args:
        path: Folder with an OCI image layout, or archive of such a folder, of ``docker save``, or of a root filesystem.
        scratch: Folder for the decompressed archive. None: that of the archive.
        max_bytes: Largest size of the archive without compression.
        check_space: Function that raises LimitError while the disk has no room for the decompressed archive. It is called often.

    Raises:
        InvalidRequestError: The file is none of these, or is damaged.
        LimitError: The archive is larger than ``max_bytes`` or has too many members.
        OSError: The file or the folder cannot be read.
    """
    if path.is_dir():
        folder = _Folder(path)
        yield ImageArchive(folder, _read_images(folder))
        return
    with path.open("rb") as opened, _plain(opened, scratch or path.parent, max_bytes, check_space) as file:
        members = _Members.of(file)
        images = _read_images(members) if members is not None and members.is_image else {"": _RootEntry()}
        yield ImageArchive(members if members is not None and members.is_image else _WholeFile(file), images)


def _read_images(files: _Files) -> Mapping[str, _Entry]:
    """Return the images of a layout by name. ``index.json`` comes before ``manifest.json``, which newer versions of Docker write beside it."""
    reader = ImageArchive(files, {})
    if files.size("index.json") is not None:
        document = parse_document(reader.document("index.json", "in the archive", "index"), "in the archive", "index")
        return {name: _OciEntry(digest) for name, digest in _oci_entries(document)}
    if files.size("manifest.json") is not None:
        return dict(_docker_entries(reader.document("manifest.json", "in the archive", "manifest")))
    raise InvalidRequestError("The folder has neither `index.json` nor `manifest.json`.", hint="Name a folder with an OCI image layout.")


def _oci_entries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    entries = document.get("manifests")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_PLATFORMS:
        raise refused("in the archive", f"`index.json` does not name 1 to {MAX_PLATFORMS} images")
    for entry in entries:
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise refused("in the archive", "`index.json` names an image without a SHA-256 digest")
        notes = entry.get("annotations")
        notes = notes if isinstance(notes, dict) else {}
        name = notes.get("io.containerd.image.name") or notes.get("org.opencontainers.image.ref.name") or ""
        yield (name[:512] if isinstance(name, str) else "") or (digest if len(entries) > 1 else ""), digest


def _docker_entries(data: bytes) -> Iterator[tuple[str, _DockerEntry]]:
    # The document is a list, so it is wrapped to be parsed with the limits of the others.
    found = parse_document(b'{"images":' + data + b"}", "in the archive", "manifest").get("images")
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_PLATFORMS:
        raise refused("in the archive", f"`manifest.json` does not name 1 to {MAX_PLATFORMS} images")
    for entry in found:
        config, layers, tags = (entry.get(key) for key in ("Config", "Layers", "RepoTags")) if isinstance(entry, dict) else (None, None, None)
        names = [name for name in layers if isinstance(name, str)] if isinstance(layers, list) else []
        if not isinstance(config, str) or names != layers:
            raise refused("in the archive", "`manifest.json` names an image without a configuration or without layers")
        if len(names) > MAX_LAYERS:
            raise refused("in the archive", f"it has {len(names)} layers, and {MAX_LAYERS} are allowed")
        image = _DockerEntry(config, tuple(names))
        for tag in tags if isinstance(tags, list) and tags else [""]:
            yield (tag[:512] if isinstance(tag, str) else ""), image


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


class _Folder:
    """A layout in a folder. Symbolic links are not followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self, name: str) -> int | None:
        try:
            with self.open(name) as file:
                return os.fstat(file.fileno()).st_size
        except (OSError, ValueError):
            return None

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        parts = name.split("/")
        if any(part in {"", ".", ".."} for part in parts):
            raise FileNotFoundError(name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(name)
            yield file


class _WholeFile:
    """An archive of a root filesystem, as the only file of a layout."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def size(self, _name: str) -> int | None:
        return self._file.seek(0, os.SEEK_END)

    @contextmanager
    def open(self, _name: str) -> Iterator[IO[bytes]]:
        self._file.seek(0)
        yield self._file


class _Members:
    """Members of a tar archive: where each file is, by name. Links, with which older versions of Docker avoid copies, lead to other members."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._files: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}

    @property
    def is_image(self) -> bool:
        """True if the archive has an image. False: it has a root filesystem."""
        return "manifest.json" in self._files or ("index.json" in self._files and "oci-layout" in self._files)

    @classmethod
    def of(cls, file: IO[bytes]) -> _Members | None:
        """Read the headers of an archive. Return None if it has more members than an image can have, so it is a root filesystem.

        Raises:
            InvalidRequestError: The file is no tar archive, or is damaged.
        """
        found, size = cls(file), file.seek(0, os.SEEK_END)
        file.seek(0)
        try:
            with tarfile.open(fileobj=_BoundedReads(file), mode="r:") as archive:
                for _ in range(MAX_MEMBERS):
                    member = archive.next()
                    if member is None:
                        return found
                    found._add(member, size)
        except (tarfile.TarError, ValueError, OverflowError, IndexError, RecursionError) as error:
            raise InvalidRequestError(
                f"The file is not a tar archive, or is damaged: {str(error)[:100]}.", hint="Pass an archive of `docker save` or an OCI layout."
            ) from None
        return None if not found.is_image else found

    def size(self, name: str) -> int | None:
        found = self._files.get(self._resolved(name))
        return None if found is None else found[1]

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        offset, size = self._files[self._resolved(name)]
        with io.BufferedReader(_Part(self._file, offset, size), PIECE_BYTES) as file:
            yield file

    def _add(self, member: tarfile.TarInfo, size: int) -> None:
        if member.size < 0 or member.offset_data < 0 or (member.isreg() and member.offset_data + member.size > size):
            raise ValueError("a member has an invalid size")
        name = posixpath.normpath(member.name)
        if member.isreg() and not member.issparse():
            self._files[name] = member.offset_data, member.size
        elif member.issym():
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif member.islnk():
            self._links[name] = posixpath.normpath(member.linkname)

    def _resolved(self, name: str) -> str:
        name = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            if name not in self._links:
                break
            name = self._links[name]
        return name


class _BoundedReads(io.RawIOBase):
    """A file of which only so much can be read: tarfile keeps headers in memory, and an archive can have any number of any size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = _MAX_HEADERS

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._left:
            raise ValueError("its headers are too large")
        self._left -= size
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        data = os.pread(self._file.fileno(), min(len(buffer), self._size - self._position), self._offset + self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@contextmanager
def _plain(file: IO[bytes], scratch: Path, max_bytes: int, check_space: Callable[[], None]) -> Iterator[IO[bytes]]:
    """Yield an archive without compression."""
    head = file.read(8)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise InvalidRequestError(f"The archive is compressed with {name}.", hint="Decompress it first, or compress it with gzip.")
    file.seek(0)
    if not head.startswith(_GZIP):
        if file.seek(0, os.SEEK_END) > max_bytes:
            raise _too_large(max_bytes)
        yield file
        return
    with tempfile.TemporaryFile(dir=scratch) as plain:
        written = 0
        for piece in _decompressed(file):
            written += len(piece)
            if written > max_bytes:
                raise _too_large(max_bytes)
            check_space()
            plain.write(piece)
        plain.flush()
        yield plain


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a gzip file, which may have several members, in pieces of a limited size."""
    state = zlib.decompressobj(31)
    data = file.read(PIECE_BYTES)
    try:
        while data or not state.eof:
            if not data:
                raise InvalidRequestError("The archive is damaged: its end is missing.")
            yield state.decompress(data, PIECE_BYTES)
            if state.eof:
                data = (state.unused_data or file.read(PIECE_BYTES)).lstrip(b"\0")
                state = zlib.decompressobj(31) if data else state
            else:
                data = state.unconsumed_tail or file.read(PIECE_BYTES)
    except zlib.error as error:
        raise InvalidRequestError(f"The archive is damaged: {error}.") from None


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(f"The archive has more than {max_bytes} bytes without compression.", fields={"max_bytes": max_bytes})

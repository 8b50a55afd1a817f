"""Layers of images: their bytes without compression, their digests, and the entries of their archives.

Layers are hostile. A layer whose digest or size is wrong is not read any further. No memory is reserved for an announced size.
"""

from __future__ import annotations

import hashlib
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sandlot.protocol import tar

CHUNK_BYTES = 1 << 20
CAPTURE_BYTES = 1 << 20
"""Largest size of a file whose content is kept in memory because the layout may need it."""
CAPTURED = frozenset({"passwd", "group", "shadow"})
SKELETON = "etc/skel/"
PIPE, DEVICE = "pipe", "device"
MAX_ATTRIBUTE_BYTES = 32 * 1024
"""Largest size of all extended attributes of an entry together."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LATEST_S = 2**33 - 1
_MAX_ID = 2**32 - 2
_XATTR = b"SCHILY.xattr."
_KEPT_ATTRIBUTES = (b"user.", b"security.capability")


class RefusedError(Exception):
    """An image is refused.

    Args:
        reason: Reason as a clause without a full stop.
        layer: Digest of the layer; empty: that of the built-in template, or the image as a whole.
        entry: Name of the entry; empty: the layer as a whole.
        is_limit: True if the image exceeds a limit.
    """

    def __init__(self, reason: str, layer: str = "", entry: str = "", *, is_limit: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.layer = layer
        self.entry = entry
        self.is_limit = is_limit


@dataclass(frozen=True)
class Blob:
    """A layer as it is stored.

    Args:
        path: File of the layer.
        digest: Digest of the file, as ``sha256:…``.
        size_bytes: Size of the file.
        diff_id: Digest of the archive without compression.
    """

    path: str
    digest: str = ""
    size_bytes: int = 0
    diff_id: str = ""


class Entry(tar.Member):
    """An entry of a layer.

    Args:
        uid: User id.
        gid: Group id.
        mtime_ns: Time of the last change in nanoseconds since 1970.
        attributes: Name -> value of the extended attributes that are kept.
        offset: Position of the content in the archive without compression.
        content: Content of a file that the layout may need; None: not kept.
    """

    __slots__ = ("attributes", "content", "gid", "mtime_ns", "offset", "uid")

    def __init__(self, member: tar.Member, kind: str, uid: int, gid: int, mtime_ns: int, attributes: dict[bytes, bytes]) -> None:
        super().__init__(member.name, kind, size=member.size, mode=member.mode, mtime_s=member.mtime_s, target=member.target)
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.attributes = attributes
        self.offset = 0
        self.content: bytes | None = None


class EntryReader(tar.Reader):
    """Reads the entries of a layer with owners, exact times and extended attributes. Devices and pipes are entries as well."""

    __slots__ = ()

    refused: Mapping[bytes, str] = MappingProxyType({kind: reason for kind, reason in tar.Reader.refused.items() if kind not in {b"3", b"4", b"6"}})
    kinds: Mapping[bytes, str] = MappingProxyType({**tar.Reader.kinds, b"3": DEVICE, b"4": DEVICE, b"6": PIPE})

    def is_kept(self, key: bytes) -> bool:
        """Return True for the keywords of pax headers that an entry needs."""
        return super().is_kept(key) or key in {b"uid", b"gid", b"mtime"} or key.startswith(tuple(_XATTR + name for name in _KEPT_ATTRIBUTES))

    def make(self, member: tar.Member, block: bytes, extended: dict[str, bytes]) -> Entry:
        """Return the entry of a member."""
        attributes = {
            key.encode("utf-8", "surrogateescape")[len(_XATTR) :]: value for key, value in extended.items() if key.startswith(_XATTR.decode())
        }
        if sum(len(name) + len(value) for name, value in attributes.items()) > MAX_ATTRIBUTE_BYTES:
            raise tar.TarError(f"The archive's entry {tar.shown(member.name)} has too large extended attributes.", member.name)
        return Entry(
            member,
            member.kind,
            self._id(member.name, block[108:116], extended.get("uid")),
            self._id(member.name, block[116:124], extended.get("gid")),
            _nanoseconds(extended["mtime"]) if "mtime" in extended else min(member.mtime_s, _LATEST_S) * 10**9,
            attributes,
        )

    def _id(self, name: str, field: bytes, extended: bytes | None) -> int:
        number = self.number(field, "owner") if extended is None else int(extended) if extended.isdigit() and len(extended) <= 10 else -1  # noqa: PLR2004
        if not 0 <= number <= _MAX_ID:
            raise tar.TarError(f"The archive's entry {tar.shown(name)} has an invalid owner.", name)
        return number


def verify(blob: Blob) -> None:
    """Check the size and digest of a layer as it is stored."""
    size = Path(blob.path).stat().st_size
    if size != blob.size_bytes:
        raise RefusedError(f"it has {'more' if size > blob.size_bytes else 'fewer'} than the {blob.size_bytes} bytes of its descriptor", blob.digest)
    with Path(blob.path).open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if digest != blob.digest:
        raise RefusedError(f"its digest is {digest}", blob.digest)


def read_entries(blob: Blob, budget: Budget) -> Iterator[Entry]:
    """Yield the entries of a layer. The digest of the archive is compared after the last entry.

    Args:
        blob: The layer, whose stored file was verified.
        budget: Limits of the image, of which the layer takes its part.
    """
    reader, total, capture, content = EntryReader(), hashlib.sha256(), None, bytearray()
    try:
        for chunk in read_archive(blob):
            if blob.diff_id:
                total.update(chunk)
            budget.take_bytes(len(chunk), blob)
            for part in reader.feed(chunk):
                if isinstance(part, Entry):
                    budget.take_entry(blob)
                    part.offset = reader.position
                    if part.kind == tar.FILE and is_captured(part.name.removeprefix("./"), part.size):
                        capture, content = part, bytearray()
                        continue
                    yield part
                elif capture is not None:
                    if isinstance(part, memoryview):
                        content += part
                    else:
                        capture.content = bytes(content)
                        yield capture
                        capture = None
        reader.close()
    except tar.TarError as error:
        raise RefusedError(error.message.rstrip("."), blob.digest, error.name) from None
    if blob.diff_id and f"sha256:{total.hexdigest()}" != blob.diff_id:
        raise RefusedError(f"the digest of its archive is sha256:{total.hexdigest()}, and not its diff_id {blob.diff_id}", blob.digest)


def read_archive(blob: Blob) -> Iterator[bytes]:
    """Yield the archive of a layer without compression, whatever its media type says. Pieces have at most ``CHUNK_BYTES``."""
    with Path(blob.path).open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        yield from _read_gzip(blob)
    elif magic == _ZSTD:
        yield from _read_zstd(blob)
    else:
        with Path(blob.path).open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


class Budget:
    """Rest of the limits of the image.

    Args:
        max_bytes: Largest size of all archives together.
        max_entries: Largest number of entries of all archives together.
    """

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._bytes = self._entries = 0

    def take_bytes(self, size: int, blob: Blob) -> None:
        """Count bytes of an archive."""
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise RefusedError(f"the layers have more than {self._max_bytes} bytes without compression", blob.digest, is_limit=True)

    def take_entry(self, blob: Blob) -> None:
        """Count an entry."""
        self._entries += 1
        if self._entries > self._max_entries:
            raise RefusedError(f"the layers have more than {self._max_entries} entries", blob.digest, is_limit=True)


def _read_gzip(blob: Blob) -> Iterator[bytes]:
    """Yield the content of a gzip file, which may have several members and zeros at its end."""
    decompressor = zlib.decompressobj(31)
    with Path(blob.path).open("rb", buffering=0) as file:
        try:
            while data := file.read(CHUNK_BYTES // 4):
                while data:
                    if decompressor.eof:
                        data = data.lstrip(b"\0")
                        if not data:
                            break
                        decompressor = zlib.decompressobj(31)
                    piece = decompressor.decompress(data, CHUNK_BYTES)
                    data = decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail
                    if piece:
                        yield piece
        except zlib.error as error:
            raise RefusedError(f"its compression is damaged ({error})", blob.digest) from None
    if not decompressor.eof:
        raise RefusedError("its compressed data is cut off", blob.digest)


def _read_zstd(blob: Blob) -> Iterator[bytes]:
    with subprocess.Popen(["zstd", "-dcq", "--", blob.path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - pipes
        while piece := process.stdout.read(CHUNK_BYTES):
            yield piece
        detail = process.stderr.read(200).decode(errors="replace").strip()
    if process.returncode:
        raise RefusedError(f"its compression is damaged ({detail.rpartition(' : ')[2]})", blob.digest)


def is_captured(name: str, size: int) -> bool:
    """Return True if the content of a file is kept in memory, because the layout may need it.

    Args:
        name: Path of the file, without a slash at its beginning.
        size: Size of the file.
    """
    return size <= CAPTURE_BYTES and (name.rpartition("/")[2] in CAPTURED or name.startswith(SKELETON))


def _nanoseconds(text: bytes) -> int:
    """Return a time of a pax header in nanoseconds, 0 at least; 0 if the time is not valid."""
    whole, _, fraction = text.partition(b".")
    if not whole.isdigit() or len(whole) > 20 or (fraction and not fraction.isdigit()):  # noqa: PLR2004 - negative times are before 1970
        return 0
    return min(int(whole), _LATEST_S) * 10**9 + int(fraction[:9].ljust(9, b"0"))

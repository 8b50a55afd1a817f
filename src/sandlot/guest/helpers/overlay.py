"""Packs the differences between the files of a sandbox and the files of its image as an overlay, and applies an overlay to another sandbox.

The request is ``{"do": "pack"}`` or ``{"do": "apply"}``. Two further requests serve builds of templates: ``{"do": "collect", "paths"}`` packs files
and folders whole, and ``{"do": "copy", "owner"}`` applies an overlay to a sandbox that has other files already. While packing, the helper asks the
host for the entries of folders of the image, because the sandbox shows only the present files, not those of the image. The response to
``{"folder": path}`` is ``{"names", "ctimes", "more"}``, where ``more`` is True if another message follows. If the image has no such folder, the
response is ``{"missing": True}``. The overlay itself is sent or received as bytes.

An overlay is a sequence of records. A record is a length (four bytes, big endian) and a map (``protocol/values.py``). A record of kind ``file`` is
followed by the chunks of the file. A chunk is a length (four bytes, big endian) and as many bytes of content. If the highest bit of the length is
set, the chunk is a hole: it stands for zeros, and no content is sent. The length 0 ends the file. The first record of an overlay contains the
version. The last record has the kind ``end`` and contains the number of records before it.

Invariants:
- An entry is unchanged if it has the same ctime as in the image. Every change copies the entry, and each folder above the entry, into the upper
  layer of the overlay (overlayfs and gVisor). The copies get other ctimes, which no program can set. So a folder with the ctime of the image is
  skipped with all its content. Times are compared for equality only, because the image may be newer than the sandbox.
- The C library that the guest has copied from an EROFS image is unchanged as well, as long as it has the ctime of the copy.
- An overlay contains regular files, folders, symbolic and hard links, and pipes, with owner, mode, mtime and the extended attributes that programs
  set. It contains no sockets or devices, no files of other file systems except ``/tmp``, and no files of Sandlot.
- Removed entries of the image are recorded in the overlay.
- No link is followed. An overlay without a record ``end`` is incomplete. The helper detects this only after it has applied the records. Therefore
  the caller deletes the sandbox after an error.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.c_library import read_copies
from sandlot.guest.fs.paths import open_folder, path_error
from sandlot.guest.fs.remove import remove_tree
from sandlot.guest.helpers.helper import read, receive_message, send, send_message, serve
from sandlot.guest.process.accounts import lookup_account
from sandlot.protocol import values
from sandlot.protocol.helpers import COLLECT_OVERLAY, COPY_OVERLAY, OVERLAY_VERSION, PACK_OVERLAY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK_BYTES = 256 * 1024
MAX_RECORD_BYTES = 1024 * 1024
HOLE = 1 << 31
MIN_HOLE_BYTES = 4096
"""Minimum length of a chunk of zeros that is sent as a hole."""
ATTRIBUTES = (b"user.", b"security.capability")
MAX_ATTRIBUTE_BYTES = 65536
"""Maximum total size in bytes of the extended attributes of one entry. An attribute that would exceed this limit is left out."""
OWN = frozenset({b"/proc", b"/sys", b"/dev", b"/.sandlot", b"/run/sandlot"})
TMP = b"/tmp"
_ZEROS = bytes(CHUNK_BYTES)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OCTAL_DIGITS = 3


# -- packing ----------------------------------------------------------------------------------------------------------------


class OverlayPacker:
    """Packs the differences between the files of the sandbox and the files of its image, and sends them to the host as one overlay.

    Attributes:
        records: Number of records that were sent.
        bytes: Total size of the file contents, holes included.
    """

    __slots__ = ("_copies", "_links", "_mounts", "_new", "_packs_all", "_pending", "_pending_bytes", "bytes", "records")

    def __init__(self) -> None:
        self._packs_all = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._links: dict[tuple[int, int], bytes] = {}
        self._mounts = mount_points()
        self._copies = read_copies()
        self._new: set[bytes] = set()
        """Folders that the image does not have. The host is not asked for them: an answer takes a millisecond."""
        self.records = self.bytes = 0

    def run(self) -> dict[str, Any]:
        """Send the whole overlay, and return ``{"records": int, "bytes": int}``."""
        return self._run([b"/"])

    def collect(self, paths: list[bytes]) -> dict[str, Any]:
        """Send an overlay with all of the given files and folders, whether the image has them or not. Return the result of :meth:`run`.

        Args:
            paths: Absolute paths without symbolic links.
        """
        self._packs_all = True
        return self._run([], paths)

    def _run(self, pending: list[bytes], paths: list[bytes] | None = None) -> dict[str, Any]:
        self._record({"kind": "overlay", "version": OVERLAY_VERSION})
        pending += [path for path in paths or [] if path == b"/" or self._alone(path)]
        while pending:
            path = pending.pop()
            try:
                pending += self._folder(path)
            except FileNotFoundError:
                continue  # the folder was removed after its parent was listed
            except OSError as error:
                raise path_error(error, os.fsdecode(path)) from None
        self._record({"kind": "end", "records": self.records})
        self._flush()
        return {"records": self.records, "bytes": self.bytes}

    def _alone(self, path: bytes) -> bool:
        """Send the record of one path. Return True if the path is a folder."""
        parent, _, name = path.rpartition(b"/")
        try:
            fd = open_folder(os.fsdecode(parent or b"/"))
            try:
                return self._entry(fd, name, path, os.stat(name, dir_fd=fd, follow_symlinks=False))
            finally:
                os.close(fd)
        except OSError as error:
            raise path_error(error, os.fsdecode(path)) from None

    def _folder(self, path: bytes) -> list[bytes]:
        """Send the changed entries of a folder, and return the subfolders that may contain changes."""
        known = {} if self._packs_all or path in self._mounts or path in self._new else image_entries(path)
        fd = open_folder(os.fsdecode(path))
        below = []
        try:
            names = sorted(os.listdir(fd))
            for text in names:
                name = os.fsencode(text)
                inside = path.rstrip(b"/") + b"/" + name
                if inside in OWN or (inside in self._mounts and inside != TMP):
                    continue
                try:
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if not self._is_unchanged(inside, found, known.get(name)) and self._entry(fd, name, inside, found):
                        below.append(inside)
                        if name not in known:
                            self._new.add(inside)
                except FileNotFoundError:
                    continue  # the entry was removed after its folder was listed
                except OSError as error:
                    raise path_error(error, os.fsdecode(inside)) from None
        finally:
            os.close(fd)
        here = {os.fsencode(text) for text in names}
        for name in known:
            inside = path.rstrip(b"/") + b"/" + name
            if name not in here and inside not in OWN:
                self._record({"kind": "gone", "path": inside})
        return below

    def _is_unchanged(self, path: bytes, found: os.stat_result, ctime_ns: int | None) -> bool:
        """Return True if an entry is that of the image, whose ctime is ``ctime_ns``; None if the image has none."""
        return ctime_ns is not None and found.st_ctime_ns in {ctime_ns, self._copies.get(path)}

    def _entry(self, at: int, name: bytes, path: bytes, found: os.stat_result) -> bool:
        """Send the record of an entry that differs from the image; for a file, also its content. Return True if the entry is a folder."""
        about: dict[str, Any] = {
            "path": path,
            "mode": stat.S_IMODE(found.st_mode),
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime_ns": found.st_mtime_ns,
        }
        key = (found.st_dev, found.st_ino)
        if stat.S_ISLNK(found.st_mode):
            self._record({"kind": "symlink", **about, "target": os.readlink(name, dir_fd=at)})
        elif stat.S_ISFIFO(found.st_mode):
            self._record({"kind": "pipe", **about})
        elif stat.S_ISDIR(found.st_mode):
            self._record({"kind": "folder", **about, "attributes": attributes(path)})
            return True
        elif stat.S_ISREG(found.st_mode):
            if key in self._links:
                self._record({"kind": "link", "path": path, "target": self._links[key]})
                return False
            if found.st_nlink > 1:
                self._links[key] = path
            self._file(os.open(name, _READ, dir_fd=at), key, {"kind": "file", **about, "attributes": attributes(path)})
        return False

    def _file(self, fd: int, key: tuple[int, int], about: dict[str, Any]) -> None:
        try:
            opened = os.fstat(fd)
            if (opened.st_dev, opened.st_ino) != key:
                raise FileNotFoundError  # the file was replaced by another file
            self._record({**about, "size": opened.st_size})
            left = opened.st_size  # bytes that are appended meanwhile are not packed
            while left > 0:
                piece = os.read(fd, min(left, CHUNK_BYTES))
                if not piece:
                    break
                left -= len(piece)
                self._piece(piece)
        finally:
            os.close(fd)
        self._put(bytes(4))

    def _piece(self, piece: bytes) -> None:
        self.bytes += len(piece)
        if len(piece) >= MIN_HOLE_BYTES and piece == _ZEROS[: len(piece)]:
            self._put((HOLE | len(piece)).to_bytes(4, "big"))
        else:
            self._put(len(piece).to_bytes(4, "big") + piece)

    def _record(self, record: dict[str, Any]) -> None:
        raw = values.encode(record)
        self.records += 1
        self._put(len(raw).to_bytes(4, "big") + raw)

    def _put(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        send(data)


def image_entries(path: bytes) -> dict[bytes, int]:
    """Request the entries of a folder of the image from the host, and return name -> ctime; empty if the image has no such folder."""
    send_message({"folder": path})
    found: dict[bytes, int] = {}
    while True:
        answer = receive_message()
        if answer.get("missing"):
            return {}
        found.update(zip(answer["names"], answer["ctimes"]))  # noqa: B905 - the host sends as many ctimes as names
        if not answer["more"]:
            return found


def attributes(path: bytes) -> dict[str, bytes]:
    """Return the extended attributes of an entry (xattr(7)), but only attributes with a name that begins with one of ``ATTRIBUTES``."""
    found: dict[str, bytes] = {}
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return found
    for name in names:
        if not os.fsencode(name).startswith(ATTRIBUTES):
            continue
        try:
            value = os.getxattr(path, name, follow_symlinks=False)
        except OSError:
            continue
        if sum(map(len, found.values())) + len(value) <= MAX_ATTRIBUTE_BYTES:
            found[name] = value
    return found


def mount_points() -> set[bytes]:
    """Return all mount points except the root (proc(5), mountinfo)."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            rows = file.read().splitlines()
    except OSError:
        return {b"/proc", b"/sys", b"/dev", TMP}
    return {unescape(fields[4]) for fields in (row.split(b" ") for row in rows) if len(fields) > 4} - {b"/"}  # noqa: PLR2004 - the mount point


def unescape(text: bytes) -> bytes:
    """Decode a path from /proc/self/mountinfo, in which spaces and some other characters are written as octal numbers."""
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes([int(part[:_OCTAL_DIGITS], 8)]) + part[_OCTAL_DIGITS:] for part in rest)


# -- applying ---------------------------------------------------------------------------------------------------------------


class OverlayInput:
    """Reads the bytes of an overlay from the input of the helper."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        Raises:
            EOFError: The input ends before ``size`` bytes were read.
        """
        while len(self._data) - self._at < size:
            more = read(CHUNK_BYTES)
            if not more:
                raise EOFError
            self._data = self._data[self._at :] + more
            self._at = 0
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self) -> int:
        """Read four bytes, and return them as an unsigned big-endian number."""
        return int.from_bytes(self.take(4), "big")

    def record(self) -> dict[str, Any]:
        """Read the next record of the overlay, and return its decoded map.

        Raises:
            EncodingError: The record is longer than ``MAX_RECORD_BYTES`` or malformed.
        """
        size = self.number()
        if size > MAX_RECORD_BYTES:
            raise values.EncodingError(f"a record has {size} bytes, more than {MAX_RECORD_BYTES}")
        record: dict[str, Any] = values.decode(self.take(size))
        return record


class OverlayApplier:
    """Receives one overlay from the host, and applies it to the files of this sandbox.

    Attributes:
        records: Number of records that were applied.
    """

    __slots__ = ("_folders", "_source", "records")

    def __init__(self) -> None:
        self._source = OverlayInput()
        self._folders: list[dict[str, Any]] = []
        self.records = 0

    def run(self) -> dict[str, Any]:
        """Apply the whole overlay, and return ``{"records": int}``.

        Raises:
            RpcError: The overlay has an unsupported version or is incomplete, or a record cannot be applied.
        """
        try:
            first = self._source.record()
            if first.get("kind") != "overlay" or first["version"] != OVERLAY_VERSION:
                raise RpcError(
                    "unsupported",
                    "The files of the snapshot have the format of another version of Sandlot.",
                    "Restore the snapshot with the version that created it.",
                )
            while self._next():
                pass
        except (EOFError, values.EncodingError, LookupError, TypeError, ValueError):
            raise RpcError("conflict", "The files of the snapshot are incomplete.", "Create another snapshot.") from None
        for about in reversed(self._folders):
            self._finish(about)
        return {"records": self.records}

    def _next(self) -> bool:
        about = self._source.record()
        self.records += 1
        kind = about["kind"]
        if kind == "end":
            return False
        path = about["path"]
        try:
            if kind == "gone":
                remove(path)
            elif kind == "folder":
                self._folder(path, about)
            else:
                self._make_room(path)
                if kind == "file":
                    self._file(path, about)
                elif kind == "symlink":
                    os.symlink(about["target"], path)
                    self._finish(about)
                elif kind == "link":
                    os.link(about["target"], path, follow_symlinks=False)
                elif kind == "pipe":
                    os.mkfifo(path)
                    self._finish(about)
                else:
                    raise ValueError(kind)
        except OSError as error:
            raise path_error(error, os.fsdecode(path)) from None
        return True

    def _make_room(self, path: bytes) -> None:
        make_room(path)

    def _folder(self, path: bytes, about: dict[str, Any]) -> None:
        try:
            there = stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            there = False
        if not there:
            make_room(path)
            os.mkdir(path, 0o700)
        self._folders.append(about)  # the mtime is set at the end, because creating entries changes it

    def _file(self, path: bytes, about: dict[str, Any]) -> None:
        fd = os.open(path, _MAKE, 0o600)
        try:
            size = 0
            while number := self._source.number():
                if number & HOLE:
                    size += os.lseek(fd, number - HOLE, os.SEEK_CUR) - size
                    continue
                piece = memoryview(self._source.take(number))
                size += number
                while piece:
                    piece = piece[os.write(fd, piece) :]
            os.ftruncate(fd, size)
        finally:
            os.close(fd)
        self._finish(about)

    def _finish(self, about: dict[str, Any]) -> None:
        """Set owner, mode, extended attributes and mtime of an entry. The owner comes first, because chown(2) clears set-uid bits."""
        path, is_link = about["path"], about["kind"] == "symlink"
        os.chown(path, about["uid"], about["gid"], follow_symlinks=False)
        if not is_link:
            os.chmod(path, about["mode"])
        for name, value in about.get("attributes", {}).items():
            try:
                os.setxattr(path, name, value, follow_symlinks=False)
            except OSError:
                continue  # the file system does not support extended attributes
        os.utime(path, ns=(about["mtime_ns"], about["mtime_ns"]), follow_symlinks=False)


class CopyApplier(OverlayApplier):
    """Receives one overlay from the host, and copies its files into a sandbox that is in use.

    An existing folder keeps its owner, its mode and its other entries. A symbolic link to a folder counts as the folder. No folder is replaced.

    Args:
        owner: User that gets all copied files, with a group if a colon follows; empty: the owners of the overlay.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: str) -> None:
        super().__init__()
        account = lookup_account(owner) if owner else None
        self._owner = {} if account is None else {"uid": account.uid, "gid": account.gid}

    def _make_room(self, path: bytes) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            raise RpcError("path_not_regular", f"{os.fsdecode(path)!a} is a folder, so no file can be copied there.", "Change the destination.")
        make_room(path)

    def _folder(self, path: bytes, about: dict[str, Any]) -> None:
        if os.path.isdir(path):
            return
        if os.path.lexists(path):
            raise RpcError(
                "path_not_directory", f"{os.fsdecode(path)!a} is not a folder, so no folder can be copied there.", "Change the destination."
            )
        super()._folder(path, about)

    def _finish(self, about: dict[str, Any]) -> None:
        super()._finish({**about, **self._owner})


def make_room(path: bytes) -> None:
    """Prepare a path for a new entry: remove an existing entry, or create the parent folder if nothing exists at the path."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    except IsADirectoryError:
        remove(path)


def remove(path: bytes) -> None:
    """Remove an entry and everything below it. Does nothing if the entry does not exist."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        for _ in remove_tree(os.fsdecode(path), lookup_account("root")):
            pass


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Pack an overlay or apply an overlay, as the field ``do`` of the request says."""
    if request["do"] == COLLECT_OVERLAY:
        return OverlayPacker().collect(request["paths"])
    if request["do"] == COPY_OVERLAY:
        return CopyApplier(request["owner"]).run()
    return OverlayPacker().run() if request["do"] == PACK_OVERLAY else OverlayApplier().run()


def main() -> None:
    """Run the helper that packs and applies overlays."""
    serve(work)

"""Packs what a sandbox has that its image has not, and puts such a layer over an image: files without memory.

The request says ``{"do": "pack"}`` or ``{"do": "apply"}``. Packing, the program asks the host about folders of the image, because only the
host can still see it: ``{"folder": path}`` is answered by ``{"names", "ctimes", "more"}`` (more: another message follows), or by
``{"missing": True}``. The layer goes out, or comes in, as bytes.

A layer is a row of records: four bytes of length, big endian, and a map (``protocol/values.py``). After a record of kind ``file`` come its
pieces: four bytes, whose first bit says that it is a hole of the length in the others, else so many bytes follow; a length of nought
ends it. The first record has the version, the last is ``end`` with the number of those before.

Laws:
- An entry is the image's where its ctime is: every change there copies the entry, and each folder above it, into the sandbox's own layer,
  which gives them another one, and nobody can set it (overlayfs and gVisor's overlay alike). So a folder with the image's ctime needs no
  look. No moment is compared: an image may be newer on this host than the sandbox.
- Regular files, folders, symbolic and hard links, pipes; with owner, rights, mtime and the extended attributes that programs set. No
  sockets, no devices; nothing of other file systems but ``/tmp``, and nothing of Sandlot's own.
- What is gone of the image is in the layer as well.
- No link is followed. A layer without its end is not whole, which is found out only after what came before was put in place: whoever
  applies it to a new sandbox throws that away then.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.fs.paths import open_folder
from sandlot.guest.helpers.helper import REQUESTS, Refused, failed, receive, send, serve, tell
from sandlot.protocol import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
PIECE_BYTES = 256 * 1024
RECORD_BYTES = 1024 * 1024
HOLE = 1 << 31
HOLE_BYTES = 4096
"""The least run of zeros that is left out."""
ATTRIBUTES = (b"user.", b"security.capability")
ATTRIBUTE_BYTES = 65536
"""Of all of one entry that are kept."""
OWN = frozenset({b"/proc", b"/sys", b"/dev", b"/.sandlot", b"/run/sandlot"})
TMP = b"/tmp"
_ZEROS = bytes(PIECE_BYTES)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OCTAL_DIGITS = 3


# -- out --------------------------------------------------------------------------------------------------------------------


class Packing:
    """One layer on its way out."""

    __slots__ = ("_links", "_mounts", "_pending", "_pending_bytes", "bytes", "records")

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._links: dict[tuple[int, int], bytes] = {}
        self._mounts = mounts()
        self.records = self.bytes = 0

    def run(self) -> dict[str, Any]:
        """All of it."""
        self._record({"kind": "layer", "version": VERSION})
        pending = [b"/"]
        while pending:
            path = pending.pop()
            try:
                pending += self._folder(path)
            except FileNotFoundError:
                continue  # gone since its parent was read
            except OSError as error:
                raise failed(error, os.fsdecode(path)) from None
        self._record({"kind": "end", "records": self.records})
        self._flush()
        return {"records": self.records, "bytes": self.bytes}

    def _folder(self, path: bytes) -> list[bytes]:
        """What is in one folder; the folders in it that need a look."""
        known = {} if path in self._mounts else image(path)
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
                    if known.get(name) != found.st_ctime_ns and self._entry(fd, name, inside, found):
                        below.append(inside)
                except FileNotFoundError:
                    continue  # gone since the folder was read
                except OSError as error:
                    raise failed(error, os.fsdecode(inside)) from None
        finally:
            os.close(fd)
        here = {os.fsencode(text) for text in names}
        for name in known:
            inside = path.rstrip(b"/") + b"/" + name
            if name not in here and inside not in OWN:
                self._record({"kind": "gone", "path": inside})
        return below

    def _entry(self, at: int, name: bytes, path: bytes, found: os.stat_result) -> bool:
        """One entry that is not as in the image; whether it is a folder."""
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
                raise FileNotFoundError  # another one has its name by now
            self._record(about)
            left = opened.st_size  # what is written behind that meanwhile is of another moment
            while left > 0:
                piece = os.read(fd, min(left, PIECE_BYTES))
                if not piece:
                    break
                left -= len(piece)
                self._piece(piece)
        finally:
            os.close(fd)
        self._put(bytes(4))

    def _piece(self, piece: bytes) -> None:
        self.bytes += len(piece)
        if len(piece) >= HOLE_BYTES and piece == _ZEROS[: len(piece)]:
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
        if self._pending_bytes >= PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        send(data)


def image(path: bytes) -> dict[bytes, int]:
    """What a folder of the image holds, as the host says: names and their ctimes; nothing where the image has no such folder."""
    tell({"folder": path})
    found: dict[bytes, int] = {}
    while True:
        answer = receive()
        if answer.get("missing"):
            return {}
        found.update(zip(answer["names"], answer["ctimes"]))  # noqa: B905 - of one length, the host sees to that
        if not answer["more"]:
            return found


def attributes(path: bytes) -> dict[str, bytes]:
    """The extended attributes of an entry that are kept (xattr(7))."""
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
        if sum(map(len, found.values())) + len(value) <= ATTRIBUTE_BYTES:
            found[name] = value
    return found


def mounts() -> set[bytes]:
    """Where another file system begins (proc(5), mountinfo), below the root."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            rows = file.read().splitlines()
    except OSError:
        return {b"/proc", b"/sys", b"/dev", TMP}
    return {unescaped(fields[4]) for fields in (row.split(b" ") for row in rows) if len(fields) > 4} - {b"/"}  # noqa: PLR2004 - the place


def unescaped(text: bytes) -> bytes:
    """A path of mountinfo, where blanks and the like are octal numbers. Pure."""
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes([int(part[:_OCTAL_DIGITS], 8)]) + part[_OCTAL_DIGITS:] for part in rest)


# -- in ---------------------------------------------------------------------------------------------------------------------


class Source:
    """The bytes that come."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next so many.

        Raises:
            EOFError: There are fewer.
        """
        while len(self._data) - self._at < size:
            more = os.read(REQUESTS, PIECE_BYTES)
            if not more:
                raise EOFError
            self._data = self._data[self._at :] + more
            self._at = 0
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self) -> int:
        """The next four as a number."""
        return int.from_bytes(self.take(4), "big")

    def record(self) -> dict[str, Any]:
        """The next record."""
        size = self.number()
        if size > RECORD_BYTES:
            raise values.BadValue("a record that is too long")
        record: dict[str, Any] = values.decode(self.take(size))
        return record


class Applying:
    """One layer on its way in."""

    __slots__ = ("_folders", "_source", "records")

    def __init__(self) -> None:
        self._source = Source()
        self._folders: list[dict[str, Any]] = []
        self.records = 0

    def run(self) -> dict[str, Any]:
        """All of it."""
        try:
            first = self._source.record()
            if first.get("kind") != "layer" or first["version"] != VERSION:
                raise Refused("unsupported", "The layer of files is of another version of Sandlot.", "Restore it by the version that made it.")
            while self._next():
                pass
        except (EOFError, values.BadValue, LookupError, TypeError, ValueError):
            raise Refused("conflict", "The layer of files is not whole.", "Take another snapshot.") from None
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
                make_room(path)
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
            raise failed(error, os.fsdecode(path)) from None
        return True

    def _folder(self, path: bytes, about: dict[str, Any]) -> None:
        try:
            there = stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            there = False
        if not there:
            make_room(path)
            os.mkdir(path, 0o700)
        self._folders.append(about)  # its mtime comes after all that is put in it

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
        """Owner, rights, attributes, and last the time; rights after the owner, who loses set-uid bits by chown(2)."""
        path, is_link = about["path"], about["kind"] == "symlink"
        os.chown(path, about["uid"], about["gid"], follow_symlinks=False)
        if not is_link:
            os.chmod(path, about["mode"])
        for name, value in about.get("attributes", {}).items():
            try:
                os.setxattr(path, name, value, follow_symlinks=False)
            except OSError:
                continue  # a file system that has none
        os.utime(path, ns=(about["mtime_ns"], about["mtime_ns"]), follow_symlinks=False)


def make_room(path: bytes) -> None:
    """Nothing is there; the folder above is."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    except IsADirectoryError:
        remove(path)


def remove(path: bytes) -> None:
    """Remove an entry with all below it; nothing is there afterwards."""
    try:
        os.unlink(path)
        return
    except FileNotFoundError:
        return
    except IsADirectoryError:
        pass
    for name in os.listdir(path):
        remove(path + b"/" + name)
    os.rmdir(path)


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked for."""
    return Packing().run() if request["do"] == "pack" else Applying().run()


def main() -> None:
    """The program."""
    serve(work)

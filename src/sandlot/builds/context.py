"""Build contexts: archives of files on the host, from which steps copy.

Invariants:
- No path, link or pattern leads out of the archive. Nothing of the archive is unpacked on the host: contents are read from one file.
- Links in folders stay links, whatever they point to.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import posixpath
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, cast

from sandlot.builds.limits import CHUNK_BYTES, BuildLimits
from sandlot.builds.merge_program.layers import Entry, EntryReader, RefusedError
from sandlot.builds.patterns import ComparisonBudget, IgnoreRules, NamePattern, has_wildcards
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.protocol import tar

MAX_LINKS: Final = 40
"""Number of symbolic links after which the search for a file ends, as in Linux (path_resolution(7))."""
MAX_IGNORE_BYTES: Final = 256 * 1024
"""Maximum size of a ``.dockerignore``."""
MAX_DEPTH: Final = 256
"""Maximum number of names in the path of an entry."""
IGNORE_FILE: Final = ".dockerignore"
_GZIP: Final = b"\x1f\x8b"
_MAGIC_BYTES: Final = 262
"""Bytes from which the format of an archive is known: the header of a tar archive with its magic number."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a context.

    Args:
        name: Path in the context; empty for the context itself.
        kind: ``tar.FILE``, ``tar.FOLDER`` or ``tar.SYMLINK``.
        mode: Permission bits.
        mtime_s: Time of the last change in seconds since the epoch.
        size: Size of a file in bytes.
        target: Target of a link.
        offset: Position of the content in the file with all contents.
        digest: SHA-256 of the content.
        uid: User id of the owner; 0 in a context.
        gid: Group id; 0 in a context.
    """

    name: str
    kind: str
    mode: int = 0o755
    mtime_s: int = 0
    size: int = 0
    target: str = ""
    offset: int = 0
    digest: bytes = b""
    uid: int = 0
    gid: int = 0


class Context:
    """The entries of an archive. All methods block.

    Args:
        items: Name -> entry.
        contents: File with all contents.
        budget: Comparisons that the wildcards of the build may still need. None: the default.
    """

    def __init__(self, items: Mapping[str, Item], contents: BinaryIO | None = None, budget: ComparisonBudget | None = None) -> None:
        self._contents = contents
        self._budget = budget or ComparisonBudget()
        self.items = {"": Item("", tar.FOLDER), **items}
        self._children: dict[str, list[str]] = {}
        for name in self.items:
            if name:
                self._children.setdefault(posixpath.dirname(name), []).append(name)
        for names in self._children.values():
            names.sort()

    def close(self) -> None:
        """Close the file with the contents. Idempotent."""
        if self._contents is not None:
            self._contents.close()

    def find(self, source: str, *, follow: bool) -> list[Item]:
        """Return the entries that a source of a copy names, at least one, and each once.

        Args:
            source: Path with wildcards. ``..`` at the top of the context stays there.
            follow: True to return the target of a symbolic link in the last part of the path.

        Raises:
            InvalidRequestError: Nothing has the name, the path is too long, or a link leads nowhere.
            LimitError: The wildcards need too many comparisons.
        """
        names, are_matches = [""], False
        for part in _parts(source):
            # Each folder once: with links to folders above, the number of paths grows with a power of the number of links.
            folders = dict.fromkeys(self._folder(name) for name in names if not are_matches or self._target(name) is not None)
            if has_wildcards(part):
                pattern, are_matches = NamePattern(part), True
                names = [
                    child
                    for folder in folders
                    for child in self._children.get(folder, ())
                    if pattern.matches(posixpath.basename(child), self._budget)
                ]
            else:
                below = (posixpath.join(folder, part) for folder in folders)
                names = [name for name in below if name in self.items]
        if not names:
            raise InvalidRequestError(
                f"The build context has no file {source[:200]!r}.", hint="Check the path and the .dockerignore. Paths are relative to the context."
            )
        found = (self._followed(name, source) if follow else self.items[name] for name in names)
        return list({item.name: item for item in found}.values())

    def walk(self, item: Item) -> Iterator[tuple[str, Item]]:
        """Yield all entries of a folder with their paths below it, folders before their entries."""
        pending = [*reversed(self._children.get(item.name, ()))]
        start = len(item.name) + 1 if item.name else 0
        while pending:
            name = pending.pop()
            yield name[start:], self.items[name]
            pending.extend(reversed(self._children.get(name, ())))

    def read(self, item: Item) -> Iterator[bytes]:
        """Yield the content of a file."""
        left, at = item.size, item.offset
        while left and self._contents is not None:
            self._contents.seek(at)
            chunk = self._contents.read(min(left, CHUNK_BYTES))
            if not chunk:
                return
            at += len(chunk)
            left -= len(chunk)
            yield chunk

    def digest(self, items: Sequence[Item]) -> bytes:
        """Return a digest of entries and everything in them: names, kinds, modes, targets and contents, but not their times."""
        found = hashlib.sha256()
        for item in items:
            for path, each in (("", item), *self.walk(item)):
                about = (posixpath.basename(item.name), path, each.kind, f"{each.mode:o}", each.target, each.digest.hex())
                found.update("\0".join(about).encode("utf-8", "surrogateescape") + b"\n")
        return found.digest()

    def _folder(self, name: str) -> str:
        """Return the folder that a name means, through symbolic links; the name itself if there is none."""
        item = self.items.get(name)
        return name if item is None or item.kind != tar.SYMLINK else self._followed(name, name).name

    def _followed(self, name: str, source: str) -> Item:
        item = self._target(name)
        if item is None:
            raise InvalidRequestError(f"{source[:200]!r} is a symbolic link that leads to no file of the build context.", hint="Copy the target.")
        return item

    def _target(self, name: str) -> Item | None:
        """Return the entry to which a name leads through symbolic links; None if there is none."""
        for _ in range(MAX_LINKS):
            item = self.items.get(name)
            if item is None or item.kind != tar.SYMLINK:
                return item
            target = item.target if item.target.startswith("/") else posixpath.join("/", posixpath.dirname(name), item.target)
            name = posixpath.normpath(target).lstrip("/")
            name = "" if name == "." else name
        return None


def _parts(source: str) -> list[str]:
    if len(source) > tar.PATH_BYTES:
        raise InvalidRequestError(f"The path {source[:64]!r}… has {len(source)} characters.", hint=f"Use at most {tar.PATH_BYTES} characters.")
    return [part for part in posixpath.normpath("/" + source).split("/") if part]


def read_context(archive: Path, work: Path, limits: BuildLimits, budget: ComparisonBudget, *, ignores: bool = True) -> Context:
    """Read a context. The contents of its files are copied to a temporary file without compression. Blocks.

    Args:
        archive: Tar archive, plain or compressed with gzip.
        work: Folder for the temporary file, which is removed when it is closed.
        limits: Limits of the context.
        budget: Comparisons that the wildcards of the build may still need.
        ignores: True to leave out what a ``.dockerignore`` names.

    Raises:
        InvalidRequestError: The archive is damaged or has an entry that is refused, which the message names, or the ``.dockerignore`` is too large or
            invalid.
        LimitError: The context is too large, has too many entries, or the patterns of its ``.dockerignore`` need too many comparisons.
    """
    contents = _temporary(work)
    try:
        with archive.open("rb") as file:
            items = _Collector(contents, limits).read(_chunks(file))
        if ignores and (rules := items.get(IGNORE_FILE)) is not None and rules.kind == tar.FILE:
            items = _filtered(items, _read_rules(contents, rules), budget)
    except BaseException:
        contents.close()
        raise
    return Context(items, contents, budget)


def _read_rules(contents: BinaryIO, file: Item) -> IgnoreRules:
    if file.size > MAX_IGNORE_BYTES:
        raise InvalidRequestError(f"The .dockerignore has {file.size} bytes; at most {MAX_IGNORE_BYTES} are allowed.")
    contents.seek(file.offset)
    return IgnoreRules(contents.read(file.size).decode("utf-8", "replace"))


def empty_context() -> Context:
    """Return a context without files."""
    return Context({})


def unpack(context: Context, item: Item, work: Path, limits: BuildLimits) -> Context | None:
    """Read a file of a context that is a tar archive; return None if it is none. Blocks. For arguments and errors see :func:`read_context`."""
    head = next(context.read(item), b"")[:_MAGIC_BYTES]
    plain = next(_inflated(iter((head,)), lenient=True), b"") if head else b""
    if plain[257:262] != b"ustar" and not (head[:2] == _GZIP or head[:3] == b"BZh" or head[:6] == b"\xfd7zXZ\0"):
        return None
    contents = _temporary(work)
    try:
        items = _Collector(contents, limits, keeps_owners=True).read(context.read(item))
    except InvalidRequestError:
        contents.close()
        if plain[257:262] != b"ustar":
            return None  # a compressed file that is no archive is copied as it is
        raise
    except BaseException:
        contents.close()
        raise
    return Context(items, contents)


@dataclass(slots=True)
class _Collector:
    """Reads the entries of an archive, and writes the contents of its files to another file."""

    contents: BinaryIO
    limits: BuildLimits
    keeps_owners: bool = False
    items: dict[str, Item] = field(default_factory=dict)
    size: int = 0

    def read(self, chunks: Iterator[bytes]) -> dict[str, Item]:
        reader: tar.Reader = EntryReader() if self.keeps_owners else tar.Reader()
        open_item: Item | None = None
        digest = hashlib.sha256()
        total = 0
        try:
            for data in _inflated(chunks):
                total += len(data)
                if total > 2 * self.limits.context_bytes + 64 * CHUNK_BYTES:
                    raise self._too_large()
                for event in reader.feed(data):
                    if isinstance(event, tar.Member):
                        open_item, digest = self._begin(event), hashlib.sha256()
                    elif isinstance(event, memoryview):
                        self.size += len(event)
                        if self.size > self.limits.context_bytes:
                            raise self._too_large()
                        digest.update(event)
                        self.contents.write(event)
                    elif open_item is not None:
                        self.items[open_item.name] = replace(open_item, digest=digest.digest())
            reader.close()
        except (tar.TarError, RefusedError, zlib.error, OSError, lzma.LZMAError, EOFError) as error:
            raise InvalidRequestError(f"The archive cannot be read: {getattr(error, 'message', error)}", hint="Upload the files again.") from None
        return self.items

    def _begin(self, member: tar.Member) -> Item | None:
        names = tar.parts(member.name)
        if not names:
            return None
        if member.kind not in {tar.FILE, tar.FOLDER, tar.SYMLINK, tar.HARDLINK}:
            return None  # a device or a pipe
        name = "/".join(names)
        if len(names) > MAX_DEPTH:
            raise tar.TarError(f"The archive's entry {tar.shown(member.name)} has {len(names)} names in its path; at most {MAX_DEPTH} are allowed.")
        self._add_folders(name)
        if len(self.items) >= self.limits.context_entries:
            raise LimitError(f"The build context has more than {self.limits.context_entries} entries.", code=ErrorCode.TOO_LARGE)
        old = self.items.get(name)
        if old is not None and old.kind == tar.FOLDER and member.kind != tar.FOLDER:
            raise tar.TarError(f"The archive's entry {tar.shown(member.name)} replaces a folder.")
        owner = (member.uid, member.gid) if isinstance(member, Entry) else (0, 0)
        item = Item(name, member.kind, member.mode, member.mtime_s, member.size, member.target, self.size, uid=owner[0], gid=owner[1])
        if member.kind == tar.HARDLINK:
            target = self.items.get("/".join(tar.parts(member.target)))
            if target is None or target.kind != tar.FILE:
                raise tar.TarError(f"The archive's entry {tar.shown(member.name)} is a hard link to a file that the archive does not have.")
            item = replace(target, name=name)
        elif member.kind == tar.SYMLINK and (not member.target or "\0" in member.target):
            raise tar.TarError(f"The archive's entry {tar.shown(member.name)} has an invalid target.")
        self.items[name] = item
        return item if member.kind == tar.FILE else None

    def _add_folders(self, name: str) -> None:
        """Add the folders above an entry that the archive has not named."""
        missing, parent = [], posixpath.dirname(name)
        while parent and parent not in self.items:
            missing.append(parent)
            parent = posixpath.dirname(parent)
        if parent and self.items[parent].kind != tar.FOLDER:
            raise tar.TarError(f"The archive's entry {tar.shown(name)} is below {tar.shown(parent)}, which is not a folder.")
        self.items.update((each, Item(each, tar.FOLDER)) for each in reversed(missing))

    def _too_large(self) -> LimitError:
        return LimitError(
            f"The build context has more than {self.limits.context_bytes} bytes.", code=ErrorCode.TOO_LARGE, hint="Name files in a .dockerignore."
        )


def _filtered(items: Mapping[str, Item], rules: IgnoreRules, budget: ComparisonBudget) -> dict[str, Item]:
    """Return the entries that the rules keep, with the folders above them."""
    kept = items.keys() - rules.ignored(items, budget)
    for name in tuple(kept):
        while (name := posixpath.dirname(name)) and name not in kept:
            kept.add(name)
    return {name: item for name, item in items.items() if name in kept}


def _temporary(work: Path) -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile(dir=work))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _inflated(chunks: Iterator[bytes], *, lenient: bool = False) -> Iterator[bytes]:
    """Yield an archive without its compression, in pieces of limited size."""
    first = next(chunks, b"")
    if first[:2] == _GZIP:
        yield from _gunzipped(first, chunks, lenient=lenient)
        return
    make = bz2.BZ2Decompressor if first[:3] == b"BZh" else lzma.LZMADecompressor if first[:6] == b"\xfd7zXZ\0" else None
    if make is None:
        yield first
        yield from chunks
        return
    inflater = make()
    data = first
    while True:
        piece = inflater.decompress(data, CHUNK_BYTES)
        if piece:
            yield piece
        if inflater.eof:
            return
        data = b""
        if inflater.needs_input:
            data = next(chunks, b"")
            if not data:
                if lenient:
                    return
                raise EOFError("The compressed data is incomplete.")


def _gunzipped(data: bytes, chunks: Iterator[bytes], *, lenient: bool) -> Iterator[bytes]:
    """Yield the content of a gzip file, which may have several members (RFC 1952). What follows the last member is ignored."""
    inflater = zlib.decompressobj(31)
    while True:
        if piece := inflater.decompress(data, CHUNK_BYTES):
            yield piece
        data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        if not data and not (data := next(chunks, b"")):
            if inflater.eof or lenient:
                return
            raise EOFError("The compressed data is incomplete.")
        if inflater.eof:
            if not data.startswith(_GZIP[:1]):
                return
            inflater = zlib.decompressobj(31)

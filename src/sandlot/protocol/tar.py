"""Reads and writes tar archives, without I/O: a reader that yields members and their contents, and functions that return the headers to write.

Reads the ustar and pax formats of POSIX (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"), long names and large
numbers of GNU tar ("Basic Tar Format" in its manual), and the older v7 format. Writes ustar, with a pax header if a name or a size
does not fit into the ustar header.

- An archive may be hostile: no memory is reserved for an announced size, every header is checked, and errors name the entry.
- Reading takes a few megabytes of memory at most, whatever the length of the archive.
- Only files, folders, symbolic and hard links are accepted. Devices, pipes, sparse files and parts of a larger archive are refused.
- Names are decoded as UTF-8, with the surrogates of PEP 383 for other bytes, so that the file system gets the same bytes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
"""The last two blocks of an archive, which consist of zeros."""

FILE, FOLDER, SYMLINK, HARDLINK = "file", "directory", "symlink", "hardlink"

META_BYTES = 1024 * 1024
"""Largest size in bytes of a pax header or of a long name of GNU tar."""
METAS = 16
"""Largest number of pax headers and headers with a long name that may precede one member."""
NAME_BYTES = 255
PATH_BYTES = 4095
LATEST_S = 253402300799
"""Latest time of a member in seconds since 1970: the end of the year 9999. Later times are replaced by this time."""
ERROR_CODE, ERROR_MESSAGE = "SANDLOT.code", "SANDLOT.error"
"""Keywords of global pax headers at the end of an archive that could not be completed: the error's code and message."""
KEPT = frozenset({b"path", b"linkpath", b"size", ERROR_CODE.encode(), ERROR_MESSAGE.encode(), b"GNU.sparse"})
"""Keywords of pax headers whose values the reader keeps. Values of other keywords are dropped."""
_FITS_BYTES = 8**11
_SHOWN = 200

_REFUSED = {
    b"3": "is a device",
    b"4": "is a device",
    b"6": "is a pipe",
    b"S": "is a sparse file; pack it without --sparse",
    b"M": "is a part of a larger archive",
    b"D": "belongs to an incremental backup",
    b"N": "has an old format of GNU tar",
}
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARDLINK, b"2": SYMLINK, b"5": FOLDER}


class TarError(Exception):
    """An archive is damaged, or has an entry of a kind that is refused.

    Args:
        message: One sentence about the fault, which names the entry.
        name: Name of the entry, or of the last entry before the fault; empty if there was no entry before the fault.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.name = name


class Member:
    """One member of an archive.

    Args:
        name: Path of the member as written in the archive.
        kind: FILE, FOLDER, SYMLINK or HARDLINK.
        size: Size of the content in bytes; 0 for anything but files.
        mode: Permission bits as written in the archive.
        mtime_s: Time of the last change in seconds since 1970, UTC.
        target: Target of a link.
    """

    __slots__ = ("kind", "mode", "mtime_s", "name", "size", "target")

    def __init__(self, name: str, kind: str, *, size: int = 0, mode: int = 0o644, mtime_s: int = 0, target: str = "") -> None:
        self.name = name
        self.kind = kind
        self.size = size
        self.mode = mode
        self.mtime_s = mtime_s
        self.target = target


class Finished:
    """Class of the marker ``FINISHED``, which a reader yields when the content of a file is complete."""

    __slots__ = ()


FINISHED = Finished()


def shown(name: str) -> str:
    """Return a name as it is shown in messages: quoted, cut to 200 characters, and with escapes for all characters that are not printable ASCII."""
    return ascii(name) if len(name) <= _SHOWN else ascii(name[:_SHOWN]) + "..."


def parts(name: str) -> list[str]:
    """Split the path of a member into the names of its parts; return an empty list if the path means the target folder. Pure.

    Raises:
        TarError: The path is absolute, contains ``..``, or is not a valid file name.
    """
    if name.startswith("/"):
        raise TarError(f"The archive's entry {shown(name)} has an absolute path.", name)
    names = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in names:
        raise TarError(f"The archive's entry {shown(name)} contains '..'.", name)
    if "\0" in name or len(_bytes(name)) > PATH_BYTES or any(len(_bytes(part)) > NAME_BYTES for part in names):
        raise TarError(
            f"The archive's entry {shown(name)} has an invalid name: a NUL character, more than {PATH_BYTES} bytes, or a part with more than "
            f"{NAME_BYTES} bytes.",
            name,
        )
    return names


def inner_target(target: str, depth: int, root: str) -> str | None:
    """Return the target of a symbolic link as a relative path that stays inside the copied folder; None if the link may lead out. Pure.

    ``..`` is allowed only at the beginning of a target, and may not lead out of the folder. After a name, ``..`` is refused, because the name may be
    another link: ``..`` is then relative to the target of that link.

    Args:
        target: Target of the link. An absolute target inside the folder becomes a relative one.
        depth: Number of folders between the folder and the link.
        root: Absolute path of the folder that contains the link.
    """
    if target.startswith("/"):
        prefix = root.rstrip("/") + "/"
        if not f"{target}/".startswith(prefix):
            return None
        target = ("../" * depth + target[len(prefix) :].lstrip("/")) or "."
    names = [part for part in target.split("/") if part not in {"", "."}]
    climbs = 0
    while climbs < len(names) and names[climbs] == "..":
        climbs += 1
    if climbs > depth or ".." in names[climbs:] or "\0" in target or not target:
        return None
    return target


class Reader:
    """Reads an archive. Call :meth:`feed` with its bytes, then :meth:`close`.

    A subclass may read more: it changes :attr:`refused`, :attr:`kinds` and :meth:`is_kept`, and returns its own members from :meth:`make`.
    """

    __slots__ = ("_block", "_extended", "_global", "_last", "_left", "_meta", "_metas", "_skip", "_zeros", "began", "ended", "position")

    refused: Mapping[bytes, str] = _REFUSED
    """Type of a refused entry -> the rest of a sentence that begins with its name."""
    kinds: Mapping[bytes, str] = _KINDS
    """Type of an entry -> its kind."""

    def __init__(self) -> None:
        self.position = 0
        """Number of bytes that were read. When a file is yielded, its content begins here."""
        self.began = False
        self.ended = False
        """True after the end of the archive. Bytes after it are ignored."""
        self._block = bytearray()
        self._left = 0
        self._skip = 0
        self._zeros = 0
        self._last = ""
        self._meta: tuple[bytes, bytearray, int] | None = None
        self._metas = 0
        self._extended: dict[str, bytes] = {}
        self._global: dict[str, bytes] = {}

    def feed(self, data: bytes) -> Iterator[Member | memoryview | Finished]:
        """Read the next bytes of the archive. Yield members, pieces of their content, and FINISHED after the content of each file.

        A piece of content is valid only until the next step of the iterator.

        Raises:
            TarError: The archive is broken, or has an entry of a kind that is refused.
        """
        view, at = memoryview(data), 0
        while at < len(view) and not self.ended:
            if self._left:
                piece = view[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                self.position += len(piece)
                yield piece
                if not self._left:
                    yield FINISHED
            elif self._skip:
                step = min(self._skip, len(view) - at)
                self._skip -= step
                at += step
                self.position += step
            elif self._meta is not None:
                step = self._take_meta(view[at:])
                at += step
                self.position += step
            else:
                piece = view[at : at + BLOCK_BYTES - len(self._block)]
                self._block += piece
                at += len(piece)
                self.position += len(piece)
                if len(self._block) == BLOCK_BYTES:
                    member = self._read_header(bytes(self._block))
                    self._block.clear()
                    if member is not None:
                        yield member
                        if member.kind == FILE and not member.size:
                            yield FINISHED

    @property
    def global_values(self) -> dict[str, str]:
        """Keyword -> value as text, from the global pax headers. Contains only keywords in ``KEPT``."""
        return {key: value.decode("utf-8", "replace") for key, value in self._global.items()}

    def close(self) -> None:
        """Check that the archive is complete. Call the method after the last :meth:`feed`.

        Raises:
            TarError: The archive is incomplete.
        """
        if not self.ended:
            raise TarError(f"The archive is incomplete{self._after()}." if self.began else "The data is not a tar archive.", self._last)

    def _read_header(self, block: bytes) -> Member | None:
        if not any(block):
            self.began = True
            self._zeros += 1
            self.ended = self._zeros == 2  # noqa: PLR2004 - POSIX: two blocks of zeros
            return None
        self._zeros = 0
        self._check(block)
        self.began = True
        kind = block[156:157]
        size = self.number(block[124:136], "size")
        if kind in {b"x", b"X", b"g", b"L", b"K"}:
            self._begin_meta(kind, size)
            return None
        extended = {**self._global, **self._extended}
        self._extended.clear()
        self._metas = 0
        name = self._name(block, extended)
        self._last = name
        if kind == b"V":  # the label of a volume
            return None
        if kind in self.refused or "GNU.sparse" in extended:
            raise TarError(f"The archive's entry {shown(name)} {self.refused.get(kind, self.refused[b'S'])}.", name)
        if kind not in self.kinds:
            raise TarError(f"The archive's entry {shown(name)} has an unknown type, {kind!r}.", name)
        return self._member(name, kind, block, size, extended)

    def _member(self, name: str, kind: bytes, block: bytes, size: int, extended: dict[str, bytes]) -> Member:
        word = FOLDER if kind == b"\0" and name.endswith("/") else self.kinds[kind]  # in the v7 format, a folder is a name that ends with a slash
        if "size" in extended:
            if not extended["size"].isdigit() or len(extended["size"]) > 19:  # noqa: PLR2004 - digits of a 64-bit number
                raise self._broken("size")
            size = int(extended["size"])
        if word != FILE:
            size = 0  # some programs write the size of a link's target into the header of the link
        self._left = size
        self._skip = -size % BLOCK_BYTES
        target = _text(extended["linkpath"]) if "linkpath" in extended else _text(_field(block[157:257]))
        mode, mtime_s = self._lenient(block[100:108]), self._lenient(block[136:148])
        return self.make(Member(name, word, size=size, mode=mode & 0o7777, mtime_s=min(mtime_s, LATEST_S), target=target), block, extended)

    def make(self, member: Member, block: bytes, extended: dict[str, bytes]) -> Member:
        """Return the member to yield.

        Args:
            member: Member with the values that every reader has.
            block: Header of the member.
            extended: Keyword -> value of the pax headers that apply to the member.
        """
        del block, extended
        return member

    def is_kept(self, key: bytes) -> bool:
        """Return True if the values of a keyword of pax headers are kept."""
        return key in KEPT

    def _name(self, block: bytes, extended: dict[str, bytes]) -> str:
        if "path" in extended:
            return _text(extended["path"])
        name = _field(block[:100])
        prefix = _field(block[345:500]) if block[257:263] == b"ustar\0" else b""
        return _text(prefix + b"/" + name if prefix else name)

    def _check(self, block: bytes) -> None:
        """Check the checksum of a header.

        The checksum is the sum of the header's bytes. The bytes of the checksum field are counted as blanks. Some old programs add signed bytes.
        """
        rest = block[:148] + b" " * 8 + block[156:]
        total, written = sum(rest), self.number(block[148:156], "checksum")
        if written not in {total, total - 256 * sum(byte >> 7 for byte in rest)}:
            raise self._broken("checksum")

    def _begin_meta(self, kind: bytes, size: int) -> None:
        self._metas += 1
        if size > META_BYTES or self._metas > METAS:
            raise TarError(f"The archive has an extended header that is too large{self._after()}.", self._last)
        if size:
            self._meta = (kind, bytearray(), size)

    def _take_meta(self, view: memoryview) -> int:
        if self._meta is None:
            return 0
        kind, got, size = self._meta
        piece = view[: size - len(got)]
        got += piece
        if len(got) == size:
            self._meta = None
            self._skip = -size % BLOCK_BYTES
            if kind == b"L":
                self._extended["path"] = _field(bytes(got))
            elif kind == b"K":
                self._extended["linkpath"] = _field(bytes(got))
            else:
                (self._global if kind == b"g" else self._extended).update(self._records(bytes(got)))
        return len(piece)

    def _records(self, data: bytes) -> dict[str, bytes]:
        """Parse a pax header, and return keyword -> value of the keywords in ``KEPT``.

        A record consists of its length in digits, a blank, KEY=VALUE and a line feed.
        """
        found, at = {}, 0
        while at < len(data):
            digits, space, _ = data[at : at + 20].partition(b" ")
            if not space or not digits.isdigit():
                raise self._broken("extended header")
            end = at + int(digits)
            key, equals, value = data[at + len(digits) + 1 : end].partition(b"=")
            if end > len(data) or not equals or not value.endswith(b"\n"):
                raise self._broken("extended header")
            word = b"GNU.sparse" if key.startswith(b"GNU.sparse") else key
            if self.is_kept(word):
                found[_text(word)] = value[:-1]
            at = end
        return found

    def number(self, field: bytes, what: str) -> int:
        """Parse a field that contains octal digits, or a binary number if its first bit is set (GNU tar). ``what`` is the field's name for errors."""
        if field[0] & 0x80:
            value = int.from_bytes(field, "big") - (1 << (len(field) * 8 - 1))
            if field[0] & 0x40 or value >= 1 << 63:
                raise self._broken(what)
            return value
        digits = field.strip(b" \0")
        if digits.strip(b"01234567"):
            raise self._broken(what)
        return int(digits or b"0", 8)

    def _lenient(self, field: bytes) -> int:
        """Return the number in a header field that is not essential, such as the mode; 0 if the number is invalid."""
        try:
            return self.number(field, "")
        except TarError:
            return 0

    def _after(self) -> str:
        return f" after its entry {shown(self._last)}" if self._last else ""

    def _broken(self, what: str) -> TarError:
        if not self.began:
            return TarError("The data is not a tar archive.")
        return TarError(f"The archive is damaged{self._after()}: the {what} of the next entry is invalid.", self._last)


def header(member: Member) -> bytes:
    """Return the header of a member to write. Pure.

    Args:
        member: Member to write. A slash is added to the name of a folder if the name has none at its end.
    """
    name, target = _bytes(member.name.rstrip("/") + "/" if member.kind == FOLDER else member.name), _bytes(member.target)
    records = b""
    if not _is_text(name) or not _is_text(target):
        records += record(b"hdrcharset", b"BINARY")
    for key, value in ((b"path", name), (b"linkpath", target)):
        if len(value) > 100 or not value.isascii():  # noqa: PLR2004 - bytes of the field in the header
            records += record(key, value)
    if member.size >= _FITS_BYTES:
        records += record(b"size", str(member.size).encode())
    block = _block(name, member, {FILE: b"0", FOLDER: b"5", SYMLINK: b"2", HARDLINK: b"1"}[member.kind], target)
    if not records:
        return block
    return _block(b"PaxHeader", Member("", FILE, size=len(records), mtime_s=member.mtime_s), b"x", b"") + records + padding(len(records)) + block


def message_header(key: str, text: str) -> bytes:
    """Return a global pax header with one record. Pure.

    Args:
        key: Keyword, such as ``ERROR_CODE``. POSIX reserves keywords with an upper-case prefix for vendors, so other programs ignore the record.
        text: Value of the record.
    """
    data = record(key.encode(), text.encode("utf-8", "replace"))
    return _block(b"PaxHeader", Member("", FILE, size=len(data)), b"g", b"") + data + padding(len(data))


def record(key: bytes, value: bytes) -> bytes:
    """Return a record of a pax header. Pure."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def padding(size: int) -> bytes:
    """Return the zero bytes that must follow ``size`` bytes of content to fill the last block."""
    return bytes(-size % BLOCK_BYTES)


def _block(name: bytes, member: Member, kind: bytes, target: bytes) -> bytes:
    size = member.size if member.size < _FITS_BYTES else 0
    fields = (
        name[:100].ljust(100, b"\0"),
        b"%07o\0" % (member.mode & 0o7777),
        b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % max(0, min(member.mtime_s, _FITS_BYTES - 1)),
        b" " * 8,
        kind,
        target[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(BLOCK_BYTES, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _field(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_text(raw: bytes) -> bool:
    return raw.decode("utf-8", "replace").encode() == raw

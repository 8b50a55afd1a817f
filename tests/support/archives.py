"""Tar archives for tests: good ones, and such as somebody makes who wants out of the folder."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", *, target: str = "", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode, info.mtime = kind, len(content), target, mode, 1_700_000_000
    return info, content


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT, pax: Mapping[str, str] | None = None) -> bytes:
    """An archive of these entries, as python's own tarfile writes it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form, pax_headers=dict(pax or {})) as into:
        for info, content in entries:
            into.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def raw_head(name: bytes, size: bytes, kind: bytes = b"0", *, magic: bytes = b"ustar\x0000") -> bytes:
    """A head that no library writes, with a right checksum."""
    block = name[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0") + b"00000000000\0" + b" " * 8 + kind
    block = (block + bytes(100) + magic).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


END = bytes(1024)


@dataclass(frozen=True)
class Hostile:
    """An archive that has to be refused.

    Args:
        name: What it tries.
        data: It.
        named: A piece of text that the refusal has to have.
    """

    name: str
    data: bytes
    named: str


def outgoing_links(outside: str) -> bytes:
    """An archive with links that lead out of the folder, the names of which end with ``out``, and one that stays inside.

    Args:
        outside: An absolute path that is not below the folder.
    """
    targets = {
        "absolute-out": outside,
        "up-out": "../" * 12 + outside.lstrip("/"),
        "d/later-out": "x/../../..",
        "d/e/up": "../..",
        "two-links-out": "d/e/up/..",
    }
    return archive(entry("file", content=b"x"), *(entry(name, tarfile.SYMTYPE, target=target) for name, target in targets.items()))


def hostile(outside: str) -> Iterator[Hostile]:
    """Archives that try to write, or to lead, out of the folder, and such as are broken.

    Args:
        outside: An absolute path that is not below the folder.
    """
    good = entry("good", content=b"good")
    yield Hostile("absolute", archive(good, entry(outside, content=b"out")), outside[:40])
    yield Hostile("dots", archive(good, entry("../escaped", content=b"out")), "'../escaped'")
    yield Hostile("dots inside", archive(entry("a/../../escaped", content=b"out")), "a/../../escaped")
    yield Hostile("dots for a folder", archive(entry("a/..", tarfile.DIRTYPE)), "'a/../'")
    yield Hostile("through a link", archive(entry("in", tarfile.SYMTYPE, target="."), entry("in/x", content=b"out")), "'in/x'")
    yield Hostile("a hard link out", archive(entry("hard", tarfile.LNKTYPE, target=outside)), outside[:40])
    yield Hostile("a hard link up", archive(entry("hard", tarfile.LNKTYPE, target="../x")), "'../x'")
    linked = (entry("d/e/l", tarfile.SYMTYPE, target="../../good"), entry("hard", tarfile.LNKTYPE, target="d/e/l"))
    yield Hostile("a hard link to a link", archive(*linked), "'hard'")
    yield Hostile("a hard link to nothing", archive(entry("hard", tarfile.LNKTYPE, target="none")), "'hard'")
    for kind, name in ((tarfile.CHRTYPE, "character"), (tarfile.BLKTYPE, "block"), (tarfile.FIFOTYPE, "pipe")):
        yield Hostile(f"a {name} device", archive(entry("odd", kind)), "'odd'")
    yield Hostile("a sparse file", raw_head(b"holes", b"00000000001", b"S") + bytes(512) + END, "'holes'")
    yield Hostile("a pax sparse file", archive(good, pax={"GNU.sparse.major": "1", "GNU.sparse.realsize": "1099511627776"}), "'good'")
    yield Hostile("a name with NUL", archive(good, pax={"path": "a\0b"}), "'a\\x00b'")
    yield Hostile("a name too long", archive(entry("n" * 256, content=b"x")), "nnnn")
    yield Hostile("a path too long", archive(entry("/".join(["n" * 250] * 17), content=b"x")), "nnnn")
    yield Hostile("the folder as a file", archive(entry(".", content=b"x")), "'.'")
    yield Hostile("an unknown kind", raw_head(b"what", b"00000000000", b"Z") + END, "'what'")
    yield Hostile("a negative size", archive(good)[:1024] + raw_head(b"minus", b"\xff" * 12) + END, "'good'")
    yield Hostile("a size that is none", archive(good)[:1024] + raw_head(b"none", b"0000000zz") + END, "'good'")
    yield Hostile("a size that never comes", raw_head(b"huge", b"77777777777") + bytes(4096), "'huge'")
    yield Hostile("a pax size that is none", archive(good, pax={"size": "-1"}), "size")
    yield Hostile("a pax header of a gigabyte", raw_head(b"x", b"10000000000", b"x") + bytes(4096), "extended header")
    yield Hostile("a pax header of nonsense", raw_head(b"x", b"00000000012", b"x") + b"99 nonsense".ljust(512, b"\0") + END, "extended header")
    yield Hostile("pax headers without end", (raw_head(b"x", b"00000000000", b"x") * 20) + END, "extended header")
    yield Hostile("a wrong checksum", archive(good)[:1024] + b"x" + archive(good)[1:], "'good'")
    yield Hostile("no end", archive(good)[:1024], "'good'")
    yield Hostile("half a file", archive(entry("half", content=b"x" * 3000))[:2000], "'half'")
    yield Hostile("no archive", b"these are only words " * 50, "not a tar archive")
    yield Hostile("nothing", b"", "not a tar archive")
    yield Hostile("half of a gzip", gzip.compress(archive(entry("half", content=bytes(range(256)) * 40)))[:200], "half")
    yield Hostile("a broken gzip", gzip.compress(archive(good))[:10] + b"\xff" * 100, "compressed")
    yield Hostile("bzip2", b"BZh91AY&SY" + bytes(100), "bzip2")

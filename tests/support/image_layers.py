"""Layers of images for tests, and the job of the program that merges them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.builds.merge_program.erofs import BLOCK_BYTES, read_image
from sandlot.builds.merge_program.files import Files, Node
from sandlot.images import command_lines, rootfs_layout
from sandlot.images.erofs_image import read_uuid
from sandlot.model.images import Layer

TIME_S = 1_700_000_000
FOLDER, SYMLINK, HARDLINK, DEVICE, PIPE = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE

Entry = tuple[tarfile.TarInfo, bytes]


def entry(
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
    mode: int | None = None,
    owner: int = 0,
    mtime: str = "",
    xattrs: Mapping[str, str] | None = None,
) -> Entry:
    """Return an entry of a layer.

    Args:
        name: Path.
        content: Content of a file.
        kind: Type of the entry.
        target: Target of a link.
        mode: Permission bits. None: 0755 for folders, 0644 for others.
        owner: Id of owner and group.
        mtime: Time with a fraction, in a pax header.
        xattrs: Extended attributes.
    """
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mtime = kind, len(content), target, TIME_S
    info.mode = (0o755 if kind == FOLDER else 0o644) if mode is None else mode
    info.uid = info.gid = owner
    info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in (xattrs or {}).items()} | ({"mtime": mtime} if mtime else {})
    return info, content


def tar_of(*entries: Entry) -> bytes:
    """Return an archive of entries."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as into:
        for info, content in entries:
            into.addfile(info, io.BytesIO(content))
    return raw.getvalue()


@dataclass(frozen=True)
class StoredLayer:
    """A layer with its bytes.

    Args:
        archive: The archive without compression.
        stored: The archive as it is stored.
        layer: Description of the layer.
    """

    archive: bytes
    stored: bytes
    layer: Layer


def layer_of(*entries: Entry, archive: bytes | None = None, stored: bytes | None = None, diff_id: str = "") -> StoredLayer:
    """Return a layer of entries, compressed with gzip.

    Args:
        entries: Entries of the layer.
        archive: The archive; None: of the entries.
        stored: The stored layer; None: the compressed archive.
        diff_id: Digest of the archive; empty: the true one.
    """
    archive = tar_of(*entries) if archive is None else archive
    stored = gzip.compress(archive, 1, mtime=0) if stored is None else stored
    media_type = "application/vnd.oci.image.layer.v1.tar+gzip"
    return StoredLayer(archive, stored, Layer(_digest(stored), len(stored), media_type, diff_id or _digest(archive)))


def job_of(folder: Path, *layers: StoredLayer, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of the job
    """Write layers into a folder, with a guest of one file, and return the job that merges them.

    Args:
        folder: Folder for all files.
        layers: Layers, the lowest first.
        changes: Values of the job that differ.
    """
    guest = folder / "guest"
    (guest / "volumes").mkdir(parents=True, exist_ok=True)
    (guest / "guest.zip").write_bytes(b"guest")
    described = []
    for number, each in enumerate(layers):
        (folder / f"layer-{number}").write_bytes(each.stored)
        described.append(
            {
                "digest": each.layer.digest,
                "size_bytes": each.layer.size_bytes,
                "diff_id": each.layer.diff_id,
                "path": str(folder / f"layer-{number}"),
            }
        )
    return {
        "base": "",
        "base_uuid": "",
        "layers": described,
        "max_bytes": 1 << 24,
        "max_entries": 1000,
        "guest": str(guest),
        "folders": {path: [mode, owner] for path, (mode, owner) in rootfs_layout.FOLDERS.items()},
        "files": {**rootfs_layout.FILES, "/usr/bin/sudo": rootfs_layout.SUDO},
        "home": rootfs_layout.HOME,
        "user": command_lines.USER_ID,
        "time_s": command_lines.BUILD_TIME_S,
        "uuid": "00000000-0000-0000-0000-000000000000",
        "image": str(folder / "root.erofs"),
        "index": str(folder / "root.index"),
        **changes,
    }


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read_made(image: Path) -> tuple[dict[str, Node], Callable[[str], bytes]]:
    """Return all entries of an image by their paths, and a function that reads a file."""
    files = Files(0, lambda _text: None)
    read_image(image, read_uuid(image).bytes, files)
    entries = dict(files.walk())

    def read(path: str) -> bytes:
        start = (entries[path].block or 0) * BLOCK_BYTES
        return image.read_bytes()[start : start + entries[path].size]

    return entries, read

"""Archives of the folders from which templates are built."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError


@dataclass(frozen=True, slots=True)
class PackedContext:
    """An archive of a folder.

    Args:
        path: Archive, compressed with gzip. It exists while the context manager is open.
        name: Name of the archive at the service: the SHA-256 of its content.
        size_bytes: Size of the archive.
    """

    path: Path
    name: str
    size_bytes: int


@contextmanager
def packed(folder: Path) -> Iterator[PackedContext]:
    """Pack a folder. Symbolic links stay links. Blocks.

    The service leaves out what ``.dockerignore`` names.

    Raises:
        NotFoundError: There is no such folder.
        InvalidRequestError: The path is not a folder.
    """
    if not folder.exists():
        raise NotFoundError(f"There is no folder {folder}.", code=ErrorCode.PATH_NOT_FOUND, hint="Pass the folder with the files of the build.")
    if not folder.is_dir():
        raise InvalidRequestError(f"{folder} is not a folder.", hint="Pass the folder with the files of the build.")
    with tempfile.TemporaryDirectory(prefix="sandlot-context-") as temporary:
        path = Path(temporary) / "context.tar.gz"
        # Without a time in its header, equal folders make equal archives.
        with (
            path.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3, mtime=0, filename="") as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for each in sorted(folder.iterdir()):
                archive.add(each, arcname=each.name, filter=_anonymous)
        with path.open("rb") as packed_file:
            digest = hashlib.file_digest(packed_file, "sha256").hexdigest()
        yield PackedContext(path, digest, path.stat().st_size)


@contextmanager
def uploadable(file: Path) -> Iterator[PackedContext]:
    """Return an archive that exists already, or pack a folder. Blocks.

    Raises:
        NotFoundError: There is no such file or folder.
    """
    if file.is_dir():
        with packed(file) as folder:
            yield folder
        return
    if not file.is_file():
        raise NotFoundError(f"There is no file {file}.", code=ErrorCode.PATH_NOT_FOUND, hint="Pass the archive of an image.")
    with file.open("rb") as archive:
        digest = hashlib.file_digest(archive, "sha256").hexdigest()
    yield PackedContext(file, digest, file.stat().st_size)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who owns a file on this machine, and what is neither a file, a folder nor a link."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info if info.isfile() or info.isdir() or info.issym() or info.islnk() else None

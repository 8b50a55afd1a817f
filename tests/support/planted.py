"""Files of the host with a random content, lying where a service and its sandboxes are near."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Planted:
    """Files of the host that nobody inside may find."""

    token: str
    files: list[Path]

    @property
    def paths(self) -> list[str]:
        return [str(path) for path in self.files]


@contextmanager
def plant(*near: Path) -> Iterator[Planted]:
    """Plant one in each of the host's folders for anybody's files, and in those; afterwards all must be as they were, and alone.

    Args:
        near: Folders that are a service's or a sandbox's.
    """
    token = secrets.token_hex(16)
    folders = [Path(tempfile.mkdtemp(prefix="sandlot-planted-", dir=parent)) for parent in ("/tmp", "/var/tmp", "/dev/shm", "/run", Path.home())]
    files = [folder / f"planted-{token}" for folder in (*folders, *near)]
    try:
        for file in files:
            file.write_text(token)
            file.chmod(0o666)
            if file.parent in folders:
                file.parent.chmod(0o777)
        yield Planted(token, files)
        assert [file.read_text() for file in files] == [token] * len(files), "a file of the host was changed"
        for folder in folders:
            assert [path.name for path in folder.iterdir()] == [f"planted-{token}"], "a file was made on the host"
        for path in near:
            assert [found.name for found in path.rglob(f"*{token}*") if found not in files] == [], "a file was made on the host"
    finally:
        for folder in folders:
            shutil.rmtree(folder)

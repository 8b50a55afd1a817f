"""Opening folders: only folders are opened, and links are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.guest.fs.paths import open_folder


def test_only_folders_are_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    here = open_folder(str(tmp_path))
    try:
        os.close(open_folder("folder", here))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for name in ("file", "link", "pipe", "none"):
            with pytest.raises(OSError, match=name):
                open_folder(name, here)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        os.close(here)

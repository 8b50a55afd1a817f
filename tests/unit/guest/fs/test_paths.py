"""Opening and creating folders, and the error codes of failed system calls."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandlot.guest.fs.paths import make_folders, open_folder, path_error


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


def test_folders_below_a_file_are_refused(tmp_path: Path) -> None:
    make_folders(str(tmp_path / "a/b"))
    make_folders(str(tmp_path / "a/b"))
    (tmp_path / "file").write_text("x")
    for path in ("file", "file/below", "file/below/more"):
        with pytest.raises(NotADirectoryError):
            make_folders(str(tmp_path / path))


def test_failed_system_calls_have_error_codes() -> None:
    codes = {
        errno.ENOENT: "path_not_found",
        errno.EEXIST: "path_exists",
        errno.ENAMETOOLONG: "path_invalid",
        errno.ENOTDIR: "path_not_directory",
        errno.EISDIR: "path_is_directory",
        errno.ENXIO: "path_not_regular",
        errno.ELOOP: "path_link_loop",
        errno.ENOTEMPTY: "path_not_empty",
        errno.EXDEV: "invalid_request",
        errno.EINVAL: "invalid_request",
        errno.EACCES: "permission_denied",
        errno.ENOSPC: "disk_full",
        errno.EDQUOT: "disk_full",
        errno.EBUSY: "conflict",
        errno.EIO: "invalid_request",
    }
    assert {number: path_error(OSError(number, "failed"), "/x").code for number in codes} == codes

"""Extended attributes that the guest sets when it boots."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from sandlot.guest.fs.attributes import set_attributes


def test_listed_attributes_are_set_and_the_others_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    mode = (tmp_path / "a").stat().st_mode
    (tmp_path / "link").symlink_to("a")
    listed = [[str(tmp_path / "none"), "user.x", "00"], [str(tmp_path / "link"), "user.x", "00"], [str(tmp_path / "a"), "user.note", "00ff"]]
    (tmp_path / "attributes.json").write_text(json.dumps([*listed, [str(tmp_path / "a"), "user.odd", "not hexadecimal"]]))
    set_attributes(str(tmp_path / "attributes.json"))
    assert (tmp_path / "a").stat().st_mode == mode
    assert {name: os.getxattr(tmp_path / "a", name) for name in os.listxattr(tmp_path / "a")} == {"user.note": b"\0\xff"}


def test_image_without_attributes_needs_no_list(tmp_path: Path) -> None:
    set_attributes(str(tmp_path / "attributes.json"))


def test_guest_boots_on_a_disk_that_is_full_after_the_last_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, listed = tmp_path / "folder", tmp_path / "attributes.json"
    folder.mkdir()
    (folder / "a").touch()
    listed.write_text(json.dumps([[str(folder / "a"), "user.note", "00"]]))
    set_attribute = os.setxattr

    def fill(path: str, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        set_attribute(path, name, value, follow_symlinks=follow_symlinks)
        (folder / "change").touch()
        monkeypatch.setattr(os, "utime", refuse)

    def refuse(path: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "setxattr", fill)
    set_attributes(str(listed))
    assert os.getxattr(folder / "a", "user.note") == b"\0"

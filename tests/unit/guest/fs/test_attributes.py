"""Extended attributes that the guest sets when it boots."""

from __future__ import annotations

import json
import os
from pathlib import Path

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

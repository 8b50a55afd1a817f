"""Overlays that are packed: the folders of the image for which the helper asks the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandlot.guest.helpers import overlay


def test_host_is_not_asked_for_folders_that_the_image_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = bytes(tmp_path)
    for path in ("old/below", "new/below/deep", "replaced/below"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "file").write_text("x")
    image = {top: [b"old", b"replaced", b"gone"], top + b"/old": [b"below", b"gone-too"], top + b"/old/below": []}  # "replaced" was a file
    asked: list[bytes] = []
    records: list[tuple[str, bytes]] = []

    def answer() -> dict[str, Any]:
        names = image.get(asked[-1])
        return {"missing": True} if names is None else {"names": names, "ctimes": [0] * len(names), "more": False}

    monkeypatch.setattr(overlay, "send", lambda _data: None)
    monkeypatch.setattr(overlay, "send_message", lambda message: asked.append(message["folder"]))
    monkeypatch.setattr(overlay, "receive_message", answer)
    packer = overlay.OverlayPacker()
    monkeypatch.setattr(overlay.OverlayPacker, "_record", lambda _self, record: records.append((record["kind"], record.get("path", b""))))
    packer._run([top])  # noqa: SLF001 - from another folder than the root
    assert sorted(asked) == [top, top + b"/old", top + b"/old/below", top + b"/replaced"]
    found = sorted((kind, path.removeprefix(top).decode()) for kind, path in records if path)
    assert [path for kind, path in found if kind == "gone"] == ["/gone", "/old/gone-too"]
    assert [path for kind, path in found if kind == "folder"] == [
        *("/new", "/new/below", "/new/below/deep", "/old", "/old/below", "/replaced", "/replaced/below"),
    ]
    assert [path for kind, path in found if kind == "file"] == ["/new/below/deep/file", "/old/below/file", "/replaced/below/file"]

"""Events of watched directories, and watchers."""

from __future__ import annotations

from sandlot.sdk.converter import structure
from sandlot.sdk.models.files import FileEvent, WatcherInfo


def test_an_event() -> None:
    raw = {"event": "moved", "path": "/w/b", "kind": "file", "source": "/w/a"}
    assert structure(FileEvent, raw) == FileEvent("moved", "/w/b", source="/w/a")
    assert structure(FileEvent, {"event": "created", "path": "/w/d", "kind": "directory"}).is_dir
    assert structure(FileEvent, {"event": "overflow"}) == FileEvent("overflow")


def test_a_watcher() -> None:
    raw = {"id": "w1", "path": "/w", "recursive": True, "by": "inotify", "of a later version": 1}
    assert structure(WatcherInfo, raw) == WatcherInfo("w1", "/w", recursive=True, by="inotify")
    assert structure(WatcherInfo, {"id": "w1", "path": "/w"}) == WatcherInfo("w1", "/w")

"""What the service says about folders that are watched, parsed."""

from __future__ import annotations

from sandlot.sdk.models.files import FileEvent, WatcherInfo


def test_an_event() -> None:
    raw = {"event": "moved", "path": "/w/b", "kind": "file", "source": "/w/a"}
    assert FileEvent.parse("moved", raw) == FileEvent("moved", "/w/b", source="/w/a")
    assert FileEvent.parse("created", {"path": "/w/d", "kind": "directory"}).is_dir
    assert FileEvent.parse("overflow", {}) == FileEvent("overflow")


def test_a_watcher() -> None:
    raw = {"watcher": "w1", "path": "/w", "recursive": True, "by": "inotify", "of a later version": 1}
    assert WatcherInfo.parse(raw) == WatcherInfo("w1", "/w", recursive=True, by="inotify")
    assert WatcherInfo.parse({"watcher": "w1", "path": "/w"}) == WatcherInfo("w1", "/w")

"""``sandlot image``, with a cache that has a build of an unknown recipe."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch
from sandlot.host.free_space import FreeSpace
from sandlot.images.artifact_cache import ArtifactCache
from sandlot.images.package_changes import PackageChange
from sandlot.images.store import Image, ImageStore, ImageUpdate
from tests.unit.sdk.scripted import Reply, Script, Seen, events

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    def build(folder: Path, _lock: object) -> None:
        (folder / "manifest.json").write_text(json.dumps({"name": "old", "size_bytes": 3 << 20, "digest": "d" * 64}))

    ArtifactCache(tmp_path, "roots", FreeSpace(tmp_path)).ensure(KEY, build, lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_builds_are_listed_and_deleted(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--cache", str(cache)]
    assert dispatch(["image", "ls", *at]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (head, row[:3], row[-1]) == (["KIND", "KEY", "SIZE", "BUILT", "NAME", "FROM", "USE"], ["roots", KEY, "3M"], "old")
    assert dispatch(["image", "ls", "--json", *at]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["digest"], listed["origin"]) == ("old", "d" * 64, "")
    assert dispatch(["image", "rm", "b" * 64, KEY, *at]) == 1
    out, err = capsys.readouterr()
    assert out == f"{KEY}\n"
    assert "sandlot image ls" in err
    assert dispatch(["image", "ls", "-q", *at]) == 0
    assert capsys.readouterr().out == ""


def test_unknown_template_is_an_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["image", "build", "nonsense", "--cache", str(cache)]) == 1
    assert capsys.readouterr().err.startswith("sandlot: ")


BUILD = {
    "id": "b1",
    "template": "tmpl-1",
    "owner": "local",
    "status": "ready",
    "tags": ["default"],
    "step": "",
    "error": "",
    "size_bytes": 1,
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "ended_at": None,
}


@pytest.mark.parametrize(
    "reference, template, dockerfile, tags",
    [
        ("python:3.12", "python", "FROM docker.io/library/python:3.12\n", ["default", "3.12"]),
        ("registry.example:5000/team/App.js@sha256:" + "a" * 64, None, None, None),
        ("registry.example:5000/team/app.js", "app-js", "FROM registry.example:5000/team/app.js:latest\n", ["default", "latest"]),
        ("node@sha256:" + "a" * 64, "node", "FROM docker.io/library/node@sha256:" + "a" * 64 + "\n", ["default"]),
    ],
)
def test_pulled_image_becomes_a_template(
    there: Script, capsys: pytest.CaptureFixture[str], reference: str, template: str | None, dockerfile: str | None, tags: list[str] | None
) -> None:
    there.say(_built)
    assert dispatch(["image", "pull", reference]) == (1 if template is None else 0)
    if template is None:
        assert "not a reference of an image" in capsys.readouterr().err
        return
    assert capsys.readouterr().out == "b1\n"
    (started,) = [each for each in there.seen if each.method == "POST"]
    assert (started.path, started.json()) == (f"/v1/templates/{template}/builds", {"dockerfile": dockerfile, "tags": tags})


def test_archive_becomes_a_template(there: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(_built)
    (tmp_path / "My-App.tar.gz").write_bytes(b"archive")
    assert dispatch(["image", "import", str(tmp_path / "My-App.tar.gz"), "--image", "app:1", "--tag", "v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "b1"
    upload, started = (each for each in there.seen if each.method in {"PUT", "POST"})
    name = hashlib.sha256(b"archive").hexdigest()
    assert (upload.path, upload.body) == (f"/v1/build-contexts/{name}", b"archive")
    assert (started.path, started.json()) == ("/v1/templates/my-app/builds", {"archive": name, "image": "app:1", "tags": ["v1"]})
    assert dispatch(["image", "import", str(tmp_path / "none.tar")]) == 1
    assert "There is no file" in capsys.readouterr().err


def _built(request: Seen) -> Reply:
    if request.path.endswith("/log"):
        return events(("end", BUILD))
    return Reply(201 if request.method == "POST" else 200, BUILD)


def test_update_shows_digests_and_changed_packages(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (Image("small", KEY, digest * 64, cache, 1, 1, {}) for digest in "de")
    changed = PackageChange("deb", "bash", "5.1", "5.2")
    updates = [ImageUpdate(old, new, [changed]), ImageUpdate(old, old, []), ImageUpdate(None, new, [])]
    built: list[str] = []
    monkeypatch.setattr(ImageStore, "update", lambda _self, names, _progress: updates if names == ["small"] else [])
    monkeypatch.setattr(ImageStore, "root", lambda _self, name, _progress: built.append(name))
    at = ["--cache", str(cache)]
    assert dispatch(["image", "update", "small", *at]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small: digest dddddddddddd -> eeeeeeeeeeee",
        "  deb:bash 5.1 -> 5.2",
        "small: unchanged, digest dddddddddddd",
        "small: built, digest eeeeeeeeeeee",
    ]
    assert built == ["small"] * 3
    assert dispatch(["image", "update", "small", "--json", *at]) == 0
    first, _, last = json.loads(capsys.readouterr().out)
    assert first == {"name": "small", "old": "d" * 64, "new": "e" * 64, "changes": [{"kind": "deb", "name": "bash", "old": "5.1", "new": "5.2"}]}
    assert last["old"] is None
    assert dispatch(["image", "update", *at]) == 0  # nothing is built
    assert capsys.readouterr().out == ""

"""Trees, watches, changed files and signed URLs through the SDK and the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.cli.main import dispatch
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError
from sandlot.sdk import FileEvent, TransferProgress
from tests.support.archives import archive, entry
from tests.support.localservice import EVERY_DAY, ISOLATIONS, ON_GVISOR, LocalService, local_service
from tests.support.traces import settle


@pytest.fixture(scope="module", params=EVERY_DAY)
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service({"SANDLOT_UPLOAD_MAX_BYTES": str(1 << 20)}, isolation=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    # What a sandbox's own environment says to dynamic loaders and to Python must not matter to what Sandlot runs inside.
    poisoned = {"LD_PRELOAD": "/workspace/none.so", "PYTHONHOME": "/nowhere", "PYTHONPATH": "/workspace", "LC_ALL": "xx_XX"}
    with service.create(envs=poisoned) as made:
        yield made


def helpers(sandbox: Sandbox) -> int:
    """How many programs of Sandlot's run inside, beside the guest itself."""
    look = "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done 2>/dev/null"
    lines = sandbox.commands.run(look, user="root").stdout.splitlines()
    return sum("from sandlot.guest.helpers" in line for line in lines)


def test_tree_is_uploaded_and_downloaded_unchanged(sandbox: Sandbox, tmp_path: Path) -> None:
    tree, back = tmp_path / "tree", tmp_path / "back"
    deep = tree / "/".join(["deep"] * 100)
    deep.mkdir(parents=True)
    (deep / "last").write_text("last")
    (tree / "empty").mkdir()
    (tree / "large").write_bytes(os.urandom(1_000_000))
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    for number in range(100):
        (tree / "deep" / f"{number} ünï").write_bytes(bytes([number % 256]) * number)
    told: list[TransferProgress] = []
    assert sandbox.files.upload(tree, "/workspace/tree", on_progress=told.append) == 103
    assert told[-1].done_bytes == told[-1].total_bytes == sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    assert told[-1].done_files == told[-1].total_files == 103
    assert sandbox.commands.run("tree/run").stdout == "ran\n"
    told.clear()
    assert sandbox.files.download("/workspace/tree", back, on_progress=told.append) == 103
    assert told[-1].done_bytes == sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    for path in tree.rglob("*"):
        copy = back / path.relative_to(tree)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
        assert os.access(copy, os.X_OK) == os.access(path, os.X_OK)
    settle(lambda: helpers(sandbox), 0)


@ON_GVISOR
def test_links_inside_a_tree_are_kept_and_others_skipped(
    service: LocalService, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, back = tmp_path / "linked", tmp_path / "back"
    (tree / "sub").mkdir(parents=True)
    (tree / "file").write_text("content")
    links = {"to-file": "file", "to-folder": "sub", "sub/up": "../file", "loop": "loop", "dangling": "sub/nothing"}
    (tree / "sub" / "absolute").symlink_to(tree / "file")
    for name, target in {**links, "out": "/etc/passwd"}.items():
        (tree / name).symlink_to(target)
    skipped: list[str] = []
    assert sandbox.files.upload(tree, "/workspace/linked", on_skip=skipped.append) == 1
    assert [str(tree / "out") in sentence for sentence in skipped] == [True]
    found = sandbox.commands.run("cd linked; find . -type l -printf '%P %l\n'").stdout
    links["sub/absolute"] = "../file"
    assert dict(line.split() for line in found.splitlines()) == links
    sandbox.commands.run("cd linked; ln -s /workspace/linked/file absolute; ln -s /etc/passwd secret")
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))
    assert dispatch(["cp", f"{sandbox.id}:linked", str(back)]) == 0
    assert "/workspace/linked/secret" in capsys.readouterr().err
    assert {str(path.relative_to(back)): str(path.readlink()) for path in back.rglob("*") if path.is_symlink()} == {**links, "absolute": "file"}
    inode = sandbox.commands.run("stat -c %i linked/file").stdout
    (tree / "file").write_text("newer")
    assert dispatch(["cp", "--in-place", str(tree), f"{sandbox.id}:."]) == 0
    assert sandbox.commands.run("stat -c %i linked/file; cat linked/sub/up").stdout == f"{inode}newer"


@ON_GVISOR
def test_unreadable_file_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("/workspace/shut/in/secret", "x", user="root", mode=0o600)
    with pytest.raises(SandlotError) as refused:
        sandbox.files.download("/workspace/shut", tmp_path / "shut")
    assert refused.value.code is ErrorCode.PERMISSION_DENIED
    assert "/workspace/shut/in/secret" in refused.value.message
    assert sandbox.files.download("/workspace/shut", tmp_path / "open", user="root") == 1


def test_watch_reports_changes_until_the_folder_is_removed(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -p seen/sub; echo old > seen/old")
    with sandbox.files.watch("/workspace/seen", recursive=True) as events:
        assert events.by == "inotify"
        todo = (
            "echo a > seen/sub/a; echo b >> seen/old; mv seen/sub/a seen/b; mkdir seen/late; echo c > seen/late/c; rm seen/b; sleep 0.3; rm -r seen"
        )
        running = threading.Thread(target=sandbox.commands.run, args=(todo,))
        running.start()
        told = [(event.kind, event.path.removeprefix("/workspace/seen/"), event.source) for event in events]
        running.join()
    wanted = {("modified", "old", None), ("moved", "b", "/workspace/seen/sub/a"), ("created", "late", None), ("created", "late/c", None)}
    assert wanted <= set(told)
    assert ("removed", "b", None) in told
    settle(lambda: helpers(sandbox), 0)


def test_close_from_another_thread_ends_a_watch(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -p quiet")
    watch = sandbox.files.watch("/workspace/quiet")
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(list, watch)
        sandbox.commands.run("true")
        watch.close()
        assert events.result(timeout=30) == []
    settle(lambda: helpers(sandbox), 0)


@ON_GVISOR
def test_watcher_keeps_changes_for_later(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir -p later/sub")
    watchers = sandbox.files.watchers
    watched = watchers.create("/workspace/later", recursive=True)
    assert (watched.path, watched.recursive, watched.by, watchers.list()) == ("/workspace/later", True, "inotify", [watched])
    assert watchers.take(watched.id) == []
    sandbox.commands.run("echo a > later/sub/a; mkdir later/b; mv later/sub/a later/c")
    told: list[FileEvent] = []

    def moved() -> bool:
        told.extend(watchers.take(watched.id))
        return "moved" in {event.kind for event in told}

    settle(moved, expected=True)
    assert ("created", "/workspace/later/b", True, None) in {(event.kind, event.path, event.is_dir, event.source) for event in told}
    assert ("moved", "/workspace/later/c", False, "/workspace/later/sub/a") in {(each.kind, each.path, each.is_dir, each.source) for each in told}
    assert len([event for event in told if event.kind == "moved"]) == 1
    sandbox.files.remove("/workspace/later")
    settle(lambda: "gone" in {event.kind for event in watchers.take(watched.id)}, expected=True)
    again = watchers.create("/workspace", user="root")
    assert (again.recursive, watchers.list()) == (False, [again])
    watchers.delete(again.id)
    for asked in (watchers.take, watchers.delete):
        for id_ in (again.id, watched.id, "../nothing"):
            with pytest.raises(NotFoundError):
                asked(id_)
    settle(lambda: helpers(sandbox), 0)


@pytest.mark.slow
@ON_GVISOR
def test_large_file_passes_through_in_bounded_memory(service: LocalService, sandbox: Sandbox, tmp_path: Path) -> None:
    pass_through(service, sandbox, tmp_path, 48)


@pytest.mark.soak
def test_gibibyte_passes_through_in_bounded_memory(tmp_path: Path) -> None:
    for isolation in ISOLATIONS:
        with local_service(isolation=isolation) as large, large.create(disk="4G") as box:
            pass_through(large, box, tmp_path / isolation, 1024)


@pytest.mark.slow
@ON_GVISOR
def test_upload_that_fills_the_disk_is_refused_and_leaves_room(service: LocalService, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 30)
    with service.create(disk="256M") as small:
        for target in ("/workspace/huge", "/workspace/tree"):
            with pytest.raises(LimitError) as refused:
                small.files.upload(tmp_path if target.endswith("tree") else tmp_path / "huge", target)
            assert refused.value.code is ErrorCode.DISK_FULL
        small.files.write("/workspace/file", bytes(100 << 20))


def pass_through(service: LocalService, sandbox: Sandbox, folder: Path, mebibytes: int) -> None:
    """A file up and down by itself and in an archive, while the service's memory stays what it is but for some buffers."""
    source, tree, back = folder / "source", folder / "tree", folder / "back"
    tree.mkdir(parents=True)
    with source.open("wb") as file:
        for number in range(mebibytes):
            file.write(bytes([number % 256]) * (1 << 20))
    before = peak(service)
    sandbox.files.upload(source, "/workspace/large/file")
    sandbox.files.download("/workspace/large/file", back / "alone")
    sandbox.files.download("/workspace/large", back / "tree")
    for copy in (back / "alone", back / "tree/file"):
        assert same(copy, source)
        copy.unlink()
    assert peak(service) - before < 32 << 20
    sandbox.files.remove("/workspace/large")


def peak(service: LocalService) -> int:
    """The most memory that the service ever had: VmHWM, proc(5)."""
    (line,) = (line for line in Path(f"/proc/{service.pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            piece = left.read(1 << 20)
            if piece != right.read(1 << 20):
                return False
            if not piece:
                return True


@ON_GVISOR
def test_command_line_has_all_file_operations(
    service: LocalService, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/data").write_bytes(b"\x00data\xff")

    def said(*words: str, status: int = 0) -> bytes:
        assert dispatch(list(words)) == status
        out, err = capfdbinary.readouterr()
        assert status or err == b"", "nothing moves where there is no terminal"
        return out if status == 0 else err

    at = f"{sandbox.id}:cli"
    assert json.loads(said("cp", "--json", "tree", at)) == {"files": 1, "bytes": 6}
    assert said("fs", "cat", f"{at}/sub/data") == b"\x00data\xff"
    said("fs", "mkdir", f"{at}/new/er")
    said("fs", "mv", f"{at}/sub/data", "cli/new")
    assert [entry["name"] for entry in json.loads(said("fs", "ls", f"{at}/new", "--json"))] == ["data", "er"]
    assert [line.split()[-1] for line in said("fs", "ls", f"{at}/new").splitlines()] == [b"NAME", b"data", b"er/"]
    assert json.loads(said("fs", "stat", f"{at}/new/data", "--json"))["size_bytes"] == 6
    assert said("fs", "url", f"{at}/new/data").startswith(b"/v1/signed/files/content?")
    said("cp", f"{at}/new", "back")
    assert (tmp_path / "back/data").read_bytes() == b"\x00data\xff"
    assert b"not empty" in said("fs", "rm", at, status=1)
    said("fs", "rm", "-r", at)
    assert b"does not exist" in said("fs", "stat", at, status=1)
    assert b"SANDBOX:PATH" in said("fs", "ls", "here", status=2)


@pytest.mark.slow
@ON_GVISOR
def test_watch_command_ends_with_the_folder(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir told")
    environ = {**os.environ, "SANDLOT_DATA_DIR": str(service.data_dir)}
    command = [sys.executable, "-m", "sandlot.cli", "fs", "watch", "--json", f"{sandbox.id}:told"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as watching:
        settle(lambda: helpers(sandbox), 1)
        sandbox.commands.run("sleep 0.2; touch told/a; sleep 0.2; rm -r told")
        out, _ = watching.communicate()
    first = json.loads(out.splitlines()[0])
    assert (first["kind"], first["path"]) == ("created", "/workspace/told/a")
    assert watching.returncode == 0


@pytest.mark.slow
def test_upload_of_a_killed_service_is_ended_by_the_next_and_leaves_the_old_file(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/in/big", "old")
    half = archive(entry("big", content=bytes(4_000_000)))[:2_000_000]
    head = f"POST /v1/sandboxes/{sandbox.id}/files/archive?path=/workspace/in HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(service.data_dir / "sandlot.sock"))
        client.sendall(head + half)
        settle(lambda: sandbox.commands.run("ls -A in").stdout.count("\n"), 2)
        service.end(signal.SIGKILL)
    service.start()
    again = Sandbox.connect(sandbox.id, client=service.client)
    settle(lambda: (again.commands.run("ls -A in").stdout, helpers(again)), ("big\n", 0))
    assert again.files.read("/workspace/in/big") == "old"

"""Stored files, executions and events: by the SDK, by the command line, and over a kill of the service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from threading import Thread

import pytest

from sandlot import AsyncClient, Sandbox
from sandlot.cli.main import dispatch
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.sdk import EventInfo, ExecutionInfo
from tests.support.localservice import LocalService

MIB = 1024 * 1024


def ended(service: LocalService, execution: str) -> ExecutionInfo:
    while (found := service.client.executions.get(execution)).status == "running":
        time.sleep(0.02)
    return found


def test_file_is_uploaded_injected_kept_downloaded_and_deleted(service: LocalService, sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "data set.csv"
    source.write_bytes(os.urandom(3 * MIB))
    moved: list[int] = []
    kept = service.client.file_store.upload(source, on_progress=lambda told: moved.append(told.done_bytes))
    assert (kept.filename, kept.media_type, kept.size_bytes, moved[-1]) == ("data set.csv", "text/csv", 3 * MIB, 3 * MIB)
    assert kept.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    (entry,) = service.client.file_store.import_files(sandbox.id, [kept.id], path="/workspace/in")
    assert sandbox.commands.run("sha256sum < '/workspace/in/data set.csv'").stdout.split()[0] == kept.sha256
    back = service.client.file_store.export_file(sandbox.id, entry.path, filename="back.csv")
    assert service.client.file_store.download(back.id, tmp_path).read_bytes() == source.read_bytes()
    assert service.client.file_store.read(back.id) == source.read_bytes()
    assert [file.id for file in service.client.file_store.list(limit=1)] == [back.id]
    assert [file.id for file in service.client.file_store.iter()] == [back.id, kept.id]
    for each in (kept, back):
        service.client.file_store.delete(each.id)
    with pytest.raises(SandlotError) as gone:
        service.client.file_store.get(kept.id)
    assert gone.value.code is ErrorCode.FILE_NOT_FOUND


@pytest.mark.slow
def test_command_line_has_files_executions_and_events(
    service: LocalService, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))

    def command(*arguments: str) -> str:
        status = dispatch(list(arguments))
        out, err = capfd.readouterr()
        assert status == 0, err
        return out

    (tmp_path / "a.txt").write_text("content")
    id_ = command("store", "upload", str(tmp_path / "a.txt")).strip()
    assert "a.txt" in command("store", "ls")
    assert [file["id"] for file in json.loads(command("store", "ls", "--json"))] == [id_]
    assert command("store", "download", id_, str(tmp_path / "b.txt")).strip() == str(tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_text() == "content"
    assert command("store", "rm", id_).strip() == id_
    ran = sandbox.run_code("print('seen in the log')")
    assert ran.error is None
    (run,) = json.loads(command("execution", "ls", "--sandbox", sandbox.id, "--limit", "1", "--json"))
    assert (run["code"], run["stdout"]) == ("print('seen in the log')", "seen in the log\n")
    assert "seen in the log" in command("execution", "info", run["id"])
    events = json.loads(command("events", "--sandbox", sandbox.id, "--json"))
    assert [event["type"] for event in events] == ["sandbox.created"]
    (newest,) = json.loads(command("events", "-n", "1", "--json"))
    assert newest["sequence"] >= events[-1]["sequence"]


@pytest.mark.slow
def test_files_executions_and_events_survive_a_kill(service: LocalService) -> None:
    sandbox = service.create()
    kept = service.client.file_store.upload(b"x" * MIB, filename="kept")
    sandbox.commands.run("mkfifo /tmp/go")
    handle = sandbox.commands.run("echo begun; read -r x < /tmp/go; echo $x; exit 7", background=True)
    time.sleep(1.2)  # what a kill may cost is a second
    half = half_sent(service, 2 * MIB)
    seen: list[EventInfo] = []
    follower = Thread(target=lambda: asyncio.run(until_ended(service, sandbox.id, seen)))
    follower.start()
    time.sleep(0.3)
    service.end(signal.SIGKILL)
    half.close()
    sandbox_files = service.data_dir / "files"
    service.start()
    assert [path.name for path in sandbox_files.iterdir()] == [kept.id]
    assert service.client.file_store.read(kept.id) == b"x" * MIB
    sandbox.commands.run("echo went > /tmp/go")
    done = ended(service, handle.id)
    assert (done.status, done.exit_code, done.stdout) == ("exited", 7, "begun\nwent\n")
    service.client.file_store.delete(kept.id)
    sandbox.kill()
    follower.join(timeout=60)
    assert [event.type for event in seen] == ["sandbox.adopted", "sandbox.ended"]


async def until_ended(service: LocalService, sandbox: str, seen: list[EventInfo]) -> None:
    """Collect the events of a sandbox until it ends, also while the service is killed and started again."""
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        async for event in client.events.follow():
            if event.sandbox == sandbox:
                seen.append(event)
                if event.type == "sandbox.ended":
                    return


def half_sent(service: LocalService, size: int) -> socket.socket:
    """An upload that does not come to its end."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(service.data_dir / "sandlot.sock"))
    head = f"POST /v1/files?filename=half HTTP/1.1\r\nHost: x\r\nContent-Length: {2 * size}\r\n\r\n"
    connection.sendall(head.encode() + b"x" * size)
    return connection

"""The local service starts by itself: for many clients at once, after a kill, and with a clear word where it cannot."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.cli.main import dispatch
from sandlot.model.errors import HostError, UnavailableError
from sandlot.sdk import Client, LocalService, local_service
from tests.support.environ import clean_environ


def end(folder: Path, number: signal.Signals) -> None:
    """End the service of a state directory, if one runs, and wait until it has gone."""
    try:
        with Client(data_dir=folder, autostart=False) as client:
            pid = client.service.version().pid
    except UnavailableError:
        return
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, number)
    ended, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    assert ended


def empty(folder: Path) -> None:
    """Remove the sandboxes of a state directory, which would outlive its service."""
    with contextlib.suppress(UnavailableError), Client(data_dir=folder, autostart=False) as client:
        for box in client.sandboxes.list():
            client.sandboxes.kill(box.id)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own, whose path may be too long for a unix socket.
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path
    empty(path)
    end(path, signal.SIGTERM)
    shutil.rmtree(path)


def test_concurrent_clients_start_one_service_and_stop_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from sandlot.sdk import Client; print(Client().service.version().pid)"
    env = clean_environ() | {"SANDLOT_DATA_DIR": str(folder / "new")}
    clients = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(3)]
    told = [client.communicate() for client in clients]
    assert [error for _, error in told if error] == []
    assert len({pid for pid, _ in told}) == 1
    pid = int(told[0][0])
    assert os.getsid(pid) == pid, "it does not end with the terminal of whoever started it"
    assert (folder / "new").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(folder / "new"))
    assert dispatch(["service", "stop"]) == 0
    assert not LocalService(folder / "new").is_running()


@pytest.mark.slow
def test_client_starts_the_next_service_after_a_kill_and_after_a_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_ISOLATION_ALLOWED", "gvisor,container")
    log = LocalService(folder).log_file
    log.write_bytes(b"x" * (local_service.LOG_ROTATE_BYTES + 1))
    with Client(data_dir=folder) as client:
        first = client.service.version().pid
        assert log.with_suffix(".log.1").stat().st_size == local_service.LOG_ROTATE_BYTES + 1
        assert log.stat().st_size < local_service.LOG_ROTATE_BYTES
        assert log.stat().st_mode & 0o777 == 0o600
        end(folder, signal.SIGKILL)
        assert (folder / "sandlot.sock").exists(), "it left its socket behind"
        assert not LocalService(folder).is_running()
        kept = Sandbox.create("base", isolation="container", client=client)
        second = client.service.stop().pid
        assert second != first
        with Client(data_dir=folder) as next_client, Sandbox.create("base", isolation="container", client=next_client) as sandbox:
            assert sandbox.commands.run("echo works").stdout == "works\n"
            assert next_client.service.version().pid != second
            assert kept.id in {box.id for box in next_client.sandboxes.list()}


@pytest.mark.slow
def test_service_that_does_not_start_shows_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_LOG_LEVEL", "loud")
    with Client(data_dir=folder) as client, pytest.raises(UnavailableError) as failed:
        client.service.version()
    assert "SANDLOT_LOG_LEVEL is 'loud'" in str(failed.value)
    assert str(folder / "service.log") in str(failed.value)


OTHER_USER = """
import os, sys
import sandlot.sdk._sync.backend
from sandlot.sdk import Client
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
for folder in sys.argv[1:]:
    try:
        Client(data_dir=folder).service.version()
    except Exception as error:
        print(repr(error), error, getattr(error, "hint", ""))
"""
"""The interpreter may lie where nobody else may go, so the user changes only once everything is loaded."""


@pytest.mark.slow
def test_other_users_are_told_what_to_do(folder: Path) -> None:
    used, unused = folder / "used", folder / "unused"
    for each in (folder, used, unused):
        each.mkdir(exist_ok=True)
        each.chmod(0o755)
    with Client(data_dir=used) as client:
        client.service.version()
    assert used.stat().st_mode & 0o777 == 0o700, "an empty folder that others may read is made private"
    done = subprocess.run([sys.executable, "-c", OTHER_USER, used, unused], capture_output=True, text=True, check=False)
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2, done
    for refusal in refusals:
        assert "HostError" in refusal
        assert "SANDLOT_URL" in refusal
        assert "root" in refusal
    end(used, signal.SIGTERM)


def test_data_directory_whose_path_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with Client(data_dir=tmp_path / ("x" * 100)) as client, pytest.raises(HostError, match="SANDLOT_DATA_DIR"):
        client.service.version()

"""The local service of a data directory, without starting one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from sandlot.model.errors import HostError, UnsupportedError
from sandlot.sdk import LocalService
from sandlot.sdk.config import DATA_DIR


def test_data_directory_is_the_argument_the_variable_or_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDLOT_DATA_DIR", raising=False)
    assert LocalService().data_dir == DATA_DIR
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(tmp_path))
    assert LocalService().data_dir == tmp_path
    assert LocalService(tmp_path / "other").log_file == tmp_path / "other" / "service.log"


def test_service_runs_while_its_socket_accepts_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a unix socket is short
    local = LocalService(tmp_path)
    assert not local.is_running()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("sandlot.sock")
        listening.listen()
        assert local.is_running()
    assert local.socket.exists()
    assert not local.is_running(), "a killed service leaves its socket file"


def test_path_too_long_for_a_socket_is_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError):
        LocalService(tmp_path / ("x" * 120)).is_running()


def test_live_sandboxes_are_entries_of_their_directory(tmp_path: Path) -> None:
    local = LocalService(tmp_path / "data")
    assert not local.has_sandboxes()
    (tmp_path / "data" / "sandboxes").mkdir(parents=True)
    assert not local.has_sandboxes()
    (tmp_path / "data" / "sandboxes" / "sb-1").mkdir()
    assert local.has_sandboxes()


def test_other_users_than_root_start_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="root"):
        LocalService(tmp_path / "data").ensure()
    assert not (tmp_path / "data").exists()


def test_other_systems_than_linux_start_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedError, match="Linux") as error:
        LocalService(tmp_path / "data").ensure()
    assert "SANDLOT_URL" in error.value.hint
    assert not (tmp_path / "data").exists()


def test_system_without_unix_sockets_has_no_local_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(UnsupportedError) as error:
        LocalService(tmp_path / "data").is_running()
    assert "SANDLOT_URL" in error.value.hint


def test_environment_without_the_service_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(HostError, match="client only") as error:
        LocalService(tmp_path / "data").ensure()
    assert "sandlot[server]" in error.value.hint
    assert not (tmp_path / "data").exists()


def test_file_in_place_of_the_data_directory_is_an_error_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(HostError):
        LocalService(tmp_path / "data").ensure()

"""``sandlot mcp install``: printed and written configurations."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SANDLOT_API_KEY", "k1")
    monkeypatch.delenv("SANDLOT_URL", raising=False)
    monkeypatch.delenv("SANDLOT_DATA_DIR", raising=False)
    return tmp_path


def test_configuration_is_printed_and_no_file_is_changed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["mcp", "install", "cursor", "--url", "https://sandbox.test/"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["mcpServers"]["sandlot"]["url"] == "https://sandbox.test/mcp"
    assert ".cursor/mcp.json" in printed.err
    assert list(place.iterdir()) == []


def test_written_file_is_private_and_keeps_other_servers(place: Path) -> None:
    assert dispatch(["mcp", "install", "vscode", "--write"]) == 0
    file = place / ".vscode" / "mcp.json"
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0
    entry = json.loads(file.read_text())["servers"]["sandlot"]
    assert (entry["args"], entry["env"]) == (["mcp"], {"SANDLOT_API_KEY": "k1"})
    assert dispatch(["mcp", "install", "cursor", "--write", "--user"]) == 0
    assert (place / "home" / ".cursor" / "mcp.json").is_file()


def test_unknown_client_and_missing_program_are_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert dispatch(["mcp", "install", "emacs"]) == 1
    assert "claude, cursor, vscode, codex" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dispatch(["mcp", "install", "claude", "--write"]) == 1
    assert "Claude Code is not installed" in capsys.readouterr().err


def test_claude_is_configured_by_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert dispatch(["mcp", "install", "claude", "--write", "--url", "https://sandbox.test/mcp"]) == 0
    assert (tmp_path / "arguments").read_text().splitlines()[-2:] == ["--header", "Authorization: Bearer k1"]

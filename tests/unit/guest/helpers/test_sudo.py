"""The command line of ``sudo`` in a sandbox."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

from sandlot.protocol import values


@pytest.fixture
def sudo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "values", values)
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = resources.files("sandlot") / "guest" / "helpers" / "sudo.py"
    with resources.as_file(source) as path:
        spec = importlib.util.spec_from_file_location("sandlot_sudo", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "line,argv,variables,keep",
    [
        (["id"], ["id"], {}, False),
        (["-E", "env", "-i"], ["env", "-i"], {}, True),
        (["-nH", "-u", "root", "--", "A=1"], ["A=1"], {}, False),
        (["A=1", "B=x=y", "env"], ["env"], {"A": "1", "B": "x=y"}, False),
        (["./x=y/z"], ["./x=y/z"], {}, False),
        (["apt-get", "install", "-y", "x"], ["apt-get", "install", "-y", "x"], {}, False),
    ],
)
def test_supported_command_lines_are_parsed(sudo: ModuleType, line: list[str], argv: list[str], variables: dict[str, str], keep: bool) -> None:  # noqa: FBT001
    wish = sudo.parse(line)
    assert (wish.argv, wish.variables, wish.keep) == (argv, variables, keep)


def test_options_i_and_s_start_a_shell(sudo: ModuleType) -> None:
    assert sudo.parse(["-i"]).argv in (["/bin/bash"], ["/bin/sh"])
    assert sudo.parse(["-s", "echo", "hi"]).argv[1:] == ["-c", "echo hi"]


@pytest.mark.parametrize("line", [[], ["-E"], ["-u", "daemon", "id"], ["-Z", "id"], ["-u"]])
def test_invalid_command_line_is_refused(sudo: ModuleType, line: list[str]) -> None:
    with pytest.raises(sudo.UsageError):
        sudo.parse(line)


def test_install_folders_of_the_caller_are_watched(sudo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/dist-packages"
    site.mkdir(parents=True)
    (tmp_path / "lib/python3.11").joinpath("other").touch()
    monkeypatch.setattr(sudo, "INSTALL_PREFIX", str(tmp_path))
    before = sudo.install_times()
    assert before == sudo.install_times()
    assert set(before) == {"bin", "lib/node_modules", "lib/python3.11/dist-packages"}
    os.utime(site, ns=(1, 1))
    assert sudo.install_times() != before
    if os.getuid() == 0:
        os.chown(tmp_path, 1000, 1000)
        assert sudo.install_times() == {}
    monkeypatch.setattr(sudo, "INSTALL_PREFIX", str(tmp_path / "none"))
    assert sudo.install_times() == {}

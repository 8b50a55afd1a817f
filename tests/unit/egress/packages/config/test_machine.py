"""Reading this machine's configuration from its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.egress.packages.config.machine import PackageSources


def test_files_and_variables_of_a_home_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://index.example/simple\n", encoding="utf-8")
    (tmp_path / ".npmrc").write_text("registry=https://npm.example/\n//npm.example/:_authToken=secret-token\n", encoding="utf-8")
    (tmp_path / ".netrc").write_text("machine index.example login me password secret-word\n", encoding="utf-8")
    found = PackageSources.of_this_machine({"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PIP_EXTRA_INDEX_URL": "https://extra.example/s"})
    assert found.pypi.indexes == ("https://index.example/simple/", "https://extra.example/s/")
    assert [each.netloc for each in found.pypi.access.credentials] == ["index.example"]
    assert found.npm.registry == "https://npm.example/"
    assert found.npm.access.authorization("https://npm.example/x") == "Bearer secret-token"
    assert set(found.debian.archives) == {"debian", "debian-security"}
    assert "secret" not in repr(found)
    assert "secret" not in caplog.text


def test_unreadable_file_is_ignored_and_logged_without_its_content(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".netrc").write_text("machine index.example login me passwort secret-word\n", encoding="utf-8")
    (tmp_path / ".npmrc").write_bytes(b"registry=https://\xff\xfe\n")
    (tmp_path / ".pip").touch()
    found = PackageSources.of_this_machine({"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PIP_INDEX_URL": "https://index.example/simple"})
    assert found.pypi.access.credentials == ()
    assert ".netrc is ignored" in caplog.text
    assert ".npmrc is ignored" in caplog.text
    assert "secret" not in caplog.text

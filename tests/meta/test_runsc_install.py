"""``scripts/setup --runsc``: a build from a file or from a server is installed after its checksum was verified; everything else leaves nothing."""

from __future__ import annotations

import hashlib
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandlot.host.programs import find_source, installed_runtimes
from tests.meta.tree import SCRIPTS

NEWER = "release-20260817.0"


@pytest.fixture
def released(tmp_path: Path) -> Iterator[str]:
    """URL of a folder that a server on loopback serves, with a build and its checksum."""
    release(tmp_path / "served", NEWER)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/runsc"
    server.shutdown()
    thread.join()
    server.server_close()


def release(folder: Path, version: str) -> Path:
    """Write a program that reports a version as runsc does, and its checksum in the format of gVisor's releases."""
    folder.mkdir()
    program = folder / "runsc"
    program.write_text(f"#!/bin/sh\necho 'runsc version {version}'\necho 'spec: 1.1.0'\n")
    program.chmod(0o755)
    (folder / "runsc.sha512").write_text(f"{hashlib.sha512(program.read_bytes()).hexdigest()}  runsc\n")
    return program


def install(source: str | Path, prefix: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the installer with the interpreter of the system, as ``scripts/setup`` does."""
    argv = ["/usr/bin/python3", str(SCRIPTS / "runsc.py"), str(source), "--prefix", str(prefix), *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_build_from_a_server_is_installed_and_reported_with_its_origin(released: str, tmp_path: Path) -> None:
    prefix = tmp_path / "local"
    done = install(f"{released}?token=secret", prefix)
    assert done.returncode == 0, done.stderr
    assert files(prefix) == ["bin/runsc", "share/sandlot/runsc.json"]
    assert "secret" not in (prefix / "share/sandlot/runsc.json").read_text(encoding="utf-8")
    (found,) = installed_runtimes(str(prefix / "bin"))
    assert (found.version, found.build_date, found.source) == (NEWER, "2026-08-17", released)


def test_replaced_program_is_not_reported_with_the_recorded_origin(released: str, tmp_path: Path) -> None:
    prefix = tmp_path / "local"
    assert install(released, prefix).returncode == 0
    program = prefix / "bin/runsc"
    program.write_text(f"{program.read_text(encoding='utf-8')}# changed\n")
    assert released not in find_source(program)


def test_build_from_a_file_needs_its_checksum(tmp_path: Path) -> None:
    program, prefix = release(tmp_path / "release", NEWER), tmp_path / "local"
    (tmp_path / "release/runsc.sha512").unlink()
    assert install(program, prefix).returncode == 1
    assert files(prefix) == []
    digest = hashlib.sha512(program.read_bytes()).hexdigest()
    assert install(program, prefix, "--sha512", digest.upper()).returncode == 0
    assert json.loads((prefix / "share/sandlot/runsc.json").read_text(encoding="utf-8"))["sha512"] == digest


def test_plain_http_needs_the_checksum_as_an_option(tmp_path: Path) -> None:
    refused = install("http://mirror.invalid/runsc", tmp_path / "local")
    assert refused.returncode == 1
    assert "--sha512" in refused.stderr


@pytest.mark.parametrize("version", ["0.0~20221219.0", "VERSION_MISSING"])
def test_unsupported_release_is_refused(tmp_path: Path, version: str) -> None:
    program, prefix = release(tmp_path / "release", version), tmp_path / "local"
    assert install(program, prefix).returncode == 1
    assert files(prefix) == []


def test_build_with_another_checksum_leaves_the_installed_one(released: str, tmp_path: Path) -> None:
    prefix = tmp_path / "local"
    assert install(released, prefix).returncode == 0
    before = {name: (prefix / name).read_bytes() for name in files(prefix)}
    (tmp_path / "served/runsc").write_text("#!/bin/sh\necho 'runsc version release-20270101.0'\n")
    refused = install(released, prefix)
    assert refused.returncode == 1
    assert {name: (prefix / name).read_bytes() for name in files(prefix)} == before

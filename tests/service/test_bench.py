"""``sandlot bench`` against a real service: figures, reasons for missing ones, and nothing left, also after an interrupt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.environ import clean_environ
from tests.support.localservice import LocalService

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("service", ["container"], indirect=True)]

BENCH = (sys.executable, "-m", "sandlot.cli", "bench", "--quick")


def begun(service: LocalService, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    env = clean_environ() | {"SANDLOT_DATA_DIR": str(service.data_dir)}
    return subprocess.Popen([*BENCH, *arguments], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_bench_prints_figures_and_reasons_for_missing_ones(service: LocalService, tmp_path: Path) -> None:
    only = "noop,create_cold,upload_mb_s,pause_resume,fork_1"
    running = begun(service, tmp_path, "--isolation", "container", "--only", only, "--output", "figures.json")
    stdout, stderr = running.communicate(timeout=250)
    assert running.returncode == 0, stderr.decode()
    told = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert (told["schema"], told["isolation"], told["quick"]) == (1, "container", True)
    rows = told["rows"]
    assert set(rows) == set(only.split(","))
    for key in ("noop", "create_cold", "upload_mb_s", "pause_resume"):
        assert rows[key]["p50_ms"] > 0
        assert rows[key]["n"] > 0
        assert rows[key]["yardstick_ms"] > 0
        assert "why" not in rows[key]
    assert rows["create_cold"]["made_by"] == {"booted": rows["create_cold"]["n"]}
    assert set(rows["pause_resume"]["parts"]) == {"answer", "pause", "resume"}
    assert rows["fork_1"]["p50_ms"] is None, "a container's memory cannot be written down"
    assert rows["fork_1"]["why"]
    lines = {line.split()[0]: line for line in stdout.decode().splitlines()}
    assert rows["fork_1"]["why"].split()[0] in lines["fork_1"]
    assert {"noop", "create_cold", "resume"} <= set(lines)
    assert nothing_is_left(service)


def test_interrupted_bench_leaves_nothing(service: LocalService, tmp_path: Path) -> None:
    pools = service.client.pools.list()
    running = begun(service, tmp_path, "--isolation", "container", "--only", "claim_command")
    try:
        while not any(pool.ready > 1 for pool in service.client.pools.list()):
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 128 + signal.SIGINT, stderr.decode()
    assert b"Traceback" not in stderr
    assert nothing_is_left(service)
    assert service.client.pools.list() == pools


def nothing_is_left(service: LocalService) -> bool:
    """Whether no sandbox and no snapshot is there; what ends is given a moment."""
    for _ in range(100):
        if not service.client.sandboxes.list() and not service.client.snapshots.list():
            return True
        time.sleep(0.1)
    return False

"""Probes: remembered and repeated results, and reasons of missing capabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.drivers.oci import probe
from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.oci.runtime import Program
from sandlot.drivers.registry import DriverSettings
from sandlot.host.programs import content_sha256
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Capabilities, DriverCapability, ProbeResult, RuntimeInfo
from sandlot.testing.drivers.leftovers import leftovers

YES = ProbeResult(ok=True)


def test_host_without_a_runtime_has_no_capability_and_reports_the_fix(tmp_path: Path) -> None:
    def missing() -> Program:
        raise HostError("runsc is not installed.", code=ErrorCode.HOST_NOT_READY, hint="Install it.")

    can = OciDriver("gvisor", DriverSettings(new_node_id(), tmp_path), Runsc(missing)).probe()
    assert not any(can.can(ability) for ability in DriverCapability)
    assert can.why_not(DriverCapability.BOOT) == "runsc is not installed. Install it."
    assert can.runtime is None


def test_message_of_a_failing_runtime_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    node = new_node_id()
    broken = tmp_path / "runsc"
    broken.write_text("#!/bin/sh\necho no luck today >&2; exit 3\n")
    broken.chmod(0o755)
    driver = OciDriver("gvisor", DriverSettings(node, tmp_path / "state"), Runsc(lambda: Program("runsc", broken, content_sha256(broken), "broken")))
    can = driver.probe()
    assert not can.can(DriverCapability.BOOT)
    assert "no luck today" in can.why_not(DriverCapability.BOOT)
    assert can.runtime == RuntimeInfo("runsc", "broken")
    assert leftovers(tmp_path / "state", node) == ()


def test_available_driver_is_remembered_and_a_missing_one_is_probed_again(tmp_path: Path) -> None:
    asked = []

    def find() -> Program:
        asked.append(1)
        if len(asked) < 3:
            raise HostError("none", code=ErrorCode.HOST_NOT_READY)
        return find_runsc()

    driver = OciDriver("gvisor", DriverSettings(new_node_id(), tmp_path), Runsc(find))
    assert [driver.probe().can(DriverCapability.BOOT) for _ in range(2)] == [False, False]
    assert driver.probe().can(DriverCapability.BOOT)
    assert driver.probe() is driver.probe()


def test_files_of_a_killed_probe_are_swept(tmp_path: Path) -> None:
    driver = OciDriver("gvisor", DriverSettings(new_node_id(), tmp_path), Runsc())
    left = tmp_path / "sandboxes" / ".probe-gvisor" / "root"
    left.mkdir(parents=True)
    assert asyncio.run(driver.sweep(())) == 0
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_missing_snapshots_are_probed_again_after_a_minute_and_no_capability_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[dict[DriverCapability, ProbeResult]] = [
        {DriverCapability.BOOT: YES, DriverCapability.SNAPSHOT: ProbeResult(ok=False, reason="the disk is full")},
        {DriverCapability.BOOT: ProbeResult(ok=False, reason="busy"), DriverCapability.SNAPSHOT: YES},
    ]
    monkeypatch.setattr(probe, "try_capabilities", lambda *_: Capabilities("gvisor", RuntimeInfo("runsc", "x"), looks.pop(0)))
    driver = OciDriver("gvisor", DriverSettings(new_node_id(), tmp_path), Runsc())
    assert [driver.probe().can(DriverCapability.SNAPSHOT) for _ in range(2)] == [False, False]
    monkeypatch.setattr(probe, "SNAPSHOT_RETRY_S", 0.0)  # as if a minute had passed
    assert {ability: driver.probe().can(ability) for ability in (DriverCapability.BOOT, DriverCapability.SNAPSHOT)} == {
        DriverCapability.BOOT: True,
        DriverCapability.SNAPSHOT: True,
    }
    assert driver.probe() is driver.probe()
    assert looks == []

"""The OCI configuration of a container."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.container.config import oci_config
from sandlot.link.payload import GUEST_ARGV
from sandlot.model.ids import SandboxId
from sandlot.model.specs import MIB, Limits, RootFs, SandboxSpec, Shape
from sandlot.protocol.schema import NETWORK_ARGUMENT

LIMITS = Limits(cpus=0.5, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
SHAPE = Shape(RootFs("x", Path("/cache/tree")), LIMITS)
SPEC = SandboxSpec(id=SandboxId("sb-ab27-aaaaaaaaaaaaaaaa"), env={"SECRET": "of the tenant"}, limits=LIMITS)


def config() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(oci_config(SHAPE, SPEC, 0x70010000, 65536, has_card=False)))
    return made


def test_guest_of_a_sandbox_with_a_card_is_told_so() -> None:
    with_card = oci_config(SHAPE, SPEC, 0x70010000, 65536, has_card=True)
    assert with_card["process"]["args"] == [*GUEST_ARGV, NETWORK_ARGUMENT]
    with_card["process"]["args"].pop()
    assert json.loads(json.dumps(with_card)) == config(), "no capability and no namespace differs"


def test_guest_is_process_1_with_a_minimal_environment() -> None:
    process = config()["process"]
    assert process["args"] == list(GUEST_ARGV)
    assert process["user"] == {"uid": 0, "gid": 0}
    assert process["cwd"] == "/"
    assert [entry.split("=")[0] for entry in process["env"]] == ["PATH", "HOME"]
    assert not process["terminal"]
    assert process["noNewPrivileges"]
    assert {limit["type"]: limit["hard"] for limit in process["rlimits"]} == {"RLIMIT_CORE": 1}


def test_capabilities_that_open_the_kernel_are_omitted() -> None:
    capabilities = config()["process"]["capabilities"]
    assert set(capabilities) == {"bounding", "effective", "permitted"}
    (held,) = {tuple(names) for names in capabilities.values()}
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN"} <= set(held)
    assert len(held) == 12
    for refused in (
        "SYS_ADMIN",
        "NET_ADMIN",
        "NET_RAW",
        "SYS_MODULE",
        "SYS_RAWIO",
        "SYS_BOOT",
        "SYS_TIME",
        "BPF",
        "PERFMON",
        "SYS_RESOURCE",
        "MKNOD",
    ):
        assert f"CAP_{refused}" not in held


def test_sandbox_has_its_own_namespaces_and_the_network_of_its_stage() -> None:
    linux = config()["linux"]
    assert linux["namespaces"][0] == {"type": "user", "path": "/run/sandlot/ids"}
    assert linux["namespaces"][1:] == [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")]
    assert linux["uidMappings"] == linux["gidMappings"] == [{"containerID": 0, "hostID": 0x70010000, "size": 65536}]
    assert "cgroupsPath" not in linux
    assert "resources" not in linux
    assert config()["hostname"] == SPEC.id


def test_nothing_of_the_host_is_mounted() -> None:
    mounts = {mount["destination"]: mount for mount in config()["mounts"]}
    assert [mount["source"] for mount in mounts.values() if mount["type"] == "bind"] == ["/run/sandlot/boot_id"]
    assert {mount["type"] for mount in mounts.values()} == {"proc", "tmpfs", "devpts", "bind"}
    assert all("nosuid" in mount["options"] for mount in mounts.values())
    assert "ro" in mounts["/sys"]["options"]
    assert f"size={128 * MIB}" in mounts["/dev/shm"]["options"]
    assert "/cache" not in json.dumps(config())
    assert "of the tenant" not in json.dumps(config())


def test_proc_files_about_the_host_are_masked_and_settings_are_read_only() -> None:
    linux = config()["linux"]
    assert {"/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/proc/cmdline", "/proc/partitions", "/proc/fs"} <= set(linux["maskedPaths"])
    assert len(set(linux["maskedPaths"])) == len(linux["maskedPaths"])
    assert linux["readonlyPaths"] == ["/proc/sys", "/proc/sys/kernel/random/boot_id"]
    assert linux["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"

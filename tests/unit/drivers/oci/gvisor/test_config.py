"""The OCI configuration of a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.gvisor.config import oci_config
from sandlot.drivers.oci.gvisor.plan import group_limits
from sandlot.link.payload import GUEST_ARGV
from sandlot.model.specs import MIB, Limits, RootFs, Shape
from sandlot.protocol.schema import NETWORK_ARGUMENT

LIMITS = Limits(cpus=0.5, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
SHAPE = Shape(RootFs("x", Path("/cache/tree")), LIMITS)


def config(*, has_hub: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(oci_config(SHAPE, group_limits(LIMITS), has_hub=has_hub, has_card=False)))
    return made


def test_guest_is_process_1_with_a_minimal_environment() -> None:
    process = config()["process"]
    assert process["args"] == list(GUEST_ARGV)
    assert process["user"] == {"uid": 0, "gid": 0}
    assert process["cwd"] == "/"
    assert [entry.split("=")[0] for entry in process["env"]] == ["PATH"]
    assert not process["terminal"]
    assert process["noNewPrivileges"]
    assert {limit["type"]: limit["hard"] for limit in process["rlimits"]}["RLIMIT_CORE"] == 0


def test_guest_of_a_sandbox_with_a_card_is_told_so() -> None:
    with_card = oci_config(SHAPE, group_limits(LIMITS), has_hub=True, has_card=True)
    assert with_card["process"]["args"] == [*GUEST_ARGV, NETWORK_ARGUMENT]
    with_card["process"]["args"].pop()
    assert json.loads(json.dumps(with_card)) == config(), "no capability and no namespace differs"


def test_namespace_that_runsc_copies_is_the_only_difference() -> None:
    copied = oci_config(SHAPE, group_limits(LIMITS), has_hub=True, has_card=False, netns="/proc/self/ns/net")
    (network,) = (each for each in copied["linux"]["namespaces"] if each["type"] == "network")
    assert network.pop("path") == "/proc/self/ns/net"
    assert json.loads(json.dumps(copied)) == config()


def test_image_is_named_by_annotations_and_nothing_else_differs() -> None:
    shape = Shape(RootFs("x", image=Path("/cache/image"), index=Path("/cache/index")), LIMITS)
    of_image = json.loads(json.dumps(oci_config(shape, group_limits(LIMITS), has_hub=True, has_card=False)))
    assert of_image.pop("annotations") == {
        "dev.gvisor.spec.rootfs.source": "/run/sandlot/image",
        "dev.gvisor.spec.rootfs.type": "erofs",
        "dev.gvisor.spec.rootfs.overlay": "dir=/run/sandlot/disk",
    }
    of_tree = config()
    assert of_tree.pop("annotations") == {}
    assert of_image == of_tree


def test_dangerous_capabilities_are_omitted() -> None:
    capabilities = config()["process"]["capabilities"]
    assert set(capabilities) == {"bounding", "effective", "permitted"}
    (held,) = {tuple(names) for names in capabilities.values()}
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_SYS_ADMIN"} <= set(held)
    assert not {"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_BOOT", "CAP_SYS_TIME", "CAP_BPF"} & set(held)


def test_no_bundle_names_a_device() -> None:
    """CVE-2026-96812: builds of runsc before 20260824 pass character devices of a bundle or an image to the host."""
    for has_hub in (True, False):
        bundle = config(has_hub=has_hub)
        assert "devices" not in bundle["linux"]
        assert "devices" not in bundle["linux"]["resources"]
        assert [mount for mount in bundle["mounts"] if mount["source"].startswith("/dev")] == []
        assert [mount for mount in bundle["mounts"] if mount["type"] == "bind" and "nodev" not in mount["options"]] == []


def test_nothing_of_the_host_is_mounted() -> None:
    mounts = {mount["destination"]: mount for mount in config()["mounts"]}
    hub = mounts.pop("/.sandlot/volumes")  # empty, until it has a volume
    assert (hub["source"], {"rslave", "nosuid", "nodev"} <= set(hub["options"])) == ("/run/sandlot/volumes", True)
    assert "/.sandlot/volumes" not in [mount["destination"] for mount in config(has_hub=False)["mounts"]]
    assert {mount["type"] for mount in mounts.values()} == {"proc", "sysfs", "tmpfs"}
    assert "ro" in mounts["/sys"]["options"]
    assert f"size={128 * MIB}" in mounts["/dev/shm"]["options"]
    assert "/tmp" not in mounts, "it stays on the disk"
    assert "/cache" not in json.dumps(config())
    assert "of the tenant" not in json.dumps(config())

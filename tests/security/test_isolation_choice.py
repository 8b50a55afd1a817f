"""The operator decides how sandboxes are isolated; a request chooses within that, and nobody gets less without a word.

What a sandbox really is, is looked at on the host: which program started it and what its kernel calls itself inside.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ErrorCode, HostError
from tests.support.inside import IN_GVISOR
from tests.support.localservice import LocalService, local_service


def runtimes(service: LocalService) -> list[str]:
    """The runtimes that there are sandboxes of, from their own folders on the host."""
    return sorted(Path(json.loads(file.read_text())["runtime"]).name for file in (service.data_dir / "sandboxes").glob("*/record.json"))


def shares_the_hosts_kernel(sandbox: Sandbox) -> bool:
    """Whether it says so: the kernel of gVisor calls itself 4.4.0."""
    return sandbox.commands.run("uname -r").stdout.strip() == Path("/proc/sys/kernel/osrelease").read_text().strip()


@IN_GVISOR
def test_sandbox_has_and_reports_the_requested_or_default_isolation(service: LocalService) -> None:
    """The service's operator allows both and has set no default."""
    requested = ("container", "gvisor", None)
    with ExitStack() as stack:
        container, gvisor, default = [stack.enter_context(service.create(isolation=isolation)) for isolation in requested]
        assert runtimes(service) == ["crun", "runsc", "runsc"]
        assert [shares_the_hosts_kernel(sandbox) for sandbox in (container, gvisor, default)] == [True, False, False]
        found = {info.id: info.isolation for info in service.client.sandboxes.list()}
        assert found == {container.id: "container", gvisor.id: "gvisor", default.id: "gvisor"}


def test_unavailable_default_fails_without_fallback(tmp_path: Path) -> None:
    """A host without runsc, whose operator allows containers as well: a request that does not ask for one gets none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    crun = shutil.which("crun")
    assert crun is not None
    (programs / "crun").symlink_to(crun)
    with local_service({"PATH": str(programs), "SANDLOT_ISOLATION_ALLOWED": "gvisor,container"}) as service:
        for asked in (None, "gvisor"):
            with pytest.raises(HostError, match="runsc") as refused:
                service.create(isolation=asked)
            assert refused.value.code is ErrorCode.HOST_NOT_READY
            assert runtimes(service) == []
        with service.create(isolation="container"):
            assert runtimes(service) == ["crun"]

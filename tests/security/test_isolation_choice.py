"""The operator decides how sandboxes are isolated; a request chooses within that, and nobody gets less without a word.

What a sandbox really is, is looked at on the host: which program started it and what its kernel calls itself inside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError
from tests.support.localservice import LocalService, local_service
from tests.support.traces import settle


@pytest.fixture(scope="module")
def as_delivered() -> Iterator[LocalService]:
    """A service whose operator has decided nothing."""
    with local_service() as running:
        yield running


@pytest.fixture(scope="module")
def both(shared_service: LocalService) -> LocalService:
    """A service whose operator allows both isolation types. A test names the type; None takes the default, which nobody set."""
    if not shared_service.is_alive():
        shared_service.start()
    return shared_service


def runtimes(service: LocalService) -> list[str]:
    """The runtimes that there are sandboxes of, from their own folders on the host."""
    return sorted(Path(json.loads(file.read_text())["runtime"]).name for file in (service.data_dir / "sandboxes").glob("*/record.json"))


def shares_the_hosts_kernel(sandbox: Sandbox) -> bool:
    """Whether it says so: the kernel of gVisor calls itself 4.4.0."""
    return sandbox.commands.run("uname -r").stdout.strip() == Path("/proc/sys/kernel/osrelease").read_text().strip()


def test_gvisor_is_what_one_gets_without_asking(as_delivered: LocalService) -> None:
    for asked in (None, "auto", "gvisor"):
        with as_delivered.create(isolation=asked) as sandbox:
            assert sandbox.info().isolation == "gvisor"
            assert not shares_the_hosts_kernel(sandbox)
            assert runtimes(as_delivered) == ["runsc"]
        settle(lambda: runtimes(as_delivered), list[str]())


@pytest.mark.parametrize("asked", ["container", "microvm"])
def test_what_the_operator_does_not_allow_is_forbidden_and_makes_nothing(as_delivered: LocalService, asked: str) -> None:
    with pytest.raises(ForbiddenError) as refused:
        as_delivered.create(isolation=asked)
    assert refused.value.code is ErrorCode.FORBIDDEN
    assert "gvisor" in refused.value.hint
    assert runtimes(as_delivered) == []


@pytest.mark.parametrize("asked", ["", "runc", "none", "GVISOR", "gvisor,container", "../gvisor"])
def test_what_is_no_isolation_is_refused(both: LocalService, asked: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        both.create(isolation=asked)
    assert refused.value.fields["field"] == "isolation"
    assert runtimes(both) == []


def test_what_is_asked_for_is_what_it_is_and_everybody_can_see_it(both: LocalService) -> None:
    with both.create(isolation="container") as container, both.create(isolation="gvisor") as gvisor, both.create(isolation=None) as neither:
        assert runtimes(both) == ["crun", "runsc", "runsc"]
        assert [shares_the_hosts_kernel(box) for box in (container, gvisor, neither)] == [True, False, False]
        assert {info.id: info.isolation for info in both.client.sandboxes()} == {container.id: "container", gvisor.id: "gvisor", neither.id: "gvisor"}


def test_the_operator_may_make_another_the_default() -> None:
    with local_service({"SANDLOT_ISOLATION_ALLOWED": "container", "SANDLOT_ISOLATION_DEFAULT": "container"}) as service:
        with service.create() as sandbox:
            assert (sandbox.info().isolation, runtimes(service)) == ("container", ["crun"])
        with pytest.raises(ForbiddenError):
            service.create(isolation="gvisor")


def test_where_the_default_does_not_work_nothing_weaker_is_taken(tmp_path: Path) -> None:
    """A host without runsc, whose operator allows containers as well: a request that does not ask for one gets none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    crun = shutil.which("crun")
    assert crun is not None
    (programs / "crun").symlink_to(crun)
    with local_service({"PATH": str(programs), "SANDLOT_ISOLATION_ALLOWED": "gvisor,container"}) as service:
        for asked in (None, "auto", "gvisor"):
            with pytest.raises(HostError, match="runsc") as refused:
                service.create(isolation=asked)
            assert refused.value.code is ErrorCode.HOST_NOT_READY
            assert runtimes(service) == []
        with service.create(isolation="container"):
            assert runtimes(service) == ["crun"]

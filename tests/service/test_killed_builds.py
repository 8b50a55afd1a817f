"""SIGKILL of the service in each phase of a build: the build has failed, nothing of it is left, and the next one uses the step cache."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.builds.runtime import RESTARTED
from sandlot.model.errors import NotFoundError
from sandlot.sdk.models.templates import TemplateBuild
from tests.support.localservice import LocalService, local_service
from tests.support.roots import busybox_image
from tests.support.traces import NOTHING, settle

pytestmark = pytest.mark.slow

DOCKERFILE = """\
FROM scratch
ENV PATH=/bin
COPY bin /bin
RUN sleep 2.2; echo drawn > /drawn
COPY big /big
RUN wc -c < /big > /size
"""
SIZE = 32 << 20
PHASES = {
    "base": ("Preparing the base", f"FROM registry/none:1\n{DOCKERFILE.partition(chr(10))[2]}"),
    "a command": ("begun", f"{DOCKERFILE}RUN echo begun; sleep 1000\n"),
    "a copy": ("COPY big /big", DOCKERFILE),
    "the reading of the files": ("Saving the files of the template", DOCKERFILE),
    "the start command": ("Waiting for the ready command", f"{DOCKERFILE}CMD sleep 1000\n"),
    "the root image": ("sending layer 1 of 1", DOCKERFILE),
}
"""Phase -> line of the log at which the service is killed, and the Dockerfile."""
ENDLESS = ("base", "a command", "the start command")
"""Phases that do not end, so that the kill always comes in time."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """A registry that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def building_service(registry: str) -> Iterator[LocalService]:
    with local_service({"SANDLOT_REGISTRIES": f"http://{registry}"}, isolation="gvisor") as running:
        yield running


def files(service: LocalService) -> dict[str, int]:
    """Return the number of temporary files, of unfinished uploads and of layers."""
    builds = service.data_dir / "builds"
    return {
        "tmp": len(list((builds / "tmp").iterdir())),
        "parts": len([path for path in builds.rglob("*") if "part" in path.name]),
        "layers": len(list((builds / "layers").iterdir())) if (builds / "layers").exists() else 0,
    }


@pytest.mark.parametrize(
    "phases",
    [
        pytest.param(("a command", "the root image"), id="some"),
        pytest.param(("base", "a copy", "the reading of the files", "the start command"), id="the others", marks=pytest.mark.soak),
    ],
)
def test_killed_build_has_failed_and_leaves_only_its_cached_steps(
    building_service: LocalService, registry: str, tmp_path: Path, phases: tuple[str, ...]
) -> None:
    service, templates = building_service, building_service.client.templates
    shutil.copytree(busybox_image() / "bin", tmp_path / "bin", symlinks=True)
    (tmp_path / "big").write_bytes(os.urandom(SIZE))
    for phase in phases:
        line, text = PHASES[phase]
        ready = "false" if phase == "the start command" else None
        begun = templates.start_build("killed", dockerfile=text.replace("registry", registry), context=tmp_path, ready_command=ready)
        next(each for each in templates.follow_log(begun.id) if line in each.text)
        service.end(signal.SIGKILL)
        service.start()
        check(service, templates.get_build(begun.id), must_fail=phase in ENDLESS)
    seen: list[str] = []
    assert templates.build("killed", dockerfile=DOCKERFILE, context=tmp_path, on_line=lambda each: seen.append(each.text)).status == "ready"
    assert any(each.startswith("CACHED RUN sleep 2.2") for each in seen)
    with service.create(template="killed") as sandbox:
        assert sandbox.commands.run("cat /drawn /size").stdout.split() == ["drawn", str(SIZE)]
    assert files(service) == {"tmp": 0, "parts": 0, "layers": 1}
    templates.delete("killed")
    settle(lambda: files(service)["layers"], 0)


def check(service: LocalService, build: TemplateBuild, *, must_fail: bool) -> None:
    """Check that a build has failed, or that it is whole; nothing of it runs or lies about."""
    if must_fail or build.status != "ready":
        assert build.status == "failed"
        assert build.error == RESTARTED
        with pytest.raises(NotFoundError):
            Sandbox.create("killed", client=service.client)
        assert files(service) == {"tmp": 0, "parts": 0, "layers": 0}
    settle(lambda: len(service.client.sandboxes.list()), 0)
    settle(service.traces, NOTHING)

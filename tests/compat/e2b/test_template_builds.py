"""Template builds by E2B's own client, on a service whose builds are recorded instead of run."""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from e2b import Template
from e2b.exceptions import BuildException

from sandlot.builds.plan import ImageBase, TemplateBase
from tests.support import builds
from tests.support.builds import FAILING, copies

T = TypeVar("T")


@dataclass
class Rig:
    """A service, and the options of a client with a key."""

    service: builds.Rig

    @property
    def builds(self) -> builds.StandInBuilds:
        return self.service.builds

    @property
    def options(self) -> dict[str, Any]:
        return {"api_key": self.service.key, "api_url": f"{self.service.url}/e2b"}

    async def client(self, call: Callable[..., T], *args: Any, **options: Any) -> T:  # noqa: ANN401 - those of the client
        """Call the client, which blocks, in a thread."""
        return await asyncio.to_thread(call, *args, **{**self.options, **options})

    async def another_key(self) -> dict[str, Any]:
        return {**self.options, "api_key": await self.service.another_key()}


@pytest.fixture
def rig(rig: builds.Rig) -> Rig:
    return Rig(rig)


def simple() -> Any:  # noqa: ANN401 - the client's builders
    return Template().from_base_image().run_cmd("echo hello")


async def test_template_is_built_from_files_and_commands(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_text("content")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_python_image("3.12")
        .copy("src", "/app/", user="root", mode=0o755)
        .run_cmd("pip install x", user="root")
        .set_envs({"A": "1"})
        .set_workdir("/app")
        .set_user("app")
        .set_start_cmd("serve", "sleep 1")
    )
    lines: list[str] = []
    info = await rig.client(
        Template.build,
        template,
        "my-app:v1",
        tags=["stable"],
        cpu_count=2,
        memory_mb=1024,
        min_free_disk_mb=8192,
        on_build_logs=lambda line: lines.append(line.message),
    )
    assert info.tags == ["v1", "stable"]
    plan = rig.builds.plans[info.build_id]
    assert plan.stages[0].base == ImageBase("python:3.12")
    assert (plan.user, plan.working_dir, plan.start_command, plan.ready_command) == ("user", "/home/user", "serve", "sleep 1")
    (copy,) = copies(plan)
    assert (copy.sources, copy.destination, copy.owner, copy.mode) == (("src",), "/app/", "root", 0o755)
    archive = rig.builds.contexts[info.build_id][str(copy.origin)]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        member = tar.extractfile("src/a.txt")
        assert member is not None
        assert member.read() == b"content"
    assert any("pip install x" in line for line in lines)
    record = await rig.client(get_template, info.template_id)
    assert (record["cpuCount"], record["memoryMB"], record["diskSizeMB"]) == (2, 1024, 8192)
    assert (record["buildStatus"], record["public"], record["names"]) == ("ready", False, ["my-app"])
    assert [build["buildID"] for build in record["builds"]] == [info.build_id]
    # The files are here already.
    lines.clear()
    await rig.client(Template.build, template, "my-app", on_build_logs=lambda line: lines.append(line.message))
    assert any("already cached" in line for line in lines)


def get_template(template: str, *, api_url: str, api_key: str) -> Any:  # noqa: ANN401 - JSON
    return httpx.get(f"{api_url}/templates/{template}", headers={"X-API-KEY": api_key}).raise_for_status().json()


async def test_files_can_be_uploaded_again(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    lines: list[str] = []
    for force in (None, True):
        template = Template(file_context_path=str(tmp_path)).from_base_image().copy("a.txt", "/", force_upload=force)
        await rig.client(Template.build, template, "again", on_build_logs=lambda line: lines.append(line.message))
    assert len([line for line in lines if line.startswith("Uploaded")]) == 2  # forceUpload


async def test_template_starts_from_another_template_without_the_cache(rig: Rig) -> None:
    info = await rig.client(Template.build, Template().from_template("code-interpreter-v1").run_cmd("true"), "child", skip_cache=True)
    plan = rig.builds.plans[info.build_id]
    assert plan.stages[0].base == TemplateBase("code-interpreter")
    assert plan.ignores_cache  # force
    info = await rig.client(Template.build, Template().from_template("child").skip_cache().run_cmd("true"), "grandchild")
    assert rig.builds.plans[info.build_id].ignores_cache  # force of a step


async def test_failed_step_is_reported_with_its_reason(rig: Rig) -> None:
    template = Template().from_base_image().run_cmd("true").run_cmd(FAILING)
    lines: list[str] = []
    with pytest.raises(BuildException, match="failed to run command"):
        await rig.client(Template.build, template, "broken", on_build_logs=lambda line: lines.append(line.message))
    assert "it did not work" in lines
    info = await rig.client(Template.build_in_background, template, "broken")
    await rig.builds.ended(info.build_id)
    status = await rig.client(Template.get_build_status, info)
    assert status.reason is not None
    assert (status.reason.step, [line.message for line in status.reason.log_entries]) == ("2", [f"RUN {FAILING}", "it did not work"])


async def test_background_build_is_building_until_it_ends(rig: Rig) -> None:
    rig.builds.gate.clear()
    info = await rig.client(Template.build_in_background, simple(), "slow")
    assert (await rig.client(Template.get_build_status, info, logs_offset=0)).status.value == "building"
    rig.builds.gate.set()
    await rig.builds.ended(info.build_id)
    status = await rig.client(Template.get_build_status, info)
    assert status.status.value == "ready"
    assert [line.message for line in (await rig.client(Template.get_build_status, info, logs_offset=1)).log_entries] == ["RUN echo hello"]


async def test_long_logs_are_read_in_pages(rig: Rig) -> None:
    template = simple()
    for number in range(150):
        template = template.run_cmd(f"echo {number}")
    lines: list[str] = []
    await rig.client(Template.build, template, "long", on_build_logs=lambda line: lines.append(line.message))
    assert [line for line in lines if line.startswith("RUN echo ")][1:] == [f"RUN echo {number}" for number in range(150)]


async def test_tags_are_assigned_listed_and_removed(rig: Rig) -> None:
    first = await rig.client(Template.build, simple(), "tagged:v1")
    second = await rig.client(Template.build, simple(), "tagged")
    assert (await rig.client(Template.assign_tags, "tagged:v1", ["stable", "v1.0"])).build_id == first.build_id
    tags = {tag.tag: tag.build_id for tag in await rig.client(Template.get_tags, "tagged")}
    assert tags == {"v1": first.build_id, "stable": first.build_id, "v1.0": first.build_id, "default": second.build_id}
    await rig.client(Template.remove_tags, "tagged", ["v1", "stable"])
    assert {tag.tag for tag in await rig.client(Template.get_tags, first.template_id)} == {"v1.0", "default"}
    assert await rig.client(Template.exists, "tagged:v1.0")
    assert not await rig.client(Template.exists, "tagged:v1")


async def test_templates_of_other_keys_do_not_exist(rig: Rig) -> None:
    info = await rig.client(Template.build, simple(), "mine")
    other = await rig.another_key()
    assert await rig.client(Template.exists, "mine")
    assert not await rig.client(Template.exists, "mine", **other)
    for call in (
        lambda: Template.get_build_status(info, **other),
        lambda: Template.get_tags("mine", **other),
        lambda: Template.assign_tags("mine", ["x"], **other),
    ):
        with pytest.raises(Exception, match="There is no"):
            await asyncio.to_thread(call)
    theirs = await rig.client(Template.build, simple(), "mine", **other)
    assert theirs.template_id != info.template_id


async def test_calls_of_older_clients_are_served(rig: Rig) -> None:
    async with httpx.AsyncClient(base_url=rig.options["api_url"], headers={"X-API-KEY": rig.options["api_key"]}) as http:
        made = (await http.post("/v2/templates", json={"alias": "older", "cpuCount": 1})).raise_for_status().json()
        here = f"/templates/{made['templateID']}/builds/{made['buildID']}"
        assert (await http.post(f"/v2{here}", json={"fromTemplate": "base", "steps": [{"type": "RUN", "args": ["true"]}]})).status_code == 202
        await rig.builds.ended(made["buildID"])
        assert {entry["level"] for entry in (await http.get(f"{here}/status")).json()["logEntries"]} == {"info"}
        assert (await http.get(f"{here}/status", params={"level": "error"})).json()["logEntries"] == []


async def test_unsupported_options_of_builds_are_refused_by_name(rig: Rig) -> None:
    with pytest.raises(BuildException, match="fromImageRegistry"):
        await rig.client(Template.build, Template().from_image("x", username="user", password="secret"), "mine")  # noqa: S106 - a refusal
    async with httpx.AsyncClient(base_url=rig.options["api_url"], headers={"X-API-KEY": rig.options["api_key"]}) as http:
        answer = await http.post("/v3/templates", json={"name": "mine", "teamID": "team"})
        assert (answer.status_code, "teamID" in answer.text) == (501, True)

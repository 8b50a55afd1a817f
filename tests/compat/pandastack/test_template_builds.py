"""Template builds by PandaStack's own client, on a service whose builds are recorded instead of run."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import httpx
import pytest
from pandastack import BadRequestError, Client, NotFoundError, TemplateBuildError

from sandlot.builds.plan import EmptyBase, ImageBase, Run
from sandlot.model.errors import LimitError
from sandlot.model.images import ImageConfig
from tests.support.builds import FAILING, Rig, copies


async def test_template_is_built_from_a_dockerfile_and_its_context(rig: Rig, client: Client, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_bytes(b"content")
    (tmp_path / "name").write_bytes(b"x" * 1000)
    dockerfile = "FROM python:3.12\nCOPY src /src\nRUN echo hello\n"

    def build() -> list[str]:
        made = client.templates.build_from_dockerfile("mine", dockerfile, context_dir=str(tmp_path), cpu=2, memory_mb=2048, size_mb=8192)
        assert (made.name, made.status) == ("mine", "queued")
        lines = list(client.templates.build_logs(made.id))
        done = client.templates.wait_for_build(made.id)
        assert (done.status, done.error, done.bytes) == ("done", None, 1 << 20)
        assert done.started_at is not None
        assert done.ended_at is not None
        assert [each.id for each in client.templates.builds()] == [made.id]
        assert list(client.templates.build_logs(made.id, follow=False)) == lines
        return lines

    assert await asyncio.to_thread(build) == ["COPY src /src", "RUN echo hello"]
    record = await rig.last()
    assert (record.limits.cpus, record.limits.memory_bytes, record.limits.disk_bytes) == (2, 2048 << 20, 8192 << 20)
    plan = rig.builds.plans[record.id]
    assert plan.stages[0].base == ImageBase("python:3.12")
    with tarfile.open(fileobj=io.BytesIO(rig.builds.contexts[record.id][""])) as tar:
        assert {member.name: member.size for member in tar} == {"src/a.txt": 7, "name": 1000}
        content = tar.extractfile("src/a.txt")
        assert content is not None
        assert content.read() == b"content"
    found = await asyncio.to_thread(client.templates.get, "mine")
    assert (found.name, found.cpu, found.memory_mb, found.is_global, found.size_bytes) == ("mine", 2, 2048, False, 1 << 20)
    assert {"mine", "base"} <= {each.name for each in await asyncio.to_thread(client.templates.list)}
    await asyncio.to_thread(client.templates.delete, "mine")
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(client.templates.get, "mine")


async def test_template_is_built_from_a_dockerfile_alone(rig: Rig, client: Client) -> None:
    await asyncio.to_thread(client.templates.build_from_dockerfile, "mine", "FROM debian:12\nRUN echo ä\n")
    record = await rig.last()
    plan = rig.builds.plans[record.id]
    (step,) = plan.stages[0].source.steps(ImageConfig())
    assert isinstance(step.action, Run)
    assert step.action.command == "echo ä"


async def test_template_is_built_from_an_image(rig: Rig, client: Client) -> None:
    await asyncio.to_thread(client.templates.register, "mine", "registry.example/team/app:1")
    plan = rig.builds.plans[(await rig.last()).id]
    assert plan.stages[0].base == ImageBase("registry.example/team/app:1")  # image_ref
    assert plan.contexts == {}


async def test_template_is_built_from_a_root_file_system(rig: Rig, client: Client, tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs.tar"
    with tarfile.open(rootfs, "w") as tar:
        tar.add(__file__, "etc/file")
    build = await asyncio.to_thread(client.templates.build, "mine", None, str(rootfs), 1024, 0.01)
    assert build.status == "done"
    record = await rig.last()
    plan = rig.builds.plans[record.id]
    assert plan.stages[0].base == EmptyBase()
    (copy,) = copies(plan)
    assert (copy.sources, copy.destination, copy.unpack) == (("rootfs",), "/", True)
    with tarfile.open(fileobj=io.BytesIO(rig.builds.contexts[record.id][""])) as context:
        member = context.extractfile("rootfs")
        assert member is not None
        assert member.read() == rootfs.read_bytes()


async def test_failed_build_has_its_reason_and_log(rig: Rig, client: Client) -> None:
    def build() -> None:
        made = client.templates.build_from_dockerfile("mine", f"FROM debian\nRUN {FAILING}\n")
        assert list(client.templates.build_logs(made.id)) == [f"RUN {FAILING}", "it did not work"]
        with pytest.raises(TemplateBuildError, match="failed to run command"):
            client.templates.wait_for_build(made.id)

    await asyncio.to_thread(build)
    assert rig.builds.plans


async def test_builds_of_other_keys_do_not_exist(rig: Rig, client: Client) -> None:
    made = await asyncio.to_thread(client.templates.build_from_dockerfile, "mine", "FROM debian")
    other = Client(api_url=client.api_url, api_key=await rig.another_key())
    for call in (
        lambda: other.templates.get("mine"),
        lambda: other.templates.delete("mine"),
        lambda: other.templates.get_build(made.id),
        lambda: list(other.templates.build_logs(made.id)),
    ):
        with pytest.raises(NotFoundError):
            await asyncio.to_thread(call)
    assert await asyncio.to_thread(other.templates.builds) == []
    with pytest.raises(BadRequestError):
        await asyncio.to_thread(other.templates.delete, "base")


async def test_invalid_forms_are_refused_by_name_and_leave_nothing(rig: Rig, client: Client) -> None:
    with pytest.raises(BadRequestError, match="kernel"):
        await asyncio.to_thread(lambda: client.templates.register("mine", "debian", kernel="x"))
    headers = {"Authorization": f"Bearer {rig.key}"}
    async with httpx.AsyncClient(base_url=f"{rig.url}/pandastack/v1", headers=headers) as http:
        for data, files, field in (
            ({"dockerfile": "FROM debian"}, None, "name"),
            ({"name": "mine"}, None, "dockerfile"),
            ({"name": "mine", "dockerfile": "FROM debian", "image_ref": "debian"}, None, "dockerfile"),
            ({"name": "mine", "image_ref": "Not An Image"}, None, "Not An Image"),
            ({"name": "mine", "dockerfile": "FROM debian", "cpu": "many"}, None, "cpu"),
            ({"name": "mine", "dockerfile": "RUN true"}, None, "FROM"),
            ({"name": "mine", "dockerfile": "FROM debian"}, {"../x": ("x", b"1")}, "../x"),
            ({"name": "mine", "dockerfile": "FROM debian"}, {"/x": ("x", b"1")}, "/x"),
            ({"name": "Mine!", "dockerfile": "FROM debian"}, {"x": ("x", b"1")}, "Mine!"),
        ):
            answer = await http.post("/templates/build", data=data, files=files)
            assert (answer.status_code, field in answer.json()["error"]) == (400, True), answer.text
        assert (await http.get("/templates/builds")).json() == {"items": []}
    assert [path for path in rig.at.service.settings.build_uploads.rglob("*") if path.is_file()] == []


async def test_build_that_cannot_wait_is_cancelled(rig: Rig, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise LimitError("This key has too many waiting builds.")

    monkeypatch.setattr(rig.builds, "start", full)
    (tmp_path / "a.txt").write_bytes(b"1")
    with pytest.raises(BadRequestError, match="too many"):
        await asyncio.to_thread(lambda: client.templates.build_from_dockerfile("mine", "FROM debian", context_dir=str(tmp_path)))
    (build,) = await asyncio.to_thread(client.templates.builds)
    assert (build.status, build.error) == ("failed", "The build was cancelled.")
    assert [path for path in rig.at.service.settings.build_uploads.rglob("*") if path.is_file()] == []

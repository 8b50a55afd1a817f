"""Image builds by Tensorlake's own client, on a service whose builds are recorded instead of run."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from tensorlake.image import Image, builds, sandbox_builder

from sandlot.builds.plan import ImageBase, Run, TemplateBase
from sandlot.model.images import ImageConfig
from tests.support.builds import FAILING, Rig, copies


@pytest.fixture
def rig(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rig:
    """The service, which the client finds by its variables."""
    monkeypatch.setenv("TENSORLAKE_API_URL", f"{rig.url}/tensorlake")
    monkeypatch.setenv("TENSORLAKE_API_KEY", rig.key)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    return rig


@pytest.fixture
def dockerfile(tmp_path: Path) -> str:
    """A Dockerfile in a folder with a file."""
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"content")
    (folder / "Dockerfile").write_text("FROM python:3.12\nARG NAME\nCOPY a.txt /app/\nRUN echo $NAME\n")
    return str(folder / "Dockerfile")


def http_of(rig: Rig) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{rig.url}/tensorlake", headers={"Authorization": f"Bearer {rig.key}"})


async def test_image_is_built_from_a_dockerfile_and_its_context(rig: Rig, dockerfile: str) -> None:
    built = await asyncio.to_thread(
        lambda: sandbox_builder.build_sandbox_image(
            dockerfile, registered_name="Mine", disk_mb=8192, build_args={"NAME": "x"}, cpus=1.0, memory_mb=512
        )
    )
    record = await rig.last()
    plan = rig.builds.plans[record.id]
    assert plan.stages[0].base == ImageBase("python:3.12")
    with tarfile.open(fileobj=io.BytesIO(rig.builds.contexts[record.id][""])) as tar:
        assert set(tar.getnames()) == {"a.txt", "Dockerfile"}  # dockerfile_path
    (copy,) = copies(plan)
    assert (copy.sources, copy.destination) == (("a.txt",), "/app/")
    run = [step.action for step in plan.stages[0].source.steps(ImageConfig()) if isinstance(step.action, Run)][-1]
    assert run.env["NAME"] == "x"
    assert record.limits.disk_bytes == 8192 << 20
    assert (built["name"], built["id"], built["snapshotId"], built["snapshotSizeBytes"]) == ("mine", record.template, record.id, 1 << 20)
    found = await asyncio.to_thread(sandbox_builder.find_sandbox_image_by_name, "mine")
    assert found is not None
    assert (found["id"], found["public"]) == (record.template, False)
    assert [each["name"] for each in await asyncio.to_thread(sandbox_builder.list_sandbox_images)] == ["mine"]
    await asyncio.to_thread(sandbox_builder.delete_sandbox_image, "mine")
    assert await asyncio.to_thread(sandbox_builder.find_sandbox_image_by_name, "mine") is None


async def test_image_of_the_builder_starts_from_another_image(rig: Rig) -> None:
    for image, base in (
        (Image(name="first", base_image="tensorlake/ubuntu-minimal"), TemplateBase("code-interpreter")),
        (Image(name="second", base_image="base"), TemplateBase("base")),
        (Image(name="third", base_image="debian:12"), ImageBase("debian:12")),
    ):
        await asyncio.to_thread(image.run("echo hello").build)
        plan = rig.builds.plans[(await rig.last()).id]
        assert plan.stages[0].base == base
        assert [step.text for step in plan.stages[0].source.steps(ImageConfig())][-1] == "RUN echo hello"


async def test_image_is_imported(rig: Rig) -> None:
    await asyncio.to_thread(lambda: sandbox_builder.import_sandbox_image("registry.example/app:1", registered_name="mine", cas=True))
    record = await rig.last()
    assert rig.builds.plans[record.id].stages[0].base == ImageBase("registry.example/app:1")  # image_ref
    handle = await asyncio.to_thread(builds.get_build, record.id)
    assert handle.info.kind == "import"


async def test_failed_build_has_its_reason(rig: Rig) -> None:
    with pytest.raises(builds.ImageBuildFailedError, match="failed to run command"):
        await asyncio.to_thread(Image(name="mine", base_image="debian").run(FAILING).build)
    assert (await rig.last()).error


async def test_build_is_started_found_and_cancelled(rig: Rig, dockerfile: str) -> None:
    rig.builds.gate.clear()

    def build() -> None:
        handle = builds.start_build(dockerfile, registered_name="mine")
        assert handle.client_request_id
        assert builds.get_build(handle.build_id).info.status in {"pending", "running"}
        with pytest.raises(builds.ImageBuildInProgressError) as error:
            builds.start_build(dockerfile, registered_name="mine")
        assert error.value.active_build_id == handle.build_id
        assert handle.cancel().outcome == "cancelled"
        assert builds.cancel_build(handle.build_id).outcome == "already_cancelled"  # build_id
        with pytest.raises(builds.ImageBuildCancelledError):
            handle.wait()

    await asyncio.to_thread(build)


async def test_admission_is_found_again_by_its_request_id(rig: Rig) -> None:
    async with http_of(rig) as http:
        asked = {"kind": "dockerfile", "name": "mine", "dockerfile_path": "Dockerfile", "parents": []}
        told = [(await http.post("/images/v4/builds", json=asked, headers={"Idempotency-Key": "once"})).json() for _ in range(2)]
        assert told[0]["build_id"] == told[1]["build_id"]
        cancel = [(await http.post("/images/v4/builds/cancel", json={"client_request_id": each})).json()["outcome"] for each in ("once", "never")]
        assert cancel == ["cancelled", "not_admitted"]


async def test_context_with_another_digest_or_without_its_dockerfile_is_refused(rig: Rig) -> None:
    async with http_of(rig) as http, httpx.AsyncClient() as without_key:
        admitted = (await http.post("/images/v4/builds", json={"kind": "dockerfile", "name": "mine"})).json()
        here, link = f"/images/v4/builds/{admitted['build_id']}/context/seal", admitted["context_upload"]["url"]
        assert (await http.post(here, json={"digest": "0" * 64})).status_code == 409  # nothing was uploaded
        (await without_key.put(link, content=b"\0" * 1024)).raise_for_status()
        assert "digest" in (await http.post(here, json={"digest": "0" * 64})).json()["error"]
        for content, reason in ((b"\0" * 1024, "Dockerfile"), (b"no archive" * 100, "tar archive")):
            (await without_key.put(link, content=content)).raise_for_status()
            answer = await http.post(here, json={"digest": hashlib.sha256(content).hexdigest()})
            assert (answer.status_code, reason in answer.json()["error"]) == (400, True), answer.text
            admitted = (await http.post("/images/v4/builds", json={"kind": "dockerfile", "name": "mine"})).json()  # the last one has failed
            here, link = f"/images/v4/builds/{admitted['build_id']}/context/seal", admitted["context_upload"]["url"]
        assert (await without_key.put(link.replace("context-", "request-"), content=b"x")).status_code == 403


async def test_unsupported_options_of_builds_are_refused_by_name(rig: Rig, dockerfile: str) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"is_public": True}, "image_scope"),
        ({"docker_config_json": '{"auths":{"registry.example":{"auth":"dTpw"}}}'}, "registry_credentials_json"),
    ]
    for options, field in refused:
        build = functools.partial(sandbox_builder.build_sandbox_image, dockerfile, registered_name="mine", **options)
        with pytest.raises(Exception, match=field):
            await asyncio.to_thread(build)
    with pytest.raises(Exception, match="501"):  # the client would drive the build itself
        await asyncio.to_thread(lambda: sandbox_builder.build_sandbox_image(dockerfile, registered_name="mine", cas=False))
    assert rig.builds.plans == {}


async def test_images_of_other_keys_do_not_exist(rig: Rig, dockerfile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.to_thread(lambda: sandbox_builder.build_sandbox_image(dockerfile, registered_name="mine"))
    build = (await rig.last()).id
    monkeypatch.setenv("TENSORLAKE_API_KEY", await rig.another_key())
    assert await asyncio.to_thread(sandbox_builder.find_sandbox_image_by_name, "mine") is None
    assert await asyncio.to_thread(sandbox_builder.list_sandbox_images) == []
    with pytest.raises(builds.ImageBuildNotFoundError):
        await asyncio.to_thread(builds.get_build, build)


async def test_images_are_listed_in_pages(rig: Rig) -> None:
    for number in range(2):
        await asyncio.to_thread(Image(name=f"image-{number}", base_image="debian").run("true").build)
    async with http_of(rig) as http:
        first = (await http.get("/images/v4/images", params={"page_size": 1})).json()
        rest = (await http.get("/images/v4/images", params={"page_size": 1, "cursor": first["pagination"]["next"]})).json()
        assert [each["name"] for each in [*first["items"], *rest["items"]]] == ["image-1", "image-0"]
        assert rest["pagination"]["next"] is None

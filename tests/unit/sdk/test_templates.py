"""Builds of templates through the SDK: uploads, logs that are followed, failures, tags."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.templates import BuiltRoot, TemplateSettings
from sandlot.sdk import AsyncClient, BuildLine, ExecutionFailedError, InvalidRequestError, NotFoundError
from sandlot.sdk.build_context import packed
from tests.support.service import Bench, bench, client


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path / "data") as here, client(here.service) as http:
        assert (await http.get("/v1/templates")).status_code == 200
        yield here


@pytest.fixture
async def sandlot(at: Bench) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"unix://{at.service.settings.socket}") as made:
        yield made


async def test_failed_build_raises_with_its_reason_after_all_lines(sandlot: AsyncClient, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM none.invalid/image\nCOPY . .\n")
    lines: list[BuildLine] = []
    with pytest.raises(ExecutionFailedError, match=r"web failed in step base: .*none\.invalid") as failed:
        await sandlot.templates.build("web", context=context, tags=["v1"], memory="2G", on_line=lines.append)
    assert lines
    build = await sandlot.templates.get_build(str(failed.value.fields["build"]))
    assert (build.status, build.tags, build.has_ended) == ("failed", ("v1",), True)
    assert await sandlot.templates.builds("web") == [build]
    assert [line async for line in sandlot.templates.follow_log(build.id, after=lines[0].number)] == lines[1:]
    assert await sandlot.templates.cancel_build(build.id) == build
    await sandlot.templates.delete("web")
    with pytest.raises(NotFoundError):
        await sandlot.templates.get_build(build.id)


async def test_tags_are_set_and_removed(at: Bench, sandlot: AsyncClient) -> None:
    builds = at.service.node.template_builds
    _, waiting = await builds.request(OPERATOR, "web")
    await builds.finish(waiting, BuiltRoot((), 1), TemplateSettings())
    await sandlot.templates.set_tag("web", "stable", waiting.id)
    assert (await builds.get(OPERATOR, "web")).tags == {"default": waiting.id, "stable": waiting.id}
    await sandlot.templates.remove_tag("web", "stable")
    assert (await builds.get(OPERATOR, "web")).tags == {"default": waiting.id}


async def test_senseless_arguments_are_refused(sandlot: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="nothing to build"):
        await sandlot.templates.build("web")
    with pytest.raises(NotFoundError, match="no folder"):
        await sandlot.templates.build("web", dockerfile="FROM base", context=tmp_path / "missing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidRequestError, match="not a folder"):
        await sandlot.templates.build("web", dockerfile="FROM base", context=tmp_path / "file")
    with pytest.raises(InvalidRequestError, match="FLY"):
        await sandlot.templates.build("web", dockerfile="FROM base\nFLY")


def test_equal_folders_make_equal_archives(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/run.sh").write_text("echo")
    (folder / "sub/run.sh").chmod(0o755)
    (folder / "link").symlink_to("sub/run.sh")
    os.mkfifo(folder / "pipe")
    with packed(folder) as first, packed(folder) as second:
        assert (first.name, first.size_bytes) == (second.name, second.size_bytes)
        with tarfile.open(first.path) as archive:
            assert archive.getnames() == ["link", "sub", "sub/run.sh"]
            assert archive.getmember("link").linkname == "sub/run.sh"
            assert archive.getmember("sub/run.sh").mode == 0o755
            assert {member.uid for member in archive} == {0}
    assert not first.path.exists()
    (folder / "sub/run.sh").write_text("other")
    with packed(folder) as third:
        assert third.name != first.name

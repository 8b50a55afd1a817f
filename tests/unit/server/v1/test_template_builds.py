"""Builds of templates over HTTP: uploads, steps in sandboxes, logs, tags, cancellation, and who may see them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandlot.builds.bases import BaseRoot
from sandlot.core.template_builds import KEPT_FAILED
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ForbiddenError
from sandlot.model.images import ImageConfig
from sandlot.model.templates import BuildLine, BuiltRoot, LogLevel, TemplateSettings
from tests.support.http import events, problem
from tests.support.service import Bench, bench, client

DOCKERFILE = "FROM base\nRUN echo built\n"


@dataclass
class Bases:
    """Bases that need no images, and results of builds without snapshots."""

    prepared: list[BuiltRoot] = field(default_factory=list)

    async def resolve(self, _principal: object, base: Any, _report: object) -> BaseRoot:  # noqa: ANN401 - of any kind
        name = getattr(base, "reference", getattr(base, "name", ""))
        if name != "base":
            raise ForbiddenError(f"The image {name!r} cannot be pulled.", hint="Build from a template.")
        return BaseRoot("base", BuiltRoot((), 1, base="0" * 64, base_name="base"), "key", ImageConfig(env={"PATH": "/bin"}))

    async def make_root_image(self, root: BuiltRoot, _report: object) -> None:
        self.prepared.append(root)

    async def save_snapshot(self, _principal: object, _build: object, _on_output: object) -> int:
        return 0

    async def prune(self, _builds: object) -> None:
        """Remove nothing."""


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path / "data") as opened:
        bases: Any = Bases()
        yield replace(opened, service=replace(opened.service, bases=bases, build_results=bases))


@pytest.fixture
async def http(at: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with client(at.service) as opened:
        assert (await opened.get("/v1/templates")).status_code == 200  # the service has started, and has failed the builds of the last one
        yield opened


async def started(http: httpx.AsyncClient, template: str = "web", **body: object) -> dict[str, Any]:
    """Start a build."""
    response = await http.post(f"/v1/templates/{template}/builds", json={"dockerfile": DOCKERFILE, **body})
    assert response.status_code == 201, response.text
    build: dict[str, Any] = response.json()
    return build


async def followed(
    http: httpx.AsyncClient, build: dict[str, Any], after: int = 0, last: str | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Follow the log of a build to its end. Return its lines and the build."""
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
    lines: list[dict[str, Any]] = []
    url = f"/v1/template-builds/{build['id']}/log"
    async with http.stream("GET", url, params={"after": after}, headers=headers) as response:
        async for name, data in events(response):
            if name == "end":
                return lines, data
            lines.append(data)
    raise AssertionError(lines)


def archive(**files: str) -> bytes:
    """Return a compressed archive of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue())


async def finished(at: Bench, name: str = "web", *tags: str) -> str:
    """Request a build without steps, let it succeed, and return its id."""
    builds = at.service.node.template_builds
    _, build = await builds.request(OPERATOR, name, tags=tags)
    await builds.log(build, [BuildLine(build.created_at, LogLevel.INFO, text, "1") for text in ("one", "two", "three")])
    done = await builds.finish(build, BuiltRoot((), 7, base="0" * 64, base_name="base"), TemplateSettings())
    assert done is not None
    return done.id


async def test_log_is_read_in_pages_and_followed(at: Bench, http: httpx.AsyncClient) -> None:
    build = {"id": await finished(at)}
    lines, ended = await followed(http, build)
    assert (ended["status"], ended["size_bytes"], ended["error"]) == ("ready", 7, "")
    assert [(line["number"], line["text"], line["step"], line["level"]) for line in lines] == [
        (number, text, "1", "info") for number, text in enumerate(("one", "two", "three"), 1)
    ]
    assert (await http.get(f"/v1/template-builds/{build['id']}")).json() == ended
    page = (await http.get(f"/v1/template-builds/{build['id']}/log", params={"after": 1, "limit": 1})).json()
    assert page == {"lines": lines[1:2], "more": True}
    assert (await followed(http, build, after=2))[0] == lines[2:]
    for last, after in (("2", 0), ("1", 2), ("3", 0)):
        assert await followed(http, build, after=after, last=last) == (lines[int(last) :], ended)
    for wrong in ("x", "-1", "9" * 10):
        sent = {"Accept": "text/event-stream", "Last-Event-ID": wrong}
        problem(await http.get(f"/v1/template-builds/{build['id']}/log", headers=sent), 400, "invalid_request")


async def test_upload_is_stored_for_its_owner(http: httpx.AsyncClient) -> None:
    packed = archive(**{"hello.txt": "from the context"})
    stored = await http.put("/v1/build-contexts/app", content=packed)
    assert (stored.status_code, stored.json()["name"], stored.json()["size_bytes"]) == (200, "app", len(packed))
    problem(await http.put("/v1/build-contexts/a.b", content=packed), 400, "invalid_request")


async def test_failed_step_is_named_and_leaves_no_template(http: httpx.AsyncClient) -> None:
    lines, ended = await followed(http, await started(http, dockerfile="FROM base\nRUN echo before\nRUN echo no >&2; exit 3\n"))
    assert (ended["status"], ended["step"]) == ("failed", "3")
    assert "3" in ended["error"]
    assert "no" in [line["text"] for line in lines]
    problem(await http.post("/v1/sandboxes", json={"template": "web"}), 404, "template_not_found")
    assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []


@pytest.mark.parametrize(
    "body, message",
    [
        ({"dockerfile": "RUN true"}, "FROM"),
        ({"dockerfile": "FROM base\nFLY away"}, "FLY"),
        ({"dockerfile": None}, "nothing to build"),
        ({"image": "x"}, "in `archive`"),
        ({"archive": "a"}, "without a Dockerfile"),
        ({"dockerfile": None, "archive": "missing"}, "not uploaded"),
        ({"context": "missing"}, "not uploaded"),
        ({"tags": ["no tag"]}, "not a tag"),
        ({"limits": {"cpus": 1000}}, "cpus"),
    ],
)
async def test_senseless_build_is_refused_before_anything_is_made(http: httpx.AsyncClient, body: dict[str, Any], message: str) -> None:
    refused = await http.post("/v1/templates/web/builds", json={"dockerfile": DOCKERFILE, **body})
    assert refused.status_code == 400, refused.text
    assert message in refused.json()["detail"]
    problem(await http.get("/v1/templates/web/builds"), 404, "template_not_found")


async def test_base_that_cannot_be_had_fails_the_build(http: httpx.AsyncClient) -> None:
    _, ended = await followed(http, await started(http, dockerfile="FROM python:3.12\nRUN true\n"))
    assert (ended["status"], ended["step"]) == ("failed", "base")
    assert "python:3.12" in ended["error"]


async def test_builds_and_tags_of_a_template(at: Bench, http: httpx.AsyncClient) -> None:
    first, second = await finished(at, "web", "v1"), await finished(at)
    page = (await http.get("/v1/templates/web/builds", params={"limit": 1})).json()
    assert [each["id"] for each in page["builds"]] == [second]
    rest = (await http.get("/v1/templates/web/builds", params={"cursor": page["next_cursor"]})).json()
    assert ([each["id"] for each in rest["builds"]], rest["next_cursor"]) == ([first], None)
    tagged = (await http.put("/v1/templates/web/tags/default", json={"build": first})).json()
    assert tagged["tags"] == {"default": first, "v1": first}
    assert (await http.delete("/v1/templates/web/tags/v1")).status_code == 204
    problem(await http.put("/v1/templates/web/tags/x", json={"build": "none"}), 404, "build_not_found")


async def test_cancelled_build_leaves_no_sandbox(http: httpx.AsyncClient) -> None:
    build = await started(http, dockerfile="FROM base\nRUN sleep 1000\n")
    cancelled = await http.post(f"/v1/template-builds/{build['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await http.post(f"/v1/template-builds/{build['id']}/cancel")).json() == cancelled.json()
    assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_deleted_template_takes_its_builds_along(http: httpx.AsyncClient) -> None:
    for _ in range(KEPT_FAILED):
        await followed(http, await started(http, dockerfile="FROM base\nRUN exit 1\n"))
    build = await started(http, dockerfile="FROM base\nRUN sleep 1000\n")  # its end makes the oldest failed build one too many
    assert (await http.delete("/v1/templates/web")).status_code == 204
    problem(await http.get(f"/v1/template-builds/{build['id']}"), 404, "build_not_found")
    problem(await http.delete("/v1/templates/web"), 404, "template_not_found")
    problem(await http.delete("/v1/templates/base"), 404, "template_not_found")
    assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []

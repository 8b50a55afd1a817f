"""Every route of the whole application, native and vendors', with every method: no request body is read beyond its limit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.types import Message, Scope

from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.specs import MIB
from sandlot.server.app import create_app, route_table
from sandlot.server.settings import Settings
from sandlot.server.vendors import VENDORS
from sandlot.web import middleware
from sandlot.web.auth import OWNER, SIGNED_PATH
from sandlot.web.body_limits import JSON_MAX_BYTES
from sandlot.web.errors import ResponseInterruptedError
from sandlot.web.json_body import JsonRoute
from tests.support.cases import cases
from tests.support.scripted_app import scripted_service
from tests.support.scripted_node import ScriptedNode

UPLOAD_MAX_BYTES = 2 * JSON_MAX_BYTES
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
IDS = ("x", "stdin", "files", "archive")
"""Ids of everything that a path names. The last parts of some paths of uploads are among them."""

STREAMED = {
    ("PUT", "/v1/sandboxes/{sandbox}/files/content"),
    ("POST", "/v1/sandboxes/{sandbox}/files/archive"),
    ("PUT", "/v1/signed/files/content"),
    ("POST", "/v1/sandboxes/{sandbox}/processes/{process}/stdin"),
    ("POST", "/v1/files"),
    ("POST", "/agentsandbox/v1/files"),
    ("POST", "/e2b/files"),
    ("POST", "/files"),
    ("POST", "/e2b/process.Process/StreamInput"),
    ("PUT", "/pandastack/v1/sandboxes/{sandbox}/fs"),
    ("POST", "/sandbase/sandboxes/{sandbox}/files"),
    ("POST", "/sandbase/sandboxes/{sandbox}/filesystem/upload"),
    ("PUT", "/tensorlake/sbx/{sandbox}/api/v1/files"),
    ("POST", "/tensorlake/sbx/{sandbox}/api/v1/processes/{process}/stdin"),
    ("PUT", "/api/v1/files"),
    ("POST", "/api/v1/processes/{process}/stdin"),
    ("PUT", "/v1/build-contexts/{archive}"),
    ("PUT", "/e2b/builds/uploads"),
    ("POST", "/pandastack/v1/templates/build"),
    ("PUT", "/tensorlake/images/v4/uploads"),
}
"""Methods and paths that take uploads; no others do."""
BUILD_UPLOADS = {("PUT", "/e2b/builds/uploads"), ("PUT", "/tensorlake/images/v4/uploads")}
"""Methods and paths that take archives for builds. Their URLs are signed."""
STORED = {
    *(("POST", "/v1/files"), ("POST", "/agentsandbox/v1/files"), ("POST", "/pandastack/v1/templates/build")),
    *(("PUT", f"/v1/build-contexts/{id_}") for id_ in IDS),
    *BUILD_UPLOADS,
}
"""Methods and paths that take uploads for the file store and for builds. All other uploads go to a sandbox and have no limit."""

CHUNK = bytes(MIB)


class EmptyNode(ScriptedNode):
    """A node on which nothing exists, but every signed URL is valid."""

    def take(self, operation: str, bound: inspect.BoundArguments) -> Principal:  # noqa: ARG002 - the same for all arguments
        if operation == "tokens.principal_of_url":
            return OPERATOR
        raise NotFoundError("There is nothing.", code=ErrorCode.NOT_FOUND)


class EndlessClient:
    """A client that sends until it is disconnected.

    Args:
        headers: Headers of the request.
        is_owner: The client is the operator; otherwise it needs a key.
    """

    def __init__(self, method: str, path: str, headers: Mapping[bytes, bytes], *, is_owner: bool = True) -> None:
        raw = path.encode()
        self.scope: Scope = {"type": "http", "method": method, "path": path, "raw_path": raw, "query_string": b"path=x", "root_path": ""}
        self.scope |= {
            "headers": list(headers.items()),
            "state": {"peer": OWNER} if is_owner else {},
            "scheme": "http",
            "http_version": "1.1",
            "server": None,
        }
        self.received_bytes = 0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> Message:
        self.received_bytes += len(CHUNK)
        return {"type": "http.request", "body": CHUNK, "more_body": True}

    async def send(self, message: Message) -> None:
        self.status = self.status or message["status"]
        self.headers |= dict(message.get("headers", ()))


def paths(templates: Iterable[str]) -> list[str]:
    """Return the paths of some templates with each of the ids."""
    return sorted({re.sub(r"{\w+(:path)?}", id_, template) for template in templates for id_ in IDS})


def is_streamed(method: str, path: str) -> bool:
    """Return True if a request is an upload by the table of this test."""
    return any(method == each and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) for each, template in STREAMED)


ROUTES = route_table()
APIS = {vendor.name: [entry for entry in ROUTES if entry.path.startswith(f"{vendor.prefix}/")] for vendor in VENDORS}
APIS["native and root"] = [entry for entry in ROUTES if not any(entry in entries for entries in APIS.values())]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401 - an ASGI app
    monkeypatch.setattr(middleware, "DRAIN_MAX_BYTES", 2 * len(CHUNK))
    return create_app(scripted_service(EmptyNode().services, replace(Settings(), data_dir=tmp_path, upload_max_bytes=UPLOAD_MAX_BYTES)))


@cases("api", APIS)
async def test_body_that_is_announced_as_too_large_is_refused_unread_on_every_route(app: Any, api: str) -> None:  # noqa: ANN401 - as above
    requests = [(method, path) for path in paths(["/none", *(entry.path for entry in APIS[api])]) for method in METHODS]
    for method, path in requests:
        if is_streamed(method, path) and (method, path) not in STORED:
            continue
        limit = UPLOAD_MAX_BYTES if is_streamed(method, path) else JSON_MAX_BYTES
        client = EndlessClient(method, path, {b"content-length": b"%d" % (limit + 1), b"content-type": b"application/json"})
        await app(client.scope, client.receive, client.send)
        assert client.status == 413, (method, path)
        assert client.received_bytes <= 2 * len(CHUNK), (method, path)


@cases("api", APIS)
async def test_endless_body_is_read_up_to_its_limit_on_every_route(app: Any, api: str) -> None:  # noqa: ANN401 - as above
    uploads = {entry.endpoint for entry in ROUTES if {(method, entry.path) for method in entry.methods} & STREAMED}
    read_too_much = set()
    for entry in APIS[api]:
        for method, path in ((method, path) for method in sorted(entry.methods) for path in paths([entry.path])):
            client = EndlessClient(method, path, {b"transfer-encoding": b"chunked", b"content-type": b"application/json"})
            with suppress(ResponseInterruptedError):  # a body that exceeds its limit after the response has begun: the connection is closed
                await app(client.scope, client.receive, client.send)
            # There is no sandbox, so nothing of a body for a sandbox is used.
            limit = JSON_MAX_BYTES if not is_streamed(method, path) else UPLOAD_MAX_BYTES if (method, path) in STORED else 0
            if client.received_bytes > limit + 3 * len(CHUNK):  # the chunk that exceeds it, and what is dropped
                read_too_much.add((method, path))
            if "endpoint" in client.scope:
                assert (client.scope["endpoint"] in uploads) == is_streamed(method, path), (method, path)
    assert read_too_much == set()


@cases("api", APIS)
async def test_body_without_a_valid_key_is_not_read_on_any_route(app: Any, api: str) -> None:  # noqa: ANN401 - as above
    for entry in APIS[api]:
        for method, path in ((method, path) for method in sorted(entry.methods) for path in paths([entry.path])):
            if path == SIGNED_PATH or (method, path) in BUILD_UPLOADS:
                continue  # it has a signature instead of a key
            for key in ({}, {b"x-api-key": b"unknown"}):
                client = EndlessClient(method, path, {b"content-length": b"%d" % (64 * MIB), **key}, is_owner=False)
                await app(client.scope, client.receive, client.send)
                assert (client.status in {200, 401, 413}, client.received_bytes) == (True, 0), (method, path)
                assert client.headers[b"connection"] == b"close", (method, path)


def test_every_json_body_is_parsed_by_the_parser_of_the_app() -> None:
    routes = [*create_app(scripted_service(EmptyNode().services)).routes, *(route for vendor in VENDORS for route in vendor.router.routes)]
    with_body = [route for route in routes if isinstance(route, APIRoute) and route.body_field is not None]
    assert len(with_body) > 50
    assert [route.path for route in with_body if not isinstance(route, JsonRoute)] == []


async def test_uploads_may_be_larger_than_json(app: Any) -> None:  # noqa: ANN401 - as above
    assert {(method, entry.path) for entry in ROUTES for method in entry.methods} >= STREAMED
    for method, template in STREAMED:
        client = EndlessClient(method, paths([template])[-1], {b"content-length": b"%d" % (JSON_MAX_BYTES + 1)})
        await app(client.scope, client.receive, client.send)
        assert client.status not in {0, 405}, (method, template)
        assert client.status != 413 or client.received_bytes > JSON_MAX_BYTES, (method, template)

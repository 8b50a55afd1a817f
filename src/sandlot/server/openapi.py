"""The API as one OpenAPI document, made from the routes: names of operations, keys, failures and event streams are said once, here.

Laws:
- A route tells what is its own (path, bodies, answers, one docstring); what holds for all of them is added here.
- It says the same on every machine: it is frozen in docs/openapi.json (``scripts/openapi.py``), so that a change of the API is seen as one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, APIWebSocketRoute, RouteContext, iter_route_contexts
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from sandlot import __version__
from sandlot.server.v1.code import CODE_EVENTS
from sandlot.server.v1.common import PROBLEM, Problem
from sandlot.server.v1.events import SANDBOX_EVENTS
from sandlot.server.v1.executions import LOG_EVENTS
from sandlot.server.v1.processes import PROCESS_EVENTS
from sandlot.server.v1.watches import WATCH_EVENTS
from sandlot.web.auth import OPEN_PATHS
from sandlot.web.models import ResponseModel

DESCRIPTION = """\
A safe place for AI agents to run code: sandboxes over HTTP.

Send `Authorization: Bearer KEY` or `X-API-Key: KEY`; on the service's unix socket no key is needed. Every answer that is no success is
`application/problem+json` (RFC 9457) with a stable `code`, a `hint` that says what to do next, and `retryable`. Times are ISO 8601 in UTC, durations
are seconds, sizes are bytes. Lists come in pages: ask again with `cursor` set to `next_cursor` until that is null.
"""

TAGS: Mapping[str, str] = {
    "service": "The service itself: health, version, what it can do and hold, what it can start from.",
    "sandboxes": "Isolated places to run code in.",
    "snapshots": "Sandboxes as they were at a moment, to start others from.",
    "code": "Code in contexts that keep its variables: run, followed as it runs, gone back to.",
    "contexts": "Kernels with state, each of one language and with its own variables.",
    "processes": "Commands: run to their end, or left in the background.",
    "execute": "Programs that are run once, each in a sandbox of its own, and graded.",
    "packages": "What pip, npm and apt install, out of the indexes that the host of the service is configured for.",
    "files": "Files inside a sandbox.",
    "file store": "Files that outlive sandboxes: uploaded once, put into any number of them, and kept out of them.",
    "volumes": "File systems that outlive sandboxes: made once, and in the folders of any number of them.",
    "executions": "The log of what ran.",
    "events": "What happened to sandboxes.",
    "webhooks": "Addresses that are told of what happens.",
    "keys": "Who may ask, and what they may take.",
    "pools": "Sandboxes that are made before anybody asks.",
}
"""A tag -> what it is about, in the order of the page."""

PARAMETERS: Mapping[str, tuple[str, str]] = {
    "sandbox": ("The sandbox's id.", "sb-k3v9-x2m4c7qpl5tnbdwy"),
    "process": ("The process's id.", "p1"),
    "port": ("The port inside, 1 to 65535.", "8000"),
    "file": ("The file's id.", "file-k3v9x2m4c7qpl5tn"),
    "webhook": ("The webhook's id.", "wh-x2m4c7qpl5tnbdwy"),
    "key": ("The key's id or its name.", "3f9a0c12b7de"),
    "snapshot": ("The snapshot's id or its name.", "snap-k3v9-x2m4c7qpl5tnbdwy"),
    "volume": ("The volume's id or its name.", "datasets"),
    "pool": ("The pool's id, or its template where you have one pool only of that.", "code-interpreter"),
    "context": ("The context's id.", "default"),
    "watcher": ("The watcher's id.", "w4d5e6f70a1b2c3d4"),
    "execution": ("The process's or cell's id.", "7d2f0a91c4e84b1f9a3d5c6b7e8f9012"),
}
"""A path's parameter that its route does not describe -> what it is, and one."""

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key: `sandlot keys create --name NAME` prints one."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key, for clients that cannot send the other header."},
}

EVENT_TABLES = (PROCESS_EVENTS, CODE_EVENTS, SANDBOX_EVENTS, LOG_EVENTS, WATCH_EVENTS)

_HEADERS = {
    "RequestId": {
        "description": "The request's id, which the service's log has too; a client may choose it by sending the same header.",
        "schema": {"type": "string"},
    },
    "RetryAfter": {
        "description": "Seconds to wait before the same request is sent again; there where `retryable` is true.",
        "schema": {"type": "integer"},
    },
}
_SCHEMAS = "#/components/schemas/{model}"
_UPGRADE = "101"


def operation_id(route: APIRoute) -> str:
    """What clients made from the document call an operation: its tag and its function's name, without saying the same twice. Pure."""
    return operation_name(str(route.tags[0]) if route.tags else "untagged", route.name)


def operation_name(tag: str, function: str) -> str:
    """An operation's name: ``files`` and ``list_files`` are ``files_list``. Pure."""
    said = {word.rstrip("s") for word in tag.split()}
    first, *more = function.split("_")
    return "_".join([*tag.split(), first, *(word for word in more if word.rstrip("s") not in said)])


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of some routes, as JSON carries it. Pure.

    Args:
        routes: An app's; those that say ``include_in_schema=False`` (a vendor's door has a document of its own) are left out.
    """
    made = get_openapi(
        title="Sandlot",
        version=__version__,
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        routes=routes,
        separate_input_output_schemas=False,
    )
    paths: dict[str, dict[str, Any]] = made["paths"]
    for route in iter_route_contexts(routes):
        # A socket does not say whether it is to be left out; ours are all below /v1, and no door's is.
        if isinstance(route.original_route, APIWebSocketRoute) and route.path is not None and route.path.startswith("/v1/"):
            paths.setdefault(route.path, {})["get"] = _socket(route)
    for path, operations in paths.items():
        for operation in operations.values():
            _complete(path, operation)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas |= _models()
    made["components"] |= {"schemas": dict(sorted(schemas.items())), "securitySchemes": SECURITY, "headers": _HEADERS}
    made["security"] = [{name: []} for name in SECURITY]
    used = {tag for operations in paths.values() for operation in operations.values() for tag in operation.get("tags", ())}
    made["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    made["servers"] = [{"url": "/", "description": "The service that serves this page."}]
    return made


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add to an operation what holds for all."""
    description = operation.get("description", "")
    summary, _, _ = description.replace("\n", " ").partition(". ")
    operation["summary"] = summary.rstrip(".") or operation.get("summary", "")
    if path in OPEN_PATHS:
        operation["security"] = []
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["name"] in PARAMETERS:
            text, example = PARAMETERS[parameter["name"]]
            parameter.setdefault("description", text)
            parameter.setdefault("example", example)
    operation["responses"] = {status: dict(response) for status, response in operation["responses"].items()}
    for status, response in operation["responses"].items():
        headers = response.setdefault("headers", {})
        headers.setdefault("X-Request-ID", {"$ref": "#/components/headers/RequestId"})
        if not status.startswith(("1", "2")):
            headers.setdefault("Retry-After", {"$ref": "#/components/headers/RetryAfter"})


def _socket(route: RouteContext) -> dict[str, Any]:
    """A WebSocket as the GET that opens it: OpenAPI has no other words for one."""
    path = route.path or ""
    tag = next((tag for tag in reversed(path.split("/")) if tag in TAGS), "service")
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "operationId": operation_name(tag, route.name or "open"),
        "tags": [tag],
        "description": inspect.getdoc(route.endpoint) or "",
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {_UPGRADE: {"description": "The connection is a WebSocket (RFC 6455) from now on."}, **PROBLEM},
    }


def _models() -> dict[str, Any]:
    """The schemas that answers beside JSON refer to: failures, and what events carry."""
    models: set[type[ResponseModel]] = {Problem, *(model for table in EVENT_TABLES for model in table.values())}
    _, made = models_json_schema([(model, "validation") for model in sorted(models, key=lambda model: model.__name__)], ref_template=_SCHEMAS)
    found: dict[str, Any] = made["$defs"]
    return found

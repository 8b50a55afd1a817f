"""OpenAPI document of the native API, made from the routes.

Invariants:
- A route describes only what is its own: path, request, responses and one docstring. What holds for all routes is added here.
- The document is the same on every machine. It is stored in docs/openapi.json (``scripts/openapi.py``), so that a review shows changes of the API.
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
from sandlot.model.ids import FILE_ID, PROCESS_ID, WEBHOOK_ID
from sandlot.server.v1.code import CODE_EVENTS
from sandlot.server.v1.common import PROBLEM, Problem
from sandlot.server.v1.events import SANDBOX_EVENTS
from sandlot.server.v1.executions import LOG_EVENTS
from sandlot.server.v1.processes import PROCESS_EVENTS
from sandlot.server.v1.watches import WATCH_EVENTS
from sandlot.web.auth import OPEN_PATHS
from sandlot.web.models import ResponseModel

DESCRIPTION = """\
Run code of AI agents in sandboxes.

Send `Authorization: Bearer KEY` or `X-API-Key: KEY`. Requests over the unix socket of the service need no key. The body of every error is
`application/problem+json` (RFC 9457) with a stable `code`, a `hint` and `retryable`. Times are ISO 8601 in UTC. `timeout`, `idle_timeout` and
`expires_in` are seconds; the names of other values end with their unit. Lists are pages: to get the next page, pass `next_cursor` of the page
as `cursor`, until `next_cursor` is null.
"""

TAGS: Mapping[str, str] = {
    "service": "State, abilities and capacity of the service.",
    "templates": "Templates that sandboxes start from.",
    "sandboxes": "Isolated environments for running code.",
    "forks": "Copies of running sandboxes.",
    "snapshots": "Saved sandboxes to start others from.",
    "code": "Code that runs in contexts, which keep their variables.",
    "contexts": "Interpreters of one language with their own variables.",
    "processes": "Commands and background processes.",
    "terminals": "Interactive terminals over WebSocket.",
    "tunnels": "Connections to ports inside sandboxes over WebSocket.",
    "previews": "Addresses under which browsers reach ports inside sandboxes.",
    "network": "Network policies of sandboxes, refusals and reached destinations.",
    "packages": "Installation of packages by pip, npm and apt.",
    "programs": "Programs that run once, with output comparison.",
    "files": "Files and directories inside a sandbox.",
    "file_store": "Uploaded files that outlive sandboxes.",
    "volumes": "Persistent file systems that sandboxes mount.",
    "executions": "Log of code and command runs.",
    "events": "Events of sandboxes, snapshots and volumes.",
    "webhooks": "Event delivery to HTTP endpoints.",
    "agents": "Agents, which call the models that the operator has configured.",
    "agent_sessions": "Conversations with agents, their messages and events.",
    "keys": "API keys and quotas.",
    "pools": "Warm pools: sandboxes started in advance.",
}
"""Tag -> its description, in the order of the page."""

PARAMETERS: Mapping[str, tuple[str, str]] = {
    "sandbox": ("Id or name of the sandbox.", "sb-k3v9-x2m4c7qpl5tnbdwy"),
    "process": ("Id of the process.", "7d2f0a91c4e84b1f9a3d5c6b7e8f9012"),
    "port": ("TCP port inside the sandbox, 1 to 65535.", "8000"),
    "file": ("Id of the stored file.", "file-k3v9x2m4c7qpl5tn"),
    "webhook": ("Id of the webhook.", "wh-x2m4c7qpl5tnbdwy"),
    "key": ("Id or name of the key.", "3f9a0c12b7de"),
    "snapshot": ("Id or name of the snapshot.", "snap-k3v9-x2m4c7qpl5tnbdwy"),
    "volume": ("Id or name of the volume.", "datasets"),
    "pool": ("Id of the pool, or its template if the key has only one pool of this template.", "code-interpreter"),
    "context": ("Id of the context.", "default"),
    "watcher": ("Id of the watcher.", "w4d5e6f70a1b2c3d4"),
    "execution": ("Id of the code or command run.", "7d2f0a91c4e84b1f9a3d5c6b7e8f9012"),
    "agent": ("Id of the agent.", "agent_x2m4c7qpl5tnbdwy"),
    "session": ("Id of the session.", "sess_x2m4c7qpl5tnbdwy"),
    "template": ("Name of the template, or id of a template that was built.", "code-interpreter"),
    "build": ("Id of the build.", "2f0c1e34-7c1d-4d6e-9a53-5b8c21a4b0aa"),
    "tag": ("Tag: 1 to 128 letters, digits, dots, hyphens and underscores.", "v1"),
    "archive": ("Name of the archive: 1 to 128 letters, digits, hyphens and underscores.", "app"),
}
"""Path parameter -> its description and an example, for routes that do not describe the parameter."""

PATTERNS: Mapping[str, str] = {
    "process": PROCESS_ID.pattern,
    "execution": PROCESS_ID.pattern,
    "file": FILE_ID.pattern,
    "webhook": WEBHOOK_ID.pattern,
}
"""Path parameter that is always an id -> pattern of the id. An id of another form is not found, like every unknown id."""

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "API key. `sandlot key create NAME` prints a new one."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "API key, for clients that cannot send `Authorization`."},
}

EVENT_TABLES = (PROCESS_EVENTS, CODE_EVENTS, SANDBOX_EVENTS, LOG_EVENTS, WATCH_EVENTS)

_HEADERS = {
    "RequestId": {
        "description": "Id of the request, which is also in the log of the service. A client can set it by sending this header.",
        "schema": {"type": "string"},
    },
    "RetryAfter": {
        "description": "Seconds to wait before sending the request again. Present if `retryable` is true.",
        "schema": {"type": "integer"},
    },
}
_SCHEMAS = "#/components/schemas/{model}"
_UPGRADE, _NO_CONTENT = "101", "204"


def operation_id(route: APIRoute) -> str:
    """Return the operation id of a route, from its tag and the name of its function."""
    return operation_name(str(route.tags[0]) if route.tags else "untagged", route.name)


def operation_name(tag: str, function: str) -> str:
    """Join a tag and the name of a function without repeating words: ``files`` and ``list_files`` give ``files_list``."""
    words = {word.rstrip("s") for word in tag.split("_")}
    verb, *nouns = function.split("_")
    return "_".join([tag, verb, *(noun for noun in nouns if noun.rstrip("s") not in words)])


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of routes. Routes with ``include_in_schema=False``, such as those of the compatibility APIs, are left out."""
    created = get_openapi(
        title="Sandlot",
        version=__version__,
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        routes=routes,
        separate_input_output_schemas=False,
    )
    paths: dict[str, dict[str, Any]] = created["paths"]
    for route in iter_route_contexts(routes):
        # WebSocket routes have no include_in_schema. Those of the native API are below /v1, where no compatibility API has any.
        if isinstance(route.original_route, APIWebSocketRoute) and route.path is not None and route.path.startswith("/v1/"):
            paths.setdefault(route.path, {})["get"] = _websocket_operation(route)
    for path, operations in paths.items():
        for operation in operations.values():
            _complete(path, operation)
    schemas = created.setdefault("components", {}).setdefault("schemas", {})
    schemas |= _models()
    created["components"] |= {"schemas": dict(sorted(schemas.items())), "securitySchemes": SECURITY, "headers": _HEADERS}
    created["security"] = [{name: []} for name in SECURITY]
    used = {tag for operations in paths.values() for operation in operations.values() for tag in operation.get("tags", ())}
    created["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    created["servers"] = [{"url": "/", "description": "This service."}]
    return created


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add summary, parameters, security and headers to an operation."""
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
            if parameter["name"] in PATTERNS:
                parameter["schema"] = {**parameter["schema"], "pattern": f"^{PATTERNS[parameter['name']]}$"}
    operation["responses"] = {status: dict(response) for status, response in operation["responses"].items()}
    for status, response in operation["responses"].items():
        if status == _NO_CONTENT:
            response["description"] = "Deleted." if "_delete" in operation["operationId"] else "Done."
        headers = response.setdefault("headers", {})
        headers.setdefault("X-Request-ID", {"$ref": "#/components/headers/RequestId"})
        if not status.startswith(("1", "2")):
            headers.setdefault("Retry-After", {"$ref": "#/components/headers/RetryAfter"})


def _websocket_operation(route: RouteContext) -> dict[str, Any]:
    """Describe a WebSocket route as the GET request that opens it, because OpenAPI has no WebSockets. The name of the route is its operation id."""
    path, name = route.path or "", route.name or ""
    parameters = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "operationId": name,
        "tags": [name.partition("_")[0]],
        "description": inspect.getdoc(route.endpoint) or "",
        "parameters": [{"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in parameters],
        "responses": {_UPGRADE: {"description": "The connection becomes a WebSocket (RFC 6455)."}, **PROBLEM},
    }


def _models() -> dict[str, Any]:
    """Return the schemas of problem documents and of events, which no route has as its response model."""
    models: set[type[ResponseModel]] = {Problem, *(model for table in EVENT_TABLES for model in table.values())}
    _, created = models_json_schema([(model, "validation") for model in sorted(models, key=lambda model: model.__name__)], ref_template=_SCHEMAS)
    found: dict[str, Any] = created["$defs"]
    return found

"""The OpenAPI document at ``/openapi.json``, its page at ``/docs``, and a page at ``/`` for people who open the address of the service.

Invariants:
- The service serves all files of the page. No content network is contacted, and the page's Content-Security-Policy allows none.
- None of them needs a key, because they contain only what is in the repository.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.routing import BaseRoute

from sandlot.model.errors import InternalError
from sandlot.server.openapi import document

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of the page. Inline styles are allowed, because elements of Swagger UI have them; inline scripts are not."""

FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
"""File of Swagger UI, as fastapi-offline ships it -> its media type."""

ROOT_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sandlot</title>
<link rel="icon" href="data:,">
</head>
<body>
<h1>Sandlot</h1>
<p>This is a Sandlot service: sandboxes for AI agents.</p>
<ul>
<li><a href="docs">HTTP API</a>, and its <a href="openapi.json">OpenAPI description</a></li>
<li><a href="healthz">Health check</a></li>
</ul>
<p>Requests need an API key, which the operator creates with <code>sandlot key create NAME</code>. Programs and the command line find this
service with its address in <code>SANDLOT_URL</code> and the key in <code>SANDLOT_API_KEY</code>.</p>
</body>
</html>
"""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sandlot API</title>
<link rel="icon" type="image/png" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

START = """\
"use strict";
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""


def install(app: FastAPI, documented: Callable[[], Sequence[BaseRoute]]) -> None:
    """Add `/openapi.json`, `/docs` and `/` to an app.

    Args:
        app: The app.
        documented: Returns the routes of the document; called at the first request for it.
    """

    @functools.cache
    def encoded() -> bytes:
        # At the first request, because it takes longer than the rest of the application's construction.
        return json.dumps(document(documented()), ensure_ascii=False, separators=(",", ":")).encode()

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return Response(encoded(), media_type="application/json", headers={"X-Content-Type-Options": "nosniff"})

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return HTMLResponse(ROOT_PAGE, headers=HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(PAGE, headers=HEADERS)

    @app.get("/docs/start.js", include_in_schema=False)
    async def start() -> Response:
        return Response(START, media_type="text/javascript", headers=HEADERS)

    for name, media_type in FILES.items():
        app.add_api_route(f"/docs/{name}", _file(name, media_type), include_in_schema=False)


def _file(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return FileResponse(_vendor() / name, media_type=media_type, headers={**HEADERS, "Cache-Control": "public, max-age=86400"})

    return file


@functools.cache
def _vendor() -> Path:
    """Return the folder of Swagger UI's files. The package that ships them is not imported."""
    found = importlib.util.find_spec("fastapi_offline")
    if found is None or found.origin is None:
        raise InternalError(
            "The package fastapi-offline, which has the files of /docs, is not installed.", hint="Install Sandlot again with its dependencies."
        )
    return Path(found.origin).parent / "static"

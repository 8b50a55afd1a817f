"""``/openapi.json``, and ``/docs`` that shows it.

Laws:
- Everything that the page needs comes from here: no content network is asked, and its Content-Security-Policy allows none.
- Both need no key: they hold what is in the repository, and no data.
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
"""Styles may be inline, because Swagger UI has some on its elements; scripts may not."""

FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
"""Of Swagger UI, as fastapi-offline ships it."""

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
    """Add `/openapi.json` and `/docs` to an app.

    Args:
        app: The app.
        documented: Returns the routes of the document; called at the first request for it.
    """

    @functools.cache
    def encoded() -> bytes:
        # On the first request for it: it takes longer than all else that a start of the service does here.
        return json.dumps(document(documented()), ensure_ascii=False, separators=(",", ":")).encode()

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return Response(encoded(), media_type="application/json", headers={"X-Content-Type-Options": "nosniff"})

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
    """Where Swagger UI's files are; found without importing the package, whose own code is not needed."""
    found = importlib.util.find_spec("fastapi_offline")
    if found is None or found.origin is None:
        raise InternalError("The files of /docs are not installed.", hint="Install Sandlot again, with all that it requires.")
    return Path(found.origin).parent / "static"

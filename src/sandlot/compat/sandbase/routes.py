"""The routes of Sandbase's API, below ``/sandbase``."""

from __future__ import annotations

from fastapi import APIRouter

from sandlot.compat.sandbase import e2b_client, runtime, sandboxes, telling
from sandlot.compat.vendor import not_supported

router = APIRouter()
for _part in (e2b_client, runtime, sandboxes, telling):
    router.routes.extend(_part.router.routes)

_AGENTS = "Run the agent where you are, and give it tools that call /sandboxes/{id}/processes and /files."
_MODELS = "Ask the model's own service; Sandlot runs code and serves no models."
_TEMPLATES = "Install what is needed in a sandbox of a template that there is; GET /templates lists them."
_E2B = "E2B's client has this at /e2b, which knows the same sandboxes."
for _path in (
    "/default/v1/agents",
    "/default/v1/sessions",
    "/default/v1/sessions/{session}/events",
    "/v1/agents",
    "/v1/sessions",
    "/v1/environments",
):
    not_supported(router, "POST", _path, _AGENTS)
for _path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
    not_supported(router, "POST", _path, _MODELS)
not_supported(router, "GET", "/v1/models", _MODELS)
not_supported(router, "POST", "/templates", _TEMPLATES)
not_supported(router, "POST", "/v3/templates", _TEMPLATES)
for _method, _path in (("POST", "/sandboxes/{sandbox}/fork"), ("POST", "/sandboxes/{sandbox}/snapshots"), ("PUT", "/sandboxes/{sandbox}/network")):
    not_supported(router, _method, _path, _E2B)

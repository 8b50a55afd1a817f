"""Routes of the E2B API, below ``/e2b``: control plane, envd and code interpreter, which have different paths."""

from __future__ import annotations

from fastapi import APIRouter

from sandlot.compat.e2b.control import builds, history, sandboxes, snapshots, templates
from sandlot.compat.e2b.envd import routes as envd
from sandlot.compat.e2b.interpreter import routes as interpreter
from sandlot.compat.vendor import not_supported
from sandlot.web.json_body import JsonRoute

router = APIRouter(route_class=JsonRoute)
root_router = envd.root_router

_BUILDS = "Update the client: e2b 2.0 and newer send the steps of a build instead of a Dockerfile."
_VOLUMES = "Create volumes with Sandlot's own API (POST /v1/volumes), and attach them with volume_mounts."
_SECRETS = "Pass secrets to the sandbox as envs."
_TEAMS = "There are no teams: everything belongs to the API key."

for _method, _path, _hint in (
    ("POST", "/templates", _BUILDS),
    ("GET", "/volumes", _VOLUMES),
    ("POST", "/volumes", _VOLUMES),
    ("GET", "/volumes/{volume}", _VOLUMES),
    ("DELETE", "/volumes/{volume}", _VOLUMES),
    ("GET", "/secrets", _SECRETS),
    ("POST", "/secrets", _SECRETS),
    ("GET", "/secrets/{secret}", _SECRETS),
    ("POST", "/secrets/{secret}", _SECRETS),
    ("DELETE", "/secrets/{secret}", _SECRETS),
    ("GET", "/teams", _TEAMS),
):
    not_supported(router, _method, _path, _hint)

for _part in (builds, history, sandboxes, snapshots, templates, envd, interpreter):  # "/sandboxes/metrics" before "/sandboxes/{sandbox}", tags first
    router.routes.extend(_part.router.routes)

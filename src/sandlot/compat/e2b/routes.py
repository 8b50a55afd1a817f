"""The routes of E2B's API, below ``/e2b``: control plane, envd and code interpreter, told apart by their paths."""

from __future__ import annotations

from fastapi import APIRouter

from sandlot.compat.e2b.control import history, sandboxes, snapshots, templates
from sandlot.compat.e2b.envd import routes as envd
from sandlot.compat.e2b.interpreter import routes as interpreter
from sandlot.compat.vendor import not_supported

ROOT = envd.ROOT

router = APIRouter()

_BUILDS = "Templates are built by the service's operator; a snapshot keeps what was installed in a sandbox, and is used as a template is."
_VOLUMES = "Make volumes by Sandlot's own API (POST /v1/volumes), and mount them by volume_mounts."
_SECRETS = "Give the sandbox what it needs to know as envs."
_TEAMS = "There are no teams: whatever is made belongs to its key."

for _method, _path, _why in (
    ("POST", "/v3/templates", _BUILDS),
    ("POST", "/v2/templates", _BUILDS),
    ("POST", "/templates", _BUILDS),
    ("GET", "/templates/{template}/files/{digest}", _BUILDS),
    ("POST", "/v2/templates/{template}/builds/{build}", _BUILDS),
    ("GET", "/templates/{template}/builds/{build}/status", _BUILDS),
    ("POST", "/templates/tags", _BUILDS),
    ("DELETE", "/templates/tags", _BUILDS),  # before "/templates/{template}"
    ("GET", "/templates/{template}/tags", _BUILDS),
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
    not_supported(router, _method, _path, _why)

for _part in (history, sandboxes, snapshots, templates, envd, interpreter):  # "/sandboxes/metrics" before "/sandboxes/{sandbox}"
    router.routes.extend(_part.router.routes)

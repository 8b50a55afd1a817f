"""Routes of the Sandbase API, below ``/sandbase``: sandboxes, templates, events and webhooks, and the calls that are not supported."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_live_sandbox, find_sandbox, find_sandboxes
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.compat.sandbase import agents, e2b_client, operations, runtime, translate, webhook_payload
from sandlot.compat.sandbase.schemas import (
    CreateSandboxRequest,
    CreateWebhookRequest,
    EventsQuery,
    PauseRequest,
    RefreshRequest,
    ResumeRequest,
    SetTimeoutRequest,
    StatusQuery,
    UpdateWebhookRequest,
)
from sandlot.compat.vendor import not_supported
from sandlot.model.records import WebhookChange
from sandlot.model.sandboxes import SandboxFilter
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute

MAX_ENDED = 1000
"""Maximum number of ended sandboxes in a list, because the vendor's lists have no pages."""

router = APIRouter(route_class=JsonRoute)
router.routes.extend(e2b_client.router.routes)
router.routes.extend(runtime.router.routes)
router.routes.extend(agents.router.routes)


# -- sandboxes and templates ----------------------------------------------------------------------------------------


@router.post("/sandboxes")
async def create_sandbox(body: CreateSandboxRequest, request: Request) -> Response:
    """Create a sandbox. If the client disconnects before the response, the sandbox is removed."""
    node, principal = get_node(request), get_principal(request)
    sandbox = await cancel_on_disconnect(request, operations.create_sandbox(node, principal, body))
    return e2b_json_response(await operations.with_token(request, sandbox), 201)


@router.get("/sandboxes")
async def list_sandboxes(query: Annotated[StatusQuery, Query()], request: Request) -> Response:
    """List the live sandboxes, or those of a status, newest first."""
    statuses = translate.parse_status_filter(query.status)
    states = SandboxFilter(states=frozenset(state for state, status in translate.STATUSES.items() if status in statuses))
    newest = None if translate.LIVE.issuperset(statuses) else MAX_ENDED
    sandboxes = await find_sandboxes(get_node(request), get_principal(request), states, newest=newest)
    return e2b_json_response([translate.sandbox_object(sandbox) for sandbox in reversed(sandboxes) if not translate.is_deleted(sandbox)])


@router.get("/sandboxes/{sandbox}")
async def get_sandbox(sandbox: str, request: Request) -> Response:
    """Return a sandbox. A sandbox that ended by itself is returned as long as its record is kept, except to E2B's client."""
    node, principal = get_node(request), get_principal(request)
    if e2b_client.is_sender(request):
        return e2b_json_response(await operations.with_token(request, await find_live_sandbox(node, principal, sandbox)))
    found = await find_sandbox(node, principal, sandbox)
    if translate.is_deleted(found):
        raise found.ended_error()
    return e2b_json_response(translate.sandbox_object(found) if found.is_over else await operations.with_token(request, found))


@router.delete("/sandboxes/{sandbox}")
@router.post("/sandboxes/{sandbox}/shutdown")
async def kill_sandbox(sandbox: str, request: Request) -> Response:
    """Kill a sandbox. The response is sent when its processes have ended."""
    node, principal = get_node(request), get_principal(request)
    await node.sandboxes.kill(principal, (await find_live_sandbox(node, principal, sandbox)).id)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/pause")
async def pause_sandbox(sandbox: str, request: Request, _body: PauseRequest | None = None) -> Response:
    """Save memory and files of a sandbox until it is resumed."""
    await operations.pause(get_node(request), get_principal(request), sandbox, once=e2b_client.is_sender(request))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/resume")
@router.post("/sandboxes/{sandbox}/connect")
async def resume_sandbox(sandbox: str, request: Request, body: ResumeRequest | None = None) -> Response:
    """Resume a sandbox and restart its timeout, or set a new timeout."""
    node, principal = get_node(request), get_principal(request)
    timeout_s = None if body is None or body.timeout is None else translate.timeout_s(body.timeout)
    return e2b_json_response(await operations.with_token(request, await operations.resume(node, principal, sandbox, timeout_s)))


@router.post("/sandboxes/{sandbox}/timeout")
async def set_timeout(sandbox: str, body: SetTimeoutRequest, request: Request) -> Response:
    """Set the seconds from now until a sandbox times out."""
    return await _set_timeout(sandbox, request, translate.timeout_s(body.timeout))


@router.post("/sandboxes/{sandbox}/refreshes")
async def refresh_sandbox(sandbox: str, body: RefreshRequest, request: Request) -> Response:
    """Set the timeout, by the field that earlier pages of the vendor document."""
    return await _set_timeout(sandbox, request, translate.timeout_s(body.duration, field="duration"))


async def _set_timeout(sandbox: str, request: Request, timeout_s: float) -> Response:
    await operations.set_timeout(get_node(request), get_principal(request), sandbox, timeout_s, paused=e2b_client.is_sender(request))
    return Response(status_code=204)


@router.get("/templates")
async def list_templates(request: Request) -> Response:
    """List the templates of the service."""
    templates = await get_node(request).templates.list(get_principal(request))
    return e2b_json_response([translate.template_object(name, template) for name, template in translate.vendor_names(templates)])


@router.get("/templates/aliases/{alias}")
async def get_template_alias(alias: str, request: Request) -> Response:
    """Return the id of a template by one of its names."""
    name, _ = await operations.find_template(get_node(request), get_principal(request), alias)
    return e2b_json_response({"templateID": name, "public": True})


@router.get("/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Return a template."""
    return e2b_json_response(translate.template_object(*await operations.find_template(get_node(request), get_principal(request), template)))


# -- events and webhooks --------------------------------------------------------------------------------------------


@router.get("/events/sandboxes")
async def list_events(query: Annotated[EventsQuery, Query()], request: Request) -> Response:
    """List the events of all sandboxes, newest first."""
    records = await get_node(request).history.latest_events(get_principal(request), kinds=webhook_payload.TYPES, limit=query.limit)
    return e2b_json_response([webhook_payload.event(record) for record in records.items])


@router.get("/events/sandboxes/{sandbox}")
async def list_sandbox_events(sandbox: str, query: Annotated[EventsQuery, Query()], request: Request) -> Response:
    """List the events of one live or ended sandbox, newest first."""
    node, principal = get_node(request), get_principal(request)
    found = await find_sandbox(node, principal, sandbox)
    records = await node.history.latest_events(principal, kinds=webhook_payload.TYPES, limit=query.limit, sandbox=found.id)
    return e2b_json_response([webhook_payload.event(record) for record in records.items])


@router.post("/events/webhooks")
async def create_webhook(body: CreateWebhookRequest, request: Request) -> Response:
    """Create a webhook. Only this response contains its secret."""
    record = await get_node(request).webhooks.create(
        get_principal(request),
        url=body.url,
        events=webhook_payload.parse_types(body.events or ()),
        secret=body.signature_secret,
        name=body.name,
        payload_format=translate.VENDOR,
        enabled=body.enabled is not False,
    )
    return e2b_json_response({**webhook_payload.webhook_object(record), "signatureSecret": record.secret}, 201)


@router.get("/events/webhooks")
async def list_webhooks(request: Request) -> Response:
    """List the webhooks that this API has created, oldest first."""
    records = await get_node(request).webhooks.list(get_principal(request))
    return e2b_json_response([webhook_payload.webhook_object(record) for record in records if record.payload_format == translate.VENDOR])


@router.patch("/events/webhooks/{webhook}")
async def update_webhook(webhook: str, body: UpdateWebhookRequest, request: Request) -> Response:
    """Change a webhook. Events that happen while it is not enabled are sent when it is enabled again."""
    node, principal = get_node(request), get_principal(request)
    record = await operations.find_webhook(node, principal, webhook)
    change = WebhookChange(
        url=body.url,
        name=body.name,
        events=None if body.events is None else tuple(webhook_payload.parse_types(body.events)),
        secret=body.signature_secret,
        enabled=body.enabled,
    )
    return e2b_json_response(webhook_payload.webhook_object(await node.webhooks.update(principal, record.id, change)))


@router.delete("/events/webhooks/{webhook}")
async def delete_webhook(webhook: str, request: Request) -> Response:
    """Delete a webhook."""
    node, principal = get_node(request), get_principal(request)
    record = await operations.find_webhook(node, principal, webhook)
    await node.webhooks.delete(principal, record.id)
    return Response(status_code=204)


# -- calls that are not supported -----------------------------------------------------------------------------------

_MODELS = "Call the service of the model; Sandlot runs code and serves no models."
_TEMPLATES = "Install packages in a sandbox of an existing template; GET /templates lists the templates."
_E2B = "Use E2B's client with the base URL /e2b, which has the same sandboxes."
for _path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
    not_supported(router, "POST", _path, _MODELS)
not_supported(router, "GET", "/v1/models", _MODELS)
not_supported(router, "POST", "/templates", _TEMPLATES)
not_supported(router, "POST", "/v3/templates", _TEMPLATES)
for _method, _path in (("POST", "/sandboxes/{sandbox}/fork"), ("POST", "/sandboxes/{sandbox}/snapshots"), ("PUT", "/sandboxes/{sandbox}/network")):
    not_supported(router, _method, _path, _E2B)

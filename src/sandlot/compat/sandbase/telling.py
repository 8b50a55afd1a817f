"""Events, listed; and webhooks, to which they are sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_sandbox
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.compat.sandbase import translate, webhook_payload
from sandlot.compat.sandbase.schemas import EventsQuery, WebhookBody, WebhookChangeBody, done
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.records import WebhookChange, WebhookRecord
from sandlot.web.dependencies import get_node, get_principal

router = APIRouter()


@router.get("/events/sandboxes")
async def list_events(query: Annotated[EventsQuery, Query()], request: Request) -> Response:
    """What happened to sandboxes, newest first."""
    found = await get_node(request).history.latest_events(get_principal(request), kinds=webhook_payload.TYPES, limit=query.limit)
    return e2b_json_response([webhook_payload.event(record) for record in found.items])


@router.get("/events/sandboxes/{sandbox}")
async def list_events_of(sandbox: str, query: Annotated[EventsQuery, Query()], request: Request) -> Response:
    """What happened to one sandbox, newest first; also to one that has ended, for as long as it is known."""
    node, principal = get_node(request), get_principal(request)
    known = await find_sandbox(node, principal, sandbox)
    found = await node.history.latest_events(principal, kinds=webhook_payload.TYPES, limit=query.limit, sandbox=known.id)
    return e2b_json_response([webhook_payload.event(record) for record in found.items])


@router.post("/events/webhooks")
async def create_webhook(body: WebhookBody, request: Request) -> Response:
    """Have an address told of what happens. Its secret is in this answer and nowhere else."""
    made = await get_node(request).webhooks.create(
        get_principal(request),
        url=body.url,
        events=webhook_payload.ours(body.events or ()),
        secret=body.signature_secret,
        name=body.name,
        payload_format=translate.NAME,
        enabled=body.enabled is not False,
    )
    return e2b_json_response({**webhook_payload.webhook(made), "signatureSecret": made.secret}, 201)


@router.get("/events/webhooks")
async def list_webhooks(request: Request) -> Response:
    """The webhooks that were made here, oldest first."""
    found = await get_node(request).webhooks.list(get_principal(request))
    return e2b_json_response([webhook_payload.webhook(record) for record in found if record.payload_format == translate.NAME])


@router.patch("/events/webhooks/{webhook}")
async def change_webhook(webhook: str, body: WebhookChangeBody, request: Request) -> Response:
    """Change where an address is told, what, signed with what, or whether; what happens while it is not enabled it is told once it is."""
    record = await _webhook(webhook, request)
    change = WebhookChange(
        url=body.url,
        name=body.name,
        events=None if body.events is None else tuple(webhook_payload.ours(body.events)),
        secret=body.signature_secret,
        enabled=body.enabled,
    )
    return e2b_json_response(webhook_payload.webhook(await get_node(request).webhooks.update(get_principal(request), record.id, change)))


@router.delete("/events/webhooks/{webhook}")
async def remove_webhook(webhook: str, request: Request) -> Response:
    """Tell an address nothing more."""
    record = await _webhook(webhook, request)
    await get_node(request).webhooks.delete(get_principal(request), record.id)
    return done()


async def _webhook(webhook: str, request: Request) -> WebhookRecord:
    """A webhook that was made here.

    Raises:
        NotFoundError: There is none.
    """
    record = await get_node(request).webhooks.get(get_principal(request), webhook)
    if record.payload_format != translate.NAME:
        raise NotFoundError(
            f"There is no webhook {webhook[:64]!r} of Sandbase's.",
            code=ErrorCode.NOT_FOUND,
            hint="The native API has it.",
            fields={"webhook": webhook[:64]},
        )
    return record

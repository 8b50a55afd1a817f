"""Webhooks: addresses that are told of what happens."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.v1.common import PROBLEM, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.webhooks import NewWebhookAnswer, WebhookAnswer, WebhookBody, WebhookChangeBody, WebhooksAnswer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=201, responses=documented_response(NewWebhookAnswer, "It is told of what happens from now on.", 201))
async def create(body: WebhookBody, request: Request) -> Response:
    """Have an address told of what happens to what is yours; for an operator to everybody's. Its secret is in this answer and nowhere else."""
    made = await get_node(request).webhooks.create(
        get_principal(request), url=body.url, events=body.events, secret=body.secret, name=body.name, enabled=body.enabled
    )
    return json_response(NewWebhookAnswer.of(made), 201)


@router.get("", responses=documented_response(WebhooksAnswer, "All of them, oldest first."))
async def list_webhooks(request: Request) -> Response:
    """List your webhooks and how they fare; for an operator everybody's."""
    found = await get_node(request).webhooks.list(get_principal(request))
    return json_response(WebhooksAnswer(webhooks=[WebhookAnswer.of(record) for record in found]))


@router.get("/{webhook}", responses=documented_response(WebhookAnswer, "It."))
async def get(webhook: str, request: Request) -> Response:
    """Look at a webhook: what it has taken, and what failed last."""
    return json_response(WebhookAnswer.of(await get_node(request).webhooks.get(get_principal(request), webhook)))


@router.patch("/{webhook}", responses=documented_response(WebhookAnswer, "As it is from now on."))
async def change(webhook: str, body: WebhookChangeBody, request: Request) -> Response:
    """Change where a webhook is told, what, signed with what, or whether. What it is not done with goes by what it is now."""
    return json_response(WebhookAnswer.of(await get_node(request).webhooks.update(get_principal(request), webhook, body.asked())))


@router.delete("/{webhook}", status_code=204, responses=PROBLEM)
async def remove(webhook: str, request: Request) -> Response:
    """Tell an address nothing more; what is being sent to it may still arrive."""
    await get_node(request).webhooks.delete(get_principal(request), webhook)
    return Response(status_code=204)

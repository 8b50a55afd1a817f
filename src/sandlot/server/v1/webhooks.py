"""Webhooks: addresses that are told of what happens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.records import EVENT_TYPES, WebhookChange, WebhookRecord
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import RequestModel, ResponseModel, Text, Texts, json_response


class CreateWebhookRequest(RequestModel):
    """A webhook to make."""

    url: Text = Field(
        description="Where events are sent, by POST: http or https, and public (of the host's own and its network's addresses only those that its "
        "operator allows). Redirects are not followed.",
        examples=["https://example.com/hooks/sandlot"],
    )
    events: Texts = Field(
        default_factory=list, description=f"Types of events; none is all, those of later versions included. {', '.join(EVENT_TYPES)}."
    )
    secret: Text | None = Field(default=None, description="What X-Signature is made with, 8 to 256 characters. Left out, one is made.")
    name: Text | None = Field(default=None, description="A word for people.")
    enabled: bool = Field(default=True, description="false has it wait: what happens meanwhile is sent once it is true, as long as events are kept.")


class UpdateWebhookRequest(RequestModel):
    """What to change of a webhook; what is left out stays as it is."""

    url: Text | None = Field(
        default=None,
        description="Where events are sent, as when it is made. What waits to be sent again is sent there at once.",
    )
    events: Texts | None = Field(default=None, description="Types of events, of all that it is not done with; none is all.")
    secret: Text | None = Field(default=None, description="What X-Signature is made with, 8 to 256 characters.")
    name: Text | None = Field(default=None, description="A word for people.")
    enabled: bool | None = Field(
        default=None,
        description="false has it wait: what happens meanwhile is sent once it is true, as long as events are kept.",
    )

    def asked(self) -> WebhookChange:
        """What core makes of it."""
        events = None if self.events is None else tuple(self.events)
        return WebhookChange(url=self.url, events=events, secret=self.secret, name=self.name, enabled=self.enabled)


class WebhookResponse(ResponseModel):
    """A webhook, and how it fares."""

    id: str
    name: str | None
    owner: str = Field(description="The key's id, or 'local'.")
    url: str
    events: list[str] = Field(description="Types of events; none is all.")
    enabled: bool = Field(description="Whether it is told anything now.")
    created_at: datetime
    cursor: int = Field(description="The sequence of the last event that it is done with.")
    delivered: int = Field(description="Events that it has taken.")
    given_up: int = Field(description="Events that were tried too often, and will not be sent again.")
    tries: int = Field(description="How often the next event was sent in vain so far.")
    next_at: datetime | None = Field(description="When that is sent again; null where nothing failed.")
    last_at: datetime | None = Field(description="When it was called last; null where it never was.")
    last_error: str = Field(description="Why that failed; empty where it did not.")

    @classmethod
    def of(cls, record: WebhookRecord) -> WebhookResponse:
        """What is told of it."""
        return cls(**_told(record))


class NewWebhookResponse(WebhookResponse):
    """A webhook that was just made."""

    secret: str = Field(description="What X-Signature is made with: HMAC-SHA256 of the body, in hexadecimal. It is in this answer and nowhere else.")

    @classmethod
    def of(cls, record: WebhookRecord) -> NewWebhookResponse:
        """What is told of it, once."""
        return cls(secret=record.secret, **_told(record))


class WebhooksResponse(ResponseModel):
    """All webhooks."""

    webhooks: list[WebhookResponse]


def _told(record: WebhookRecord) -> dict[str, Any]:
    progress = record.progress
    return {
        "id": record.id,
        "name": record.name,
        "owner": record.owner,
        "url": record.url,
        "events": list(record.events),
        "enabled": record.enabled,
        "created_at": record.created_at,
        "cursor": progress.cursor,
        "delivered": progress.delivered_events,
        "given_up": progress.failed_events,
        "tries": progress.failed_attempts,
        "next_at": progress.next_attempt_at,
        "last_at": progress.last_attempt_at,
        "last_error": progress.last_error,
    }


router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=201, responses=documented_response(NewWebhookResponse, "It is told of what happens from now on.", 201))
async def create(body: CreateWebhookRequest, request: Request) -> Response:
    """Have an address told of what happens to what is yours; for an operator to everybody's. Its secret is in this answer and nowhere else."""
    made = await get_node(request).webhooks.create(
        get_principal(request), url=body.url, events=body.events, secret=body.secret, name=body.name, enabled=body.enabled
    )
    return json_response(NewWebhookResponse.of(made), 201)


@router.get("", responses=documented_response(WebhooksResponse, "All of them, oldest first."))
async def list_webhooks(request: Request) -> Response:
    """List your webhooks and how they fare; for an operator everybody's."""
    found = await get_node(request).webhooks.list(get_principal(request))
    return json_response(WebhooksResponse(webhooks=[WebhookResponse.of(record) for record in found]))


@router.get("/{webhook}", responses=documented_response(WebhookResponse, "It."))
async def get(webhook: str, request: Request) -> Response:
    """Look at a webhook: what it has taken, and what failed last."""
    return json_response(WebhookResponse.of(await get_node(request).webhooks.get(get_principal(request), webhook)))


@router.patch("/{webhook}", responses=documented_response(WebhookResponse, "As it is from now on."))
async def update(webhook: str, body: UpdateWebhookRequest, request: Request) -> Response:
    """Change where a webhook is told, what, signed with what, or whether. What it is not done with goes by what it is now."""
    return json_response(WebhookResponse.of(await get_node(request).webhooks.update(get_principal(request), webhook, body.asked())))


@router.delete("/{webhook}", status_code=204, responses=PROBLEM)
async def delete(webhook: str, request: Request) -> Response:
    """Tell an address nothing more; what is being sent to it may still arrive."""
    await get_node(request).webhooks.delete(get_principal(request), webhook)
    return Response(status_code=204)

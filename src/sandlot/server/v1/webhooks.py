"""Webhooks: schemas and routes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.records import EVENT_TYPES, WebhookChange, WebhookRecord
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import RequestModel, ResponseModel, Text, Texts, json_response


class CreateWebhookRequest(RequestModel):
    """Options of a new webhook."""

    url: Text = Field(
        description="URL to which events are sent by POST: http or https, at a public address or one that the operator allows. Redirects are not "
        "followed.",
        examples=["https://example.com/hooks/sandlot"],
    )
    events: Texts = Field(
        default_factory=list,
        description=f"Types of events to send; empty for all, including those of later versions. Types: {', '.join(EVENT_TYPES)}.",
    )
    secret: Text | None = Field(default=None, description="Secret of `X-Signature`, 8 to 256 characters. Default: a new random secret.")
    name: Text | None = Field(default=None, description="Name for people.")
    enabled: bool = Field(default=True, description="False suspends delivery. Events are sent after it is set to true again, if they are still kept.")


class UpdateWebhookRequest(RequestModel):
    """Changes of a webhook. Omitted fields do not change."""

    url: Text | None = Field(
        default=None,
        description="New URL. An event that waits for a retry is sent to it at once.",
    )
    events: Texts | None = Field(default=None, description="Types of events to send, also of events that are not delivered yet; empty for all.")
    secret: Text | None = Field(default=None, description="Secret of `X-Signature`, 8 to 256 characters.")
    name: Text | None = Field(default=None, description="Name for people.")
    enabled: bool | None = Field(
        default=None,
        description="False suspends delivery. Events are sent after it is set to true again, if they are still kept.",
    )

    def change(self) -> WebhookChange:
        """Return the parameters of the operation."""
        events = None if self.events is None else tuple(self.events)
        return WebhookChange(url=self.url, events=events, secret=self.secret, name=self.name, enabled=self.enabled)


class WebhookResponse(ResponseModel):
    """A webhook and the state of its delivery."""

    id: str
    name: str | None
    owner: str = Field(description="Id of the key that owns the webhook, or `local`.")
    url: str
    events: list[str] = Field(description="Types of events to send; empty for all.")
    enabled: bool = Field(description="True if events are sent.")
    created_at: datetime
    cursor: int = Field(description="Sequence number of the last event that was delivered, skipped or given up.")
    delivered: int = Field(description="Number of delivered events.")
    given_up: int = Field(description="Number of events that were not delivered after all attempts.")
    tries: int = Field(description="Number of failed attempts for the next event.")
    next_at: datetime | None = Field(description="Time of the next attempt; null if none failed.")
    last_at: datetime | None = Field(description="Time of the last attempt; null before the first one.")
    last_error: str = Field(description="Error of the last attempt; empty if it succeeded.")

    @classmethod
    def of(cls, record: WebhookRecord) -> WebhookResponse:
        """Return the response for a webhook."""
        return cls(**_fields(record))


class NewWebhookResponse(WebhookResponse):
    """A new webhook with its secret."""

    secret: str = Field(
        description="Secret of `X-Signature`, which is the HMAC-SHA256 of the body in hexadecimal. No other response contains the secret."
    )

    @classmethod
    def of(cls, record: WebhookRecord) -> NewWebhookResponse:
        """Return the response for a new webhook, with its secret."""
        return cls(secret=record.secret, **_fields(record))


class WebhooksResponse(ResponseModel):
    """All webhooks."""

    webhooks: list[WebhookResponse]


def _fields(record: WebhookRecord) -> dict[str, Any]:
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


router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=JsonRoute)


@router.post("", status_code=201, responses=documented_response(NewWebhookResponse, "The new webhook with its secret.", 201))
async def create(body: CreateWebhookRequest, request: Request) -> Response:
    """Create a webhook for events of the caller's objects; operators get events of all keys. Only this response contains the secret."""
    created = await get_node(request).webhooks.create(
        get_principal(request), url=body.url, events=body.events, secret=body.secret, name=body.name, enabled=body.enabled
    )
    return json_response(NewWebhookResponse.of(created), 201)


@router.get("", responses=documented_response(WebhooksResponse, "All webhooks, oldest first."))
async def list_webhooks(request: Request) -> Response:
    """List webhooks of the caller and the result of their last delivery; operators get those of all keys."""
    found = await get_node(request).webhooks.list(get_principal(request))
    return json_response(WebhooksResponse(webhooks=[WebhookResponse.of(record) for record in found]))


@router.get("/{webhook}", responses=documented_response(WebhookResponse, "The webhook."))
async def get(webhook: str, request: Request) -> Response:
    """Get a webhook and the state of its delivery."""
    return json_response(WebhookResponse.of(await get_node(request).webhooks.get(get_principal(request), webhook)))


@router.patch("/{webhook}", responses=documented_response(WebhookResponse, "The changed webhook."))
async def update(webhook: str, body: UpdateWebhookRequest, request: Request) -> Response:
    """Update a webhook's URL, events, secret or enabled state. Events that are not delivered yet use the new values."""
    return json_response(WebhookResponse.of(await get_node(request).webhooks.update(get_principal(request), webhook, body.change())))


@router.delete("/{webhook}", status_code=204, responses=PROBLEM)
async def delete(webhook: str, request: Request) -> Response:
    """Delete a webhook. A delivery in progress may still arrive."""
    await get_node(request).webhooks.delete(get_principal(request), webhook)
    return Response(status_code=204)

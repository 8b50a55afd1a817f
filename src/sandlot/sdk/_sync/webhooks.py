# Generated from src/sandlot/sdk/_async/webhooks.py by scripts/unasync.py; change that file.
"""Webhooks, as ``client.webhooks``."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.webhooks import WebhookInfo


class Webhooks:
    """The caller's webhooks, which send events to a URL; with an operator's key, everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, url: str, *, events: Sequence[str] = (), secret: str | None = None, name: str | None = None, enabled: bool = True
    ) -> WebhookInfo:
        """Create a webhook for events of the caller's objects; with an operator's key, of everybody's.

        Args:
            url: Public http or https URL that receives each event in a POST request.
            events: Types of events, such as ``sandbox.ended``. Default: all.
            secret: Secret of the ``X-Signature`` header. Default: a new secret.
            name: Name for people.
            enabled: False: the webhook keeps events until :meth:`update` enables it.

        Returns:
            The webhook with its secret, which no other call returns.

        Raises:
            InvalidRequestError: The URL is not allowed, or a type of event does not exist.
            LimitError: The caller has the maximum number of webhooks.
        """
        body = requests.omit_none(url=url, events=list(events) or None, secret=secret, name=name, enabled=None if enabled else False)
        return structure(WebhookInfo, self._transport.request("POST", "/v1/webhooks", body=body))

    def list(self) -> list[WebhookInfo]:
        """List webhooks with the result of their last delivery, oldest first."""
        response = self._transport.request("GET", "/v1/webhooks")
        return structure_list(WebhookInfo, response, "webhooks")

    def get(self, webhook: str) -> WebhookInfo:
        """Get a webhook by its id.

        Raises:
            NotFoundError: ``webhook_not_found``.
        """
        return structure(WebhookInfo, self._transport.request("GET", f"/v1/webhooks/{requests.path_segment(webhook)}"))

    def update(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        secret: str | None = None,
        name: str | None = None,
        enabled: bool | None = None,
    ) -> WebhookInfo:
        """Change a webhook. Values that are not given stay. The changes apply to events that are not yet delivered.

        Args:
            webhook: Id of the webhook.
            url: New URL; an event that waits for its next attempt is sent there at once.
            events: New types of events; an empty list is all.
            secret: New secret of the ``X-Signature`` header.
            name: New name.
            enabled: False: the webhook keeps events until it is enabled, as long as the service keeps events.

        Raises:
            NotFoundError: ``webhook_not_found``.
            InvalidRequestError: As for :meth:`create`.
        """
        body = requests.omit_none(url=url, events=None if events is None else list(events), secret=secret, name=name, enabled=enabled)
        return structure(WebhookInfo, self._transport.request("PATCH", f"/v1/webhooks/{requests.path_segment(webhook)}", body=body))

    def delete(self, webhook: str) -> None:
        """Delete a webhook. A delivery in progress may still arrive.

        Raises:
            NotFoundError: ``webhook_not_found``.
        """
        self._transport.request("DELETE", f"/v1/webhooks/{requests.path_segment(webhook)}")

"""Webhooks: addresses that are told of what happens."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.webhooks import WebhookInfo


class AsyncWebhooks:
    """One's webhooks, as ``client.webhooks``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, url: str, *, events: Sequence[str] = (), secret: str | None = None, name: str | None = None, enabled: bool = True
    ) -> WebhookInfo:
        """Have an address told of what happens to what is yours; for an operator to everybody's.

        Args:
            url: Where events are sent, by POST: http or https, and public.
            events: Types of events, such as ``sandbox.ended``; none is all.
            secret: What ``X-Signature`` is made with; left out, one is made.
            name: A word for people.
            enabled: False has it wait until :meth:`update` enables it; what happens meanwhile it is told then.

        Returns:
            It, with its secret, which is told once.

        Raises:
            InvalidRequestError: The address is none that is called, or there is no such event.
            LimitError: You have as many as one may have.
        """
        body = requests.omit_none(url=url, events=list(events) or None, secret=secret, name=name, enabled=None if enabled else False)
        return structure(WebhookInfo, await self._transport.request("POST", "/v1/webhooks", body=body))

    async def list(self) -> list[WebhookInfo]:
        """Your webhooks and how they fare, oldest first; for an operator everybody's."""
        answer = await self._transport.request("GET", "/v1/webhooks")
        return structure_list(WebhookInfo, answer, "webhooks")

    async def get(self, webhook: str) -> WebhookInfo:
        """One of them.

        Raises:
            NotFoundError: There is none of that id.
        """
        return structure(WebhookInfo, await self._transport.request("GET", f"/v1/webhooks/{requests.path_segment(webhook)}"))

    async def update(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        secret: str | None = None,
        name: str | None = None,
        enabled: bool | None = None,
    ) -> WebhookInfo:
        """Change one; what is left out stays as it is. What it is not done with goes by what it is then.

        Args:
            webhook: Its id.
            url: Where events are sent; what is waiting to be sent again is sent there at once.
            events: Types of events; none is all.
            secret: What ``X-Signature`` is made with.
            name: A word for people.
            enabled: False has it wait: what happens meanwhile it is told once it is enabled, as long as the service keeps events.

        Returns:
            It, without its secret.

        Raises:
            NotFoundError: There is none of that id.
            InvalidRequestError: As for :meth:`create`.
        """
        body = requests.omit_none(url=url, events=None if events is None else list(events), secret=secret, name=name, enabled=enabled)
        return structure(WebhookInfo, await self._transport.request("PATCH", f"/v1/webhooks/{requests.path_segment(webhook)}", body=body))

    async def remove(self, webhook: str) -> None:
        """Tell an address nothing more.

        Raises:
            NotFoundError: There is none of that id.
        """
        await self._transport.request("DELETE", f"/v1/webhooks/{requests.path_segment(webhook)}")

"""API keys and quotas, as ``client.keys``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal

from sandlot.model.access import Quota
from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.keys import CurrentKey, KeyInfo, NewKey
from sandlot.sdk.requests import quota_body


class AsyncKeys:
    """The API keys of a service. All methods but :meth:`get_current` need an operator's key."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        *,
        operator: bool = False,
        quota: Quota | None = None,
        expires_at: datetime | None = None,
        format: Literal["sandlot", "e2b"] = "sandlot",  # noqa: A002 - the name of the field
    ) -> NewKey:
        """Create a key.

        Args:
            name: Up to 63 letters, digits, '.', '_' and '-', unique among the keys that are not revoked. Not ``current``.
            operator: True if the key sees the objects of all owners and may manage keys.
            quota: Quota of the key. None: ``Quota()``, or no limit for an operator.
            expires_at: Time from which requests with the key are refused. None: never. A time without a time zone is in local time.
            format: Form of the key: ``e2b`` is ``e2b_`` and 64 hexadecimal digits, which old clients of E2B require.

        Returns:
            The key with its secret, which no other call returns.

        Raises:
            ForbiddenError: The caller is not an operator.
            ConflictError: A key that is not revoked has this name.
        """
        body = requests.omit_none(
            name=name,
            operator=operator,
            quota=None if quota is None else quota_body(quota),
            expires_at=None if expires_at is None else expires_at.astimezone().isoformat(),
            format=None if format == "sandlot" else format,
        )
        return structure(NewKey, await self._transport.request("POST", "/v1/keys", body=body))

    async def list(self, *, limit: int | None = None) -> builtins.list[KeyInfo]:
        """List keys that are not revoked, without their secrets, oldest first.

        Args:
            limit: Maximum number of keys. Default: all.

        Raises:
            ForbiddenError: The caller is not an operator.
        """
        return await backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> AsyncIterator[KeyInfo]:
        """Iterate over keys, oldest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/keys", "keys", KeyInfo, limit=limit)

    async def get(self, key: str) -> KeyInfo:
        """Return a key by its id or name, without its secret.

        Raises:
            ForbiddenError: The caller is not an operator.
            NotFoundError: No key that is not revoked has this id or name.
        """
        return structure(KeyInfo, await self._transport.request("GET", f"/v1/keys/{requests.path_segment(key)}"))

    async def update(
        self, key: str, *, name: str | None = None, quota: Quota | None = None, expires_at: datetime | Literal["never"] | None = None
    ) -> KeyInfo:
        """Change a key. Arguments that are None keep their value.

        When a key expires, its requests are refused and its open connections are closed. Its sandboxes and pools stay.

        Args:
            key: Id or name of the key.
            name: New name.
            quota: New quota. It replaces the whole quota.
            expires_at: Time from which requests with the key are refused, or ``never``. A time without a time zone is in local time.

        Raises:
            ForbiddenError: The caller is not an operator.
            NotFoundError: No key that is not revoked has this id or name.
            ConflictError: Another key that is not revoked has the new name.
        """
        body = requests.omit_none(name=name, quota=None if quota is None else quota_body(quota))
        if expires_at is not None:
            body["expires_at"] = None if expires_at == "never" else expires_at.astimezone().isoformat()
        return structure(KeyInfo, await self._transport.request("PATCH", f"/v1/keys/{requests.path_segment(key)}", body=body))

    async def delete(self, key: str) -> None:
        """Revoke a key: its requests are refused and its open connections are closed. Its sandboxes stay until they end; its pools are deleted.

        Args:
            key: Id or name of the key.

        Raises:
            ForbiddenError: The caller is not an operator.
            NotFoundError: ``key_not_found``.
        """
        await self._transport.request("DELETE", f"/v1/keys/{requests.path_segment(key)}")

    async def get_current(self) -> CurrentKey:
        """Get the key that this client uses, with its quota and usage. No operator's key is needed."""
        return structure(CurrentKey, await self._transport.request("GET", "/v1/keys/current"))

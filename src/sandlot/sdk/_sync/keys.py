# Made from src/sandlot/sdk/_async/keys.py by scripts/unasync.py; change that file, not this one.
"""API keys of a service: who may ask, and what they may take."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from sandlot.model.access import Quota
from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.keys import CurrentKey, KeyInfo, NewKey
from sandlot.sdk.requests import quota_body


class Keys:
    """The keys of a service, as ``client.keys``. All but :meth:`whoami` are for operators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
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
            quota: Quota of the key. None: 50 live sandboxes and 4 pools, or no limit for an operator.
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
        return structure(NewKey, self._transport.request("POST", "/v1/keys", body=body))

    def list(self) -> list[KeyInfo]:
        """The keys that are valid, without their secrets, oldest first.

        Raises:
            ForbiddenError: You are no operator.
        """
        return backend.collected(self._iter())

    def _iter(self) -> Iterator[KeyInfo]:
        return self._transport.paginate("/v1/keys", "keys", KeyInfo, params={})

    def get(self, key: str) -> KeyInfo:
        """Return a key by its id or name, without its secret.

        Raises:
            ForbiddenError: The caller is not an operator.
            NotFoundError: No key that is not revoked has this id or name.
        """
        return structure(KeyInfo, self._transport.request("GET", f"/v1/keys/{requests.path_segment(key)}"))

    def update(
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
        return structure(KeyInfo, self._transport.request("PATCH", f"/v1/keys/{requests.path_segment(key)}", body=body))

    def revoke(self, key: str) -> None:
        """Take a key away: requests with it are refused from now on. Its sandboxes live on until they end, its pools go.

        Args:
            key: Its name or its id.

        Raises:
            ForbiddenError: You are no operator.
            NotFoundError: No valid key is called so.
        """
        self._transport.request("DELETE", f"/v1/keys/{requests.path_segment(key)}")

    def whoami(self) -> CurrentKey:
        """Who you are to the service, what you may take, and what of it is taken."""
        return structure(CurrentKey, self._transport.request("GET", "/v1/keys/current"))

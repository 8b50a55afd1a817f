# Made from src/sandlot/sdk/_async/keys.py by scripts/unasync.py; change that file, not this one.
"""API keys of a service: who may ask, and what they may take."""

from __future__ import annotations

from collections.abc import Iterator

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

    def create(self, name: str, *, operator: bool = False, quota: Quota | None = None) -> NewKey:
        """Make a key.

        Args:
            name: What to call it: up to 63 letters, digits, '.', '_' and '-'; no two valid keys have one name.
            operator: Whether it sees everybody's sandboxes, and may make and revoke keys.
            quota: What it may take; left out, 50 live sandboxes, and for an operator everything.

        Returns:
            It, with its secret, which is told here and nowhere else.

        Raises:
            ForbiddenError: You are no operator.
            ConflictError: There is one of that name.
        """
        body = requests.omit_none(name=name, operator=operator, quota=None if quota is None else quota_body(quota))
        return structure(NewKey, self._transport.request("POST", "/v1/keys", body=body))

    def list(self) -> list[KeyInfo]:
        """The keys that are valid, without their secrets, oldest first.

        Raises:
            ForbiddenError: You are no operator.
        """
        return backend.collected(self._iter())

    def _iter(self) -> Iterator[KeyInfo]:
        return self._transport.paginate("/v1/keys", "keys", KeyInfo, params={})

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

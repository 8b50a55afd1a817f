# Made from src/sandlot/sdk/_async/pools.py by scripts/unasync.py; change that file, not this one.
"""Pools of a service: sandboxes that are made before anybody asks."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.pools import PoolInfo


class Pools:
    """Pools of a service, as ``client.pools``: your own; an operator's are the node's, which serve everybody, and he sees all of them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        template: str | None = None,
        *,
        warm: int = 1,
        max: int | None = None,  # noqa: A002 - the word
        prepared: int | None = None,
        isolation: str | None = None,
        cpus: float | None = None,
        memory: str | int | None = None,
        disk: str | int | None = None,
        pids: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolInfo:
        """Keep sandboxes of a kind ready, also after a restart of the service. They take of your quota what your live sandboxes leave.

        Args:
            template: What they are made from; by default what a sandbox is made from.
            warm: How many are always kept ready.
            max: How many there are at most: the pool grows towards that while requests find it empty. Left out, 4, or ``warm`` where that is more.
            prepared: How many prepared ones with nothing in them are kept besides; for operators.
            isolation: The driver that isolates them; by default the service's.
            cpus: Cores of each. A request for a sandbox is answered from a pool where its limits are the pool's.
            memory: Memory of each: bytes, or such as ``"2G"``.
            disk: Disk of each, likewise.
            pids: Processes and threads of each; a request may ask for fewer.
            metadata: Your own words, kept with it.

        Returns:
            It. It is filled from now on.

        Raises:
            ForbiddenError: Blanks, and you are no operator.
            LimitError: You may have no more pools, or not so many sandboxes.
            ConflictError: You have a pool of this kind.
            UnsupportedError: Sandboxes of that isolation cannot wait; says why.
        """
        limits = requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids)
        body = requests.omit_none(template=template, isolation=isolation, limits=limits or None, warm=warm, max=max, prepared=prepared)
        if metadata is not None:
            body["metadata"] = dict(metadata)
        return structure(PoolInfo, self._transport.request("POST", "/v1/pools", body=body))

    def list(self) -> list[PoolInfo]:
        """Your pools, what waits in them, and how they have fared; an operator's are all of the service."""
        answer = self._transport.request("GET", "/v1/pools")
        return structure_list(PoolInfo, answer, "pools")

    def get(self, pool: str) -> PoolInfo:
        """One of them.

        Args:
            pool: Its id, or its template where you have one pool only of that.

        Raises:
            NotFoundError: There is none.
        """
        return structure(PoolInfo, self._transport.request("GET", f"/v1/pools/{requests.path_segment(pool)}"))

    def set(
        self,
        pool: str,
        *,
        warm: int | None = None,
        max: int | None = None,  # noqa: A002 - the word
        prepared: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolInfo:
        """Change how much a pool holds and what you say of it, also after a restart of the service.

        Args:
            pool: Its id, or its template where you have one pool only of that.
            warm: As in :meth:`create`; what is left out stays.
            max: Likewise.
            prepared: Likewise.
            metadata: Your own words: these take the place of what there is; left out, it stays.

        Returns:
            It, as it is from now on.

        Raises:
            NotFoundError: There is none.
            ForbiddenError: Blanks, and you are no operator.
            LimitError: You may not have so many sandboxes.
        """
        words = None if metadata is None else dict(metadata)
        body = requests.omit_none(warm=warm, max=max, prepared=prepared, metadata=words)
        return structure(PoolInfo, self._transport.request("PATCH", f"/v1/pools/{requests.path_segment(pool)}", body=body))

    def remove(self, pool: str) -> None:
        """Have a pool no more, also after a restart of the service; what waits in it is removed.

        Args:
            pool: Its id, or its template where you have one pool only of that.

        Raises:
            NotFoundError: There is none.
        """
        self._transport.request("DELETE", f"/v1/pools/{requests.path_segment(pool)}")

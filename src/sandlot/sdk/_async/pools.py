"""Warm pools, as ``client.pools``."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.pools import PoolInfo


class AsyncPools:
    """Warm pools: sandboxes that are started in advance, so that a create request gets one at once.

    The pools of an operator are shared: they serve every owner. Other callers have private pools.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        template: str | None = None,
        *,
        warm: int = 1,
        max: int | None = None,  # noqa: A002 - the word of the API
        prepared: int | None = None,
        isolation: str | None = None,
        cpus: float | None = None,
        memory: str | int | None = None,
        disk: str | int | None = None,
        pids: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolInfo:
        """Create a pool. It is filled in the background, also after a restart of the service.

        Warm sandboxes of a private pool use what live sandboxes leave of the quota.

        Args:
            template: Template of the sandboxes, ``NAME`` or ``NAME:TAG``. They start from its current build. Default: ``code-interpreter``.
            warm: Number of warm sandboxes that are kept ready.
            max: Largest number of warm sandboxes; the pool grows up to it while requests find it empty. Default: 4, or ``warm`` if that is larger.
            prepared: Number of prepared sandboxes that are kept besides; for operators. Default: 0.
            isolation: Driver of the sandboxes. Default: the service's.
            cpus: CPU cores of each sandbox. Default: as the template, also below. A create request is served from a pool of its limits.
            memory: Memory limit of each sandbox in bytes, or as text such as ``"2G"``.
            disk: Disk limit of each sandbox, in the same forms.
            pids: Maximum number of processes and threads of each sandbox; a create request may ask for fewer.
            metadata: Key-value pairs that are kept with the pool.

        Raises:
            ForbiddenError: ``prepared`` is set and the caller is not an operator.
            LimitError: The quota does not allow another pool, or so many sandboxes.
            ConflictError: The caller has a pool of this template, isolation and size.
            UnsupportedError: The driver cannot keep warm sandboxes.
        """
        limits = requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids)
        body = requests.omit_none(template=template, isolation=isolation, limits=limits or None, warm=warm, max=max, prepared=prepared)
        if metadata is not None:
            body["metadata"] = dict(metadata)
        return structure(PoolInfo, await self._transport.request("POST", "/v1/pools", body=body))

    async def list(self) -> builtins.list[PoolInfo]:
        """List the caller's pools with their warm sandboxes and hit rates; with an operator's key, all pools."""
        return structure_list(PoolInfo, await self._transport.request("GET", "/v1/pools"), "pools")

    async def get(self, pool: str) -> PoolInfo:
        """Get a pool.

        Args:
            pool: Id of the pool, or its template if the caller has one pool of that template.

        Raises:
            NotFoundError: ``pool_not_found``.
        """
        return structure(PoolInfo, await self._transport.request("GET", f"/v1/pools/{requests.path_segment(pool)}"))

    async def update(
        self,
        pool: str,
        *,
        warm: int | None = None,
        max: int | None = None,  # noqa: A002 - the word of the API
        prepared: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> PoolInfo:
        """Change the sizes or metadata of a pool. Values that are not given stay.

        Args:
            pool: As for :meth:`get`.
            warm: As for :meth:`create`.
            max: As for :meth:`create`.
            prepared: As for :meth:`create`.
            metadata: New metadata; it replaces all entries.

        Raises:
            NotFoundError: ``pool_not_found``.
            ForbiddenError: ``prepared`` is set and the caller is not an operator.
            LimitError: The quota does not allow so many sandboxes.
        """
        body = requests.omit_none(warm=warm, max=max, prepared=prepared, metadata=None if metadata is None else dict(metadata))
        return structure(PoolInfo, await self._transport.request("PATCH", f"/v1/pools/{requests.path_segment(pool)}", body=body))

    async def delete(self, pool: str) -> None:
        """Delete a pool and its unused sandboxes.

        Args:
            pool: As for :meth:`get`.

        Raises:
            NotFoundError: ``pool_not_found``.
        """
        await self._transport.request("DELETE", f"/v1/pools/{requests.path_segment(pool)}")

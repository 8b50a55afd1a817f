"""API keys for the clients of a node: create, list, update and revoke keys, and report the use of a quota."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.access.quotas import taken
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.ownership import pool_owner
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.registry import SandboxRegistry
from sandlot.model.access import KeyFormat, KeyUsage, Principal, Quota
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.model.repositories import Position, Store, Stored
from sandlot.model.states import State
from sandlot.model.streams import Page


class KeyService:
    """All API keys of a store. Only operators may create, list, update and revoke keys."""

    def __init__(
        self, *, api_keys: ApiKeys, store: Store, registry: SandboxRegistry, execution_counter: MonthlyExecutionCounter, pools: PoolManager
    ) -> None:
        self._api_keys = api_keys
        self._store = store
        self._registry = registry
        self._execution_counter = execution_counter
        self._pools = pools

    async def create(
        self,
        principal: Principal,
        name: str,
        *,
        operator: bool = False,
        quota: Quota | None = None,
        expires_at: datetime | None = None,
        format: KeyFormat = KeyFormat.SANDLOT,  # noqa: A002 - the name of the field
    ) -> tuple[KeyRecord, str]:
        """Create a key. See :meth:`ApiKeys.create`.

        Returns:
            The record of the key, and the key's secret, which is stored nowhere.

        Raises:
            InvalidRequestError: The name is invalid, a field of the quota is negative or not finite, or ``expires_at`` has passed.
            ConflictError: A key that is not revoked has this name.
        """
        _check_operator(principal)
        return await self._api_keys.create(name, operator=operator, quota=quota, expires_at=expires_at, format=format)

    async def list(self, principal: Principal, *, after: Position | None = None, limit: int = 100) -> Page[KeyRecord]:
        """Return the keys that are not revoked, expired keys included, oldest first.

        Args:
            principal: Caller, an operator.
            after: Position of the last key of the previous page.
            limit: Largest number of keys.
        """
        _check_operator(principal)
        known = await self._api_keys.list()
        found = list(islice((record for record in known if after is None or (record.created_at, record.id) > (after.at, after.id)), limit + 1))
        return Page(found[:limit], more=len(found) > limit)

    async def get(self, principal: Principal, name_or_id: str) -> KeyRecord:
        """Return a key.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
        """
        _check_operator(principal)
        return await self._api_keys.get(name_or_id)

    async def update(self, principal: Principal, name_or_id: str, change: KeyChange) -> KeyRecord:
        """Change a key. If the new ``expires_at`` has passed, end the key's open requests with 401.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
            InvalidRequestError: The new name or time is invalid, or a field of the new quota is negative or not finite.
            ConflictError: Another key that is not revoked has the new name.
        """
        _check_operator(principal)
        return await self._api_keys.update(name_or_id, change)

    async def revoke(self, principal: Principal, name_or_id: str) -> KeyRecord:
        """Revoke a key: refuse new requests with the key, and end its open requests with 401. The sandboxes of the key continue.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
        """
        _check_operator(principal)
        return await self._api_keys.revoke(name_or_id)

    @contextmanager
    def working_for(self, principal: Principal) -> Iterator[None]:
        """Register the current task as working for a caller during the body of the ``with`` block, for work that outlives its request.

        Raises:
            AuthenticationError: The caller's key was revoked or has expired, before or during the body of the ``with`` block.
        """
        self._api_keys.check_valid(principal.owner)
        with self._api_keys.working_for(principal.owner):
            yield

    async def usage(self, principal: Principal) -> KeyUsage:
        """Return the part of the principal's own quota that is in use."""
        owner = principal.owner
        own = [sandbox for sandbox in self._registry.list(principal) if sandbox.owner == owner]
        live = taken([sandbox.spec.limits for sandbox in own if sandbox.state is not State.HIBERNATED])
        snapshots, snapshot_bytes = await self._store.snapshots.totals(owner)
        volumes, volume_bytes = await self._store.volumes.totals(owner)
        templates, template_bytes = await self._store.templates.totals(owner)
        files, file_bytes = await self._store.files.totals(owner)
        executions = (await self._store.executions.totals(owner=owner)).get(owner, Stored(0, 0))
        return KeyUsage(
            sandboxes=live.sandboxes,
            cpus=live.cpus,
            memory_bytes=live.memory_bytes,
            disk_bytes=live.disk_bytes,
            executions_per_month=self._execution_counter.used(owner),
            stored_executions=executions.rows,
            stored_execution_bytes=executions.bytes,
            stored_files=files,
            stored_file_bytes=file_bytes,
            hibernated_sandboxes=self._registry.count_hibernated(owner),
            snapshots=snapshots,
            snapshot_bytes=snapshot_bytes,
            volumes=volumes,
            volume_bytes=volume_bytes,
            templates=templates,
            template_bytes=template_bytes,
            pools=self._pools.count(pool_owner(principal)),
        )


def _check_operator(principal: Principal) -> None:
    if not principal.operator:
        raise ForbiddenError(
            "Only an operator may list, create, update and revoke keys.",
            code=ErrorCode.FORBIDDEN,
            hint="Use an operator's key, or run `sandlot key` on the machine of the service, as root and without SANDLOT_URL and SANDLOT_API_KEY.",
        )

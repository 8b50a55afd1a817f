"""Keys: shown once, kept as digests, checked in memory, and seen when another process changes them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sandlot.core.access import api_keys as module
from sandlot.core.access.api_keys import SECRET_PREFIX, ApiKeys
from sandlot.model.access import LOCAL, UNBOUNDED, KeyFormat, OwnerId, Quota
from sandlot.model.errors import AuthenticationError, ConflictError, ErrorCode, InvalidRequestError, NotFoundError, UnavailableError
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.store.store import SqlStore
from tests.support.clock import START, ManualClock
from tests.support.node import settled
from tests.support.until import until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def api_keys(store: SqlStore, clock: ManualClock) -> ApiKeys:
    return ApiKeys(store.keys, clock)


async def test_key_is_valid_until_it_is_revoked(api_keys: ApiKeys) -> None:
    record, secret = await api_keys.create("ci")
    assert secret.startswith(SECRET_PREFIX)
    assert len(secret) == len(SECRET_PREFIX) + 43  # 256 bits, base64
    found = api_keys.verify(secret)
    assert found is not None
    assert (found.owner, found.name, found.operator, found.quota) == (record.id, "ci", False, Quota())
    for wrong in (secret[:-1], secret + "x", secret.removeprefix(SECRET_PREFIX), "", "\ud800", "ä"):
        assert api_keys.verify(wrong) is None
    assert list(await api_keys.list()) == [record]
    assert (await api_keys.revoke("ci")).id == record.id
    assert api_keys.verify(secret) is None
    assert await api_keys.list() == []
    with pytest.raises(NotFoundError, match="There is no key 'ci'"):
        await api_keys.revoke("ci")


async def test_key_of_format_e2b_has_the_form_of_keys_of_e2b(api_keys: ApiKeys) -> None:
    record, secret = await api_keys.create("old", format=KeyFormat.E2B)
    assert re.fullmatch("e2b_[0-9a-f]{64}", secret)
    found = api_keys.verify(secret)
    assert found is not None
    assert found.owner == record.id


async def test_store_has_only_the_digest_of_a_secret(api_keys: ApiKeys, store: SqlStore) -> None:
    _, secret = await api_keys.create("ci")
    (record,) = await store.keys.list()
    assert record.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert record.created_at == START


async def test_operator_has_no_limits_without_an_explicit_quota(api_keys: ApiKeys) -> None:
    _, secret = await api_keys.create("boss", operator=True)
    found = api_keys.verify(secret)
    assert found is not None
    assert (found.operator, found.quota) == (True, UNBOUNDED)
    record, _ = await api_keys.create("bound", operator=True, quota=Quota(cpus=1))
    assert api_keys.quota_of(record.id) == Quota(cpus=1)
    assert api_keys.quota_of(LOCAL) == api_keys.quota_of(OwnerId("nobody")) == UNBOUNDED


async def test_invalid_names_and_quotas_are_refused(api_keys: ApiKeys) -> None:
    await api_keys.create("a.b-c_1")
    with pytest.raises(ConflictError):
        await api_keys.create("a.b-c_1")
    for name in ("", " ", "-a", "x" * 64, "ä", "a\n"):
        with pytest.raises(InvalidRequestError, match="not a valid name"):
            await api_keys.create(name)
    with pytest.raises(InvalidRequestError, match="No key can have the name 'current'"):
        await api_keys.create("current")
    for change in (KeyChange(name="current"), KeyChange(name="-a"), KeyChange(quota=Quota(cpus=-1))):
        with pytest.raises(InvalidRequestError):
            await api_keys.update("a.b-c_1", change)
    for quota in (Quota(cpus=-1), Quota(lifetime_s=float("nan")), Quota(memory_bytes=-1), Quota(lifetime_s=float("inf"))):
        with pytest.raises(InvalidRequestError, match="must be a finite number"):
            await api_keys.create("b", quota=quota)
    assert [record.name for record in await api_keys.list()] == ["a.b-c_1"]


async def test_changes_of_another_process_apply_after_the_next_read(store: SqlStore) -> None:
    service, elsewhere = ApiKeys(store.keys, ManualClock()), ApiKeys(store.keys, ManualClock())
    looking = asyncio.create_task(service.run())
    try:
        record, secret = await elsewhere.create("late")
        await until(lambda: service.verify(secret) is not None)
        assert service.principal_of(record.id) == service.verify(secret)
        await elsewhere.revoke("late")
        await until(lambda: service.verify(secret) is None)
        assert module.POLL_S <= 0.5, "a look and the wait before it take less than a second"
    finally:
        looking.cancel()
        await asyncio.wait({looking})


class Slow:
    """A table whose reads return the rows of their beginning once ``go_on`` is set, or fail."""

    def __init__(self, store: SqlStore) -> None:
        self._table = store.keys
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.refusing = False

    async def add(self, record: KeyRecord) -> None:
        await self._table.add(record)

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        return await self._table.revoke(name_or_id, at)

    async def update(self, name_or_id: str, change: KeyChange) -> KeyRecord | None:
        return await self._table.update(name_or_id, change)

    async def list(self) -> Sequence[KeyRecord]:
        if self.refusing:
            self.asked.set()
            raise UnavailableError("The database does not answer.", code=ErrorCode.SERVICE_UNAVAILABLE)
        found = await self._table.list()
        self.asked.set()
        await self.go_on.wait()
        return found


async def test_read_that_began_before_a_change_is_discarded(store: SqlStore) -> None:
    table = Slow(store)
    api_keys = ApiKeys(table, ManualClock())
    gone, secret = await api_keys.create("gone")
    look = asyncio.create_task(api_keys.refresh())
    await table.asked.wait()
    _, fresh = await api_keys.create("fresh")
    await api_keys.revoke(gone.id)
    table.go_on.set()
    await look
    assert api_keys.verify(secret) is None
    assert api_keys.verify(fresh) is not None


async def test_revoking_a_key_ends_its_other_requests_as_unauthenticated(api_keys: ApiKeys) -> None:
    record, _ = await api_keys.create("ci")
    other = await open_request(api_keys, record)
    with api_keys.working_for(record.id):
        await api_keys.revoke("ci")
        await settled(other.done)

    with pytest.raises(AuthenticationError):
        await other


async def test_key_is_found_by_its_id_before_its_name(api_keys: ApiKeys) -> None:
    record, _ = await api_keys.create("ci")
    namesake, _ = await api_keys.create(record.id)
    assert [await api_keys.get(text) for text in ("ci", record.id, namesake.id)] == [record, record, namesake]
    await api_keys.revoke("ci")
    with pytest.raises(NotFoundError, match="There is no key 'ci'"):
        await api_keys.get("ci")
    with pytest.raises(NotFoundError, match="There is no key 'ci'"):
        await api_keys.update("ci", KeyChange(name="other"))


async def test_updated_name_and_quota_apply_to_the_next_request(api_keys: ApiKeys) -> None:
    record, secret = await api_keys.create("ci")
    updated = await api_keys.update("ci", KeyChange(name="deploy", quota=Quota(cpus=2)))
    assert updated == await api_keys.get("deploy")
    found = api_keys.verify(secret)
    assert found is not None
    assert (found.owner, found.name, found.quota) == (record.id, "deploy", Quota(cpus=2))
    assert api_keys.quota_of(record.id) == Quota(cpus=2)


async def test_expired_key_is_refused_until_it_is_extended(api_keys: ApiKeys, clock: ManualClock) -> None:
    record, secret = await api_keys.create("ci", expires_at=START + timedelta(seconds=10))
    clock.advance(9.5)
    assert api_keys.verify(secret) is not None
    clock.advance(0.5)
    with pytest.raises(AuthenticationError, match=r"This API key expired at 2026-01-01T00:00:10\+00:00\."):
        api_keys.verify(secret)
    assert api_keys.valid_principal_of(record.id) is None
    assert api_keys.principal_of(record.id) is not None, "its pools and webhooks stay"
    assert [known.name for known in await api_keys.list()] == ["ci"]
    for change in (KeyChange(expires_at=START + timedelta(seconds=11)), KeyChange(removes_expiry=True)):
        await api_keys.update("ci", change)
        assert api_keys.verify(secret) == api_keys.valid_principal_of(record.id) == api_keys.principal_of(record.id)
        clock.advance(0.5)
    clock.advance(100)
    assert api_keys.verify(secret) is not None


async def test_key_cannot_be_created_with_an_expiry_that_has_passed(api_keys: ApiKeys) -> None:
    with pytest.raises(InvalidRequestError, match="which has passed"):
        await api_keys.create("ci", expires_at=START)
    with pytest.raises(InvalidRequestError, match="out of range"):
        await api_keys.create("ci", expires_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))
    assert await api_keys.list() == []


async def test_expiry_is_kept_in_utc(api_keys: ApiKeys) -> None:
    at = datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    made, _ = await api_keys.create("ci", expires_at=at)
    assert made.expires_at == at
    assert made.expires_at.tzinfo is UTC
    assert [made] == list(await api_keys.list())


@pytest.fixture
async def expiry(api_keys: ApiKeys) -> AsyncIterator[None]:
    ending = asyncio.create_task(api_keys.end_expired_requests())
    yield
    ending.cancel()
    await asyncio.wait({ending})


async def open_request(api_keys: ApiKeys, key: KeyRecord) -> asyncio.Task[None]:
    opened = asyncio.Event()

    async def request() -> None:
        with api_keys.working_for(key.id):
            opened.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await opened.wait()
    return task


@pytest.mark.usefixtures("expiry")
async def test_open_requests_end_when_their_key_expires(api_keys: ApiKeys, clock: ManualClock) -> None:
    soon, _ = await api_keys.create("soon", expires_at=START + timedelta(seconds=100))
    later, _ = await api_keys.create("later", expires_at=START + timedelta(seconds=101))
    never, _ = await api_keys.create("never")
    first, second, third = [await open_request(api_keys, key) for key in (soon, later, never)]
    await clock.pass_s(99.5, 0.5)
    assert not first.done()
    await clock.pass_s(0.5, 0.5)
    with pytest.raises(AuthenticationError, match="expired at"):
        await first
    assert not second.done()
    await clock.pass_s(1, 0.5)
    with pytest.raises(AuthenticationError, match="expired at"):
        await second
    await clock.pass_s(1000, 100)
    assert not third.done()
    third.cancel()


@pytest.mark.usefixtures("expiry")
async def test_updated_expiry_decides_when_open_requests_end(api_keys: ApiKeys, clock: ManualClock) -> None:
    key, _ = await api_keys.create("ci", expires_at=START + timedelta(seconds=10))
    request = await open_request(api_keys, key)
    await api_keys.update("ci", KeyChange(expires_at=START + timedelta(seconds=30)))
    await clock.pass_s(20, 1)
    assert not request.done()
    await api_keys.update("ci", KeyChange(expires_at=START + timedelta(seconds=22)))
    await clock.pass_s(1, 1)
    assert not request.done()
    await clock.pass_s(1, 1)
    with pytest.raises(AuthenticationError, match="expired at"):
        await request
    await api_keys.update("ci", KeyChange(removes_expiry=True))
    request = await open_request(api_keys, key)
    await clock.pass_s(1000, 100)
    assert not request.done()
    request.cancel()


@pytest.mark.usefixtures("expiry")
async def test_update_that_lets_a_key_expire_spares_its_own_request(api_keys: ApiKeys, clock: ManualClock) -> None:
    key, _ = await api_keys.create("ci", operator=True)
    other = await open_request(api_keys, key)
    with api_keys.working_for(key.id):
        await api_keys.update("ci", KeyChange(expires_at=START - timedelta(seconds=1)))
        await settled(other.done)
        await clock.pass_s(120, 60)
    with pytest.raises(AuthenticationError, match="expired at"):
        await other


async def test_expiry_that_another_process_sets_ends_open_requests(store: SqlStore) -> None:
    """A service that has just started reads the same rows."""
    clock = ManualClock()
    elsewhere, service = ApiKeys(store.keys, clock), ApiKeys(store.keys, clock)
    key, _ = await elsewhere.create("ci", expires_at=START + timedelta(seconds=10))
    await service.refresh()
    ending = asyncio.create_task(service.end_expired_requests())
    try:
        request = await open_request(service, key)
        await clock.pass_s(9, 1)
        assert not request.done()
        await elsewhere.update("ci", KeyChange(expires_at=START + timedelta(seconds=12)))
        await service.refresh()
        await clock.pass_s(2, 1)
        assert not request.done()
        await clock.pass_s(1, 1)
        with pytest.raises(AuthenticationError, match="expired at"):
            await request
    finally:
        ending.cancel()
        await asyncio.wait({ending})


async def test_keys_stay_valid_while_the_store_does_not_respond(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    table = Slow(store)
    table.go_on.set()
    api_keys = ApiKeys(table, ManualClock())
    _, secret = await api_keys.create("a")
    table.refusing = True
    looking = asyncio.create_task(api_keys.run())
    try:
        for _ in range(3):
            table.asked.clear()
            await table.asked.wait()
        assert api_keys.verify(secret) is not None
        table.refusing = False
        await store.keys.revoke("a", START)
        await until(lambda: api_keys.verify(secret) is None)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


async def test_each_secret_finds_its_own_key_only(api_keys: ApiKeys) -> None:
    made = [await api_keys.create(f"k{number}") for number in range(5)]
    for record, secret in made:
        principal = api_keys.verify(secret)
        assert principal is not None
        assert principal.owner == record.id
        for wrong in (secret[:-1], f"{secret} ", secret.swapcase(), record.sha256, "\udc80", ""):
            assert api_keys.verify(wrong) is None


async def test_keys_are_looked_up_by_their_digest(api_keys: ApiKeys) -> None:
    """No secret and no digest is compared with those of the keys one after the other."""
    record, _ = await api_keys.create("k")
    assert api_keys._by_digest.keys() == {bytes.fromhex(record.sha256)}  # noqa: SLF001 - nothing else shows what is compared

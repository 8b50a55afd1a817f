"""Connections to hosts that sandboxes chose: the addresses that are used, the cache, the limits, and what a failure reveals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from ipaddress import ip_address, ip_network

import pytest

from sandlot.egress.outbound import connector as module
from sandlot.egress.outbound.connector import (
    CACHED_NAMES,
    FOUND_S,
    LOOKUPS,
    MAX_ADDRESSES,
    NOT_FOUND_S,
    ConnectionFailedError,
    Connector,
    is_own_address,
)
from sandlot.egress.policy.addresses import Address
from sandlot.model.network_activity import RefusalReason


class Names:
    """A resolver with given responses, one for each lookup; the last one repeats."""

    def __init__(self, *responses: Sequence[str] | Exception) -> None:
        self.responses = list(responses)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        response = self.responses[min(len(self.asked), len(self.responses)) - 1]
        if isinstance(response, Exception):
            raise response
        return [ip_address(address) for address in response]


@asynccontextmanager
async def connecting(names: Names, *private: str, own: Sequence[str] = (), clock: Sequence[float] = (0.0,)) -> AsyncIterator[Connector]:
    made = Connector([ip_network(each) for each in private], resolve=names, is_own=lambda each: str(each) in own, now=lambda: clock[0])
    try:
        yield made
    finally:
        made.close()


async def reason(connector: Connector, host: str | Address, consumer: str = "") -> RefusalReason:
    with pytest.raises(ConnectionFailedError) as failed:
        await connector.resolve(host, consumer)
    return failed.value.reason


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:8.8.8.8", "64:ff9b::a00:1", "fe80::1%lo"])  # noqa: S104 - nothing is bound
async def test_address_that_is_not_public_is_refused_by_name_and_by_address(address: str) -> None:
    async with connecting(Names([address])) as connector:
        assert await reason(connector, "a.b") is RefusalReason.ADDRESS_NOT_PUBLIC
        assert await reason(connector, ip_address(address)) is RefusalReason.ADDRESS_NOT_PUBLIC


async def test_only_checked_addresses_of_a_name_are_returned() -> None:
    async with connecting(Names(["10.0.0.1", "8.8.8.8", "127.0.0.1", "9.9.9.9"]), own=["9.9.9.9"]) as connector:
        assert await connector.resolve("a.b") == [ip_address("8.8.8.8")]
    async with connecting(Names([f"8.8.4.{number}" for number in range(50)])) as connector:
        assert len(await connector.resolve("a.b")) == MAX_ADDRESSES


async def test_own_address_is_reached_only_if_it_is_listed_alone() -> None:
    own = ["10.0.0.1", "127.0.0.1"]
    async with connecting(Names(own), "10.0.0.0/8", "127.0.0.1", own=own) as connector:
        assert await connector.resolve("a.b") == [ip_address("127.0.0.1")]


async def test_second_response_of_a_name_server_is_checked_as_well() -> None:
    clock = [0.0]
    async with connecting(Names(["8.8.8.8"], ["127.0.0.1"]), clock=clock) as connector:
        assert await connector.resolve("a.b") == [ip_address("8.8.8.8")]
        clock[0] = FOUND_S
        assert await reason(connector, "a.b") is RefusalReason.ADDRESS_NOT_PUBLIC


@pytest.mark.parametrize(
    "error, expected",
    [
        (socket.gaierror(socket.EAI_NONAME, ""), RefusalReason.NAME_NOT_FOUND),
        (socket.gaierror(socket.EAI_NODATA, ""), RefusalReason.NAME_NOT_FOUND),
        (socket.gaierror(socket.EAI_AGAIN, ""), RefusalReason.UPSTREAM_FAILED),
        (socket.gaierror(socket.EAI_FAIL, ""), RefusalReason.UPSTREAM_FAILED),
        (OSError(), RefusalReason.UPSTREAM_FAILED),
    ],
)
async def test_missing_name_and_failed_name_server_are_told_apart(error: Exception, expected: RefusalReason) -> None:
    names = Names(error)
    async with connecting(names) as connector:
        assert await reason(connector, "a.b") is expected
        assert await reason(connector, "a.b") is expected
    assert len(names.asked) == (1 if expected is RefusalReason.NAME_NOT_FOUND else 2)


async def test_name_without_an_address_is_not_found() -> None:
    async with connecting(Names([])) as connector:
        assert await reason(connector, "a.b") is RefusalReason.NAME_NOT_FOUND


async def test_results_are_kept_for_their_consumer_and_time() -> None:
    clock, names = [0.0], Names(["8.8.8.8"])
    async with connecting(names, clock=clock) as connector:
        for consumer in ("one", "one", "two"):
            await connector.resolve("a.b", consumer)
        assert len(names.asked) == 2
        clock[0] = FOUND_S
        await connector.resolve("a.b", "one")
        assert len(names.asked) == 3
    clock, names = [0.0], Names([], ["8.8.8.8"])
    async with connecting(names, clock=clock) as connector:
        assert await reason(connector, "a.b") is RefusalReason.NAME_NOT_FOUND
        clock[0] = NOT_FOUND_S
        assert await connector.resolve("a.b")


async def test_cache_is_bounded() -> None:
    names = Names(["8.8.8.8"])
    async with connecting(names) as connector:
        for number in range(CACHED_NAMES + 10):
            await connector.resolve(f"h{number}.b")
        assert len(connector._cache) == CACHED_NAMES  # noqa: SLF001 - what is kept is the promise
        await connector.resolve(f"h{CACHED_NAMES + 9}.b")
        assert len(names.asked) == CACHED_NAMES + 10
        await connector.resolve("h0.b")
        assert len(names.asked) == CACHED_NAMES + 11


async def test_further_lookups_of_one_consumer_wait_and_those_of_others_do_not() -> None:
    asked, release = asyncio.Queue[str](), asyncio.Event()

    async def waits(name: str) -> Sequence[Address]:
        asked.put_nowait(name)
        await release.wait()
        return [ip_address("8.8.8.8")]

    connector = Connector(resolve=waits, is_own=lambda _: False)
    with closing(connector):
        tasks = [asyncio.create_task(connector.resolve(f"h{number}.b", "one")) for number in range(LOOKUPS + 1)]
        other = asyncio.create_task(connector.resolve("a.b", "two"))
        assert [await asked.get() for _ in range(LOOKUPS + 1)] == [*(f"h{number}.b" for number in range(LOOKUPS)), "a.b"]
        release.set()
        assert len(await asyncio.gather(*tasks, other)) == LOOKUPS + 2


async def test_requests_for_one_name_wait_for_one_lookup() -> None:
    names = Names(["8.8.8.8"])
    async with connecting(names) as connector:
        await asyncio.gather(*(connector.resolve("a.b", "one") for _ in range(1000)))
        assert names.asked == ["a.b"]


async def test_lookup_that_never_ends_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_S", 0.05)

    async def never(_name: str) -> Sequence[Address]:
        await asyncio.Event().wait()
        return []

    with closing(Connector(resolve=never)) as connector:
        failed = await asyncio.gather(*(reason(connector, f"h{number}.b", "one") for number in range(LOOKUPS)))
        assert set(failed) == {RefusalReason.UPSTREAM_FAILED}
        assert await reason(connector, "more.b", "one") is RefusalReason.LIMIT_EXCEEDED
        assert await reason(connector, "a.b", "two") is RefusalReason.UPSTREAM_FAILED


async def test_silent_name_server_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_S", 0.05)

    async def never(_name: str) -> Sequence[Address]:
        await asyncio.Event().wait()
        return []

    with closing(Connector(resolve=never)) as connector:
        assert await reason(connector, "a.b") is RefusalReason.UPSTREAM_FAILED


async def test_name_of_the_hosts_file_is_not_found() -> None:
    with closing(Connector([ip_network("127.0.0.1")])) as connector:
        for name in ("localhost", f"{'a' * 64}.invalid"):
            assert await reason(connector, name) in {RefusalReason.NAME_NOT_FOUND, RefusalReason.UPSTREAM_FAILED}


async def test_next_address_is_used_if_one_refuses_the_connection() -> None:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    async with await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connecting(Names()) as connector:
            connected = await connector.connect([ip_address("127.0.0.2"), ip_address("127.0.0.1")], port)
            with connected:
                assert connected.getpeername() == ("127.0.0.1", port)
                assert not connected.getblocking()
                (await accepted.get()).close()
            with pytest.raises(ConnectionFailedError) as failed:
                await connector.connect([ip_address("127.0.0.2"), ip_address("::1")], port)
            assert failed.value.reason is RefusalReason.UPSTREAM_FAILED


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.5", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:127.0.0.9"])  # noqa: S104 - nothing is bound
def test_every_form_of_the_loopback_address_is_own(address: str) -> None:
    assert is_own_address(ip_address(address))


def test_address_of_another_machine_is_not_own() -> None:
    assert not is_own_address(ip_address("203.0.113.1"))
    assert not is_own_address(ip_address("2001:db8::1"))

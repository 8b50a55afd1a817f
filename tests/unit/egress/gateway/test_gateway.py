"""The gateway: TLS names, addresses, policy changes, limits and records, with real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.egress.gateway import connection
from sandlot.egress.gateway import gateway as module
from sandlot.egress.gateway.rate import BURST_S
from sandlot.egress.gateway.responses import ACCESS_DENIED_ALERT
from sandlot.link import services
from sandlot.model.network import NetworkMode, NetworkPolicy
from tests.unit.egress.gateway.world import WAIT_S, Names, World, allowing, echo, sandbox, serving, swallow, web

INTERNET = NetworkPolicy(NetworkMode.INTERNET)


def hello(name: str | None) -> bytes:
    """Return a ClientHello that asks for a server."""
    entry = b"" if name is None else b"\0" + len(name).to_bytes(2, "big") + name.encode()
    names = len(entry).to_bytes(2, "big") + entry
    extensions = b"" if name is None else b"\0\0" + len(names).to_bytes(2, "big") + names
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\x01" + b"\1\0" + len(extensions).to_bytes(2, "big") + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def test_start_of_a_service_imports_no_parser() -> None:
    program = "import sys, sandlot.egress.gateway.gateway; print(sorted({'h11', 'dns', 'sandlot.egress.gateway.connection'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name, passes", [("allowed.test", True), ("ALLOWED.TEST", True), ("other.test", False), (None, False)])
@pytest.mark.parametrize("step", [1000, 1], ids=["whole", "split"])
async def test_tls_reaches_the_named_server_only(name: str | None, step: int, *, passes: bool) -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        data = hello(name)
        for start in range(0, len(data), step):
            await program.send(data[start : start + step])
            await asyncio.sleep(0)
        if passes:
            await program.read_until(data)
        else:
            assert await program.read_all() == ACCESS_DENIED_ALERT
            assert not program.was_reset
            assert server.bytes == b""
            assert world.reasons == ["tls_name_mismatch"]


async def test_refused_host_gets_an_alert_on_the_port_of_https() -> None:
    async with sandbox(allowing("allowed.test")) as world:
        program = world.connect("other.test", 443)
        await program.send(hello("other.test"))
        assert await program.read_all() == ACCESS_DENIED_ALERT
        assert world.names.asked == []


async def test_silent_program_is_refused_on_a_port_of_http() -> None:
    async with sandbox(allowing("allowed.test")) as world:
        program = world.connect("other.test", 80)
        assert await program.read_all() == b""
        assert program.was_reset


async def test_denied_name_is_refused_behind_an_address() -> None:
    async with serving(echo) as server, sandbox(allowing(f"127.0.0.1:{server.port}", deny=[f"other.test:{server.port}"])) as world:
        program = world.connect("127.0.0.1", server.port)
        await program.send(hello("other.test"))
        assert await program.read_all() == ACCESS_DENIED_ALERT
        assert server.bytes == b""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "2130706433",
        "0x7f.1",
        "localhost",
        "a.localhost",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "private.test",
    ],
)
async def test_destination_that_is_not_public_is_not_connected(host: str) -> None:
    names = Names({"private.test": ["127.0.0.1", "10.1.2.3"]})
    async with serving(echo) as server, sandbox(INTERNET, names=names, private=()) as world:
        program = world.connect(host, server.port)
        assert await program.read_all() == b""
        assert program.was_reset
        assert server.connections == 0
        assert world.reasons == ["address_not_public"]


async def test_only_checked_addresses_of_a_name_are_tried() -> None:
    names = Names({"mixed.test": ["127.0.0.2", *(f"10.0.0.{number}" for number in range(50)), "127.0.0.1"]})
    async with serving(echo) as server, sandbox(allowing(f"mixed.test:{server.port}"), names=names, private=("127.0.0.1/32",)) as world:
        program = world.connect("mixed.test", server.port)
        await program.send(b"\0x")
        await program.read_until(b"\0x")


async def test_denied_address_of_an_allowed_name_is_not_tried() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}", deny=["127.0.0.1"])) as world:
        program = world.connect("allowed.test", server.port)
        assert await program.read_all() == b""
        assert server.connections == 0
        assert world.reasons == ["host_not_allowed"]


async def test_server_speaks_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        while data := await reader.read(65536):
            writer.write(b"250 " + data)

    async with serving(greet) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.read_until(b"220 mail\r\n")
        await program.send(b"EHLO x\r\n")
        await program.read_until(b"250 EHLO x\r\n")


async def test_single_letters_reach_the_server() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"G")
        await program.read_until(b"G")
        await program.send(b"x")
        await program.read_until(b"Gx")


async def test_request_whose_first_letters_were_passed_on_is_decided() -> None:
    async with serving(web) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        for host in (f"allowed.test:{server.port}", "other.test"):
            server.bytes.clear()
            program = world.connect("allowed.test", server.port)
            await program.send(b"GE")
            await server.read_until(b"GE")
            await program.send(f"T / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            if host == "other.test":
                assert b"403" in await program.read_all()
                assert server.bytes == b"GE"
            else:
                await program.read_until(b"ok")
                assert server.bytes == f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def test_policy_change_resets_connections_that_it_does_not_allow() -> None:
    async with serving(echo) as first, serving(echo) as second, sandbox(allowing(f"allowed.test:{first.port}", f"other.test:{second.port}")) as world:
        kept, cut = world.connect("allowed.test", first.port), world.connect("other.test", second.port)
        for program in (kept, cut):
            await program.send(b"\0x")
            await program.read_until(b"\0x")
        world.network.set_policy(allowing(f"allowed.test:{first.port}"))
        assert await cut.read_all() == b"\0x"
        assert cut.was_reset
        await asyncio.wait_for(second.was_reset.wait(), 10)
        await kept.send(b"y")
        await kept.read_until(b"y")
        late = world.connect("other.test", second.port)
        assert await late.read_all() == b""
        assert second.connections == 1


@pytest.mark.parametrize("limit, value", [("CHECK_S", 0), ("MAX_CUTS", 1)])
async def test_many_connections_are_compared_with_a_new_policy_while_other_tasks_run(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(module, "CHECK_S", 60)
    monkeypatch.setattr(module, limit, value)
    compared: list[connection.Connection] = []
    is_allowed = connection.Connection.is_allowed
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        programs = [world.connect("allowed.test", server.port) for _ in range(5)]
        for program in programs:
            await program.send(b"\0x")
            await program.read_until(b"\0x")

        def record(self: connection.Connection) -> bool:
            compared.append(self)
            return is_allowed(self)

        monkeypatch.setattr(connection.Connection, "is_allowed", record)
        world.network.set_policy(allowing("other.test"))
        assert len(compared) == 1
        world.network.set_policy(allowing("other.test", f"allowed.test:{server.port}"))
        assert len(compared) == 1
        world.network.set_policy(allowing("other.test"))
        for program in programs:
            await program.read_all()
            assert program.was_reset
        assert len(set(compared)) == 5


async def test_policy_change_during_a_transfer_and_for_the_next_request() -> None:
    async with serving(web) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        request = f"GET /b HTTP/1.1\r\nHost: allowed.test:{server.port}\r\n\r\n".encode()
        program = world.connect("allowed.test", server.port)
        await program.send(request)
        await program.read_until(b"ok")
        world.network.set_policy(allowing(f"GET allowed.test:{server.port}/a"))
        await program.send(request)
        assert b"path_not_allowed" in await program.read_all()
        assert server.bytes == request


async def test_closed_network_resets_and_refuses() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0x")
        await program.read_until(b"\0x")
        world.network.close()
        world.network.close()
        await program.read_all()
        assert program.was_reset
        late = world.connect("allowed.test", server.port)
        await late.read_all()
        assert late.was_reset
        assert server.connections == 1


async def test_connections_of_a_sandbox_and_of_all_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0x")
        await program.read_until(b"\0x")
        for limit in ("MAX_CONNECTIONS", "MAX_TOTAL_CONNECTIONS"):
            with monkeypatch.context() as patch:
                patch.setattr(module, limit, 1)
                refused = world.connect("allowed.test", server.port)
                await refused.read_all()
                assert refused.was_reset
        assert world.reasons == ["limit_exceeded"]
        assert server.connections == 1


async def test_connections_beyond_the_rate_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENS_PER_S", 0.001)
    monkeypatch.setattr(module, "OPENS_BURST", 2)
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        first, second = (world.connect("allowed.test", server.port) for _ in range(2))
        for program in (first, second):
            await program.send(b"\0x")
            await program.read_until(b"\0x")
        waiting = world.connect("allowed.test", server.port)
        await second.send(b"y")
        await second.read_until(b"y")  # the frame that opens the third connection has been read before
        assert (server.connections, waiting.was_reset, world.reasons) == (2, False, [])


async def test_connections_beyond_a_number_have_small_buffers_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LARGE_BUFFERS", 1)
    monkeypatch.setattr(connection, "BUFFER_BYTES", 20_000)
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        found: list[connection.Connection] = []
        for _ in range(2):
            program = world.connect("allowed.test", server.port)
            await program.send(b"\0x")
            await program.read_until(b"\0x")
            (opened,) = world.network._connections - set(found)  # noqa: SLF001 - the sockets are seen nowhere else
            found.append(opened)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            large, small = (opened._socket.getsockopt(socket.SOL_SOCKET, option) for opened in found)  # type: ignore[union-attr]  # noqa: SLF001
            assert large > small == 2 * 20_000


async def test_sandbox_leaves_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_CONNECTIONS", 12)
    monkeypatch.setattr(module, "MIN_CONNECTIONS", 1)
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        for _ in range(12):
            program = world.connect("allowed.test", server.port)
            await program.send(b"\0x")
            await program.read_until(b"\0x") if world.network.activity().open_connections < 4 else await asyncio.sleep(0)
        assert world.network.activity().open_connections == 4


async def test_connection_whose_program_has_left_is_cut_if_its_server_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HALF_CLOSED_S", 0.05)

    released, closed = asyncio.Event(), asyncio.Event()

    async def stay(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.transport.abort()
        await asyncio.sleep(0)
        closed.set()

    async with serving(stay) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0x")
        program.end()
        await program.read_all()
        assert program.was_reset
        released.set()
        await closed.wait()


async def test_head_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        for start in (b"GET /a HTTP", b"GET /a HTTP/1.1\r\nHost: x", b"\x16\3\1\0\x50"):
            program = world.connect("allowed.test", server.port)
            await program.send(start)
            assert await program.read_all() == b""
            assert program.was_reset
        assert server.connections == 0


async def test_rate_limit_holds_in_both_directions() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}"), mbit=8) as world:
        program = world.connect("allowed.test", server.port)
        started_s = time.monotonic()
        data = bytes(512 * 1024)
        sending = asyncio.create_task(program.send(data))
        while len(program.received) < len(data):
            await program.read()
        await sending
        # 1 MiB at 1 MB/s, less the burst of a quarter of a second. A slow machine takes longer.
        assert time.monotonic() - started_s > 2 * len(data) / 1_000_000 - BURST_S - 0.1


async def test_server_that_does_not_read_stops_the_program() -> None:
    released = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        await swallow(reader, writer)
        writer.write_eof()

    async with serving(wait) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        data = bytes(32 * 1024 * 1024)
        sending = asyncio.create_task(program.send(data))
        while world.peer.connection.room(program.stream):  # noqa: ASYNC110 - the link has no event for a full window
            await asyncio.sleep(0.01)
        assert not sending.done()
        released.set()
        await sending
        program.end()
        await program.read_all()
        assert len(server.bytes) == len(data)


async def wait_for_unread_bytes(world: World, least: int, most: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not least <= world.unread_bytes <= most:  # noqa: ASYNC110 - services have no event for it
            await asyncio.sleep(0)


@pytest.mark.parametrize("start", [b"GET /a HTTP/1.1\r\nX: ", b"\x16\3\1\x30\0\1\0\x2f\xfc\3\3" + bytes(33) + b"\x2e\0"], ids=["head", "hello"])
async def test_incomplete_first_bytes_of_a_sandbox_are_limited_together(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(services, "UNREAD_BYTES", 65_000)
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        data = start + b"x" * 10_000
        programs = []
        for count in range(1, 6):
            programs.append(world.connect("allowed.test", server.port))
            await programs[-1].send(data)
            await wait_for_unread_bytes(world, count * len(data), count * (len(data) + len(b"HEAD ")))
        refused = world.connect("allowed.test", server.port)
        await refused.send(data)
        await refused.read_all()
        assert world.reasons == ["limit_exceeded"]
        for program in programs:
            program.reset()
        await wait_for_unread_bytes(world, 0, 0)


async def test_incomplete_heads_of_responses_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "UNREAD_BYTES", 70_000)

    async def never_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 30_000)
        await reader.read(65536)

    async with serving(never_end) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        programs = []
        for _ in range(3):
            programs.append(world.connect("allowed.test", server.port))
            await programs[-1].send(f"GET / HTTP/1.1\r\nHost: allowed.test:{server.port}\r\n\r\n".encode())
        assert b"HTTP/1.1 429 " in b"".join([await program.read() for program in programs[-1:]])
        assert world.reasons == ["limit_exceeded"]


async def test_refusals_are_folded_and_reported_at_most_once_a_second() -> None:
    async with sandbox(allowing("allowed.test")) as world:
        for host in ("other.test", "other.test", "third.test"):
            await world.connect(host, 5432).read_all()
        assert [(each.host, each.count) for each in world.network.activity().refusals] == [("other.test", 2), ("third.test", 1)]
        assert [each.host for each in world.reported] == ["other.test"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda *parts: b"".join(parts),
            *[
                st.sampled_from(
                    [
                        b"GET ",
                        b"/a",
                        b" HTTP/1.1\r\n",
                        b"Host: ",
                        b"other.test",
                        b"\r\n",
                        b"\r\n\r\n",
                        b"\x16\3\1",
                        b"\0",
                        b"A",
                        b"Transfer-Encoding: chunked\r\n",
                        hello("other.test"),
                    ]
                )
            ]
            * 8,
        ),
    ),
    step=st.integers(1, 40),
)
async def test_no_bytes_for_another_server_pass(data: bytes, step: int) -> None:
    """Any bytes on a host of which only requests for ``/secret`` are allowed never reach the server."""
    async with serving(echo) as server, sandbox(allowing(f"GET allowed.test:{server.port}/secret")) as world:
        program = world.connect("allowed.test", server.port)
        for start in range(0, len(data), step):
            await program.send(data[start : start + step])
            await asyncio.sleep(0)
        program.end()
        await program.read_all()
        assert server.connections == 0
        assert len(world.reasons) == 1

"""Tunnels over the link: separate ends of both directions, and invalid messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from sandlot.link.tunnels import Tunnel
from sandlot.model.errors import ConflictError, SandboxEndedError
from tests.unit.link.peer import PeerCall, linked, until


async def echoing(call: PeerCall) -> None:
    """A program that sends back its whole input after the end of the input."""
    call.event("connected", address="127.0.0.1")
    await call.ended.wait()
    await call.data(0, bytes(call.input))
    call.event("end")
    call.result()


async def test_tunnel_transfers_bytes_and_ends_each_direction() -> None:
    body = bytes(range(256)) * 4096
    async with linked({"port.connect": echoing}) as (link, peer):
        tunnel = await link.connect_port(8000)
        assert (tunnel.address, peer.calls[-1].args) == ("127.0.0.1", {"port": 8000})
        await tunnel.send(body)
        tunnel.end()
        assert b"".join([piece async for piece in tunnel]) == body
        assert tunnel.program_ended
        assert [piece async for piece in tunnel] == []
        await tunnel.wait()


async def test_reset_connection_is_an_error_and_not_an_end() -> None:
    async def cut(call: PeerCall) -> None:
        call.event("connected", address="127.0.0.1")
        await call.ended.wait()
        call.reset("conflict", "The program reset the connection.")

    async with linked({"port.connect": cut}) as (link, _):
        tunnel = await link.connect_port(1)
        tunnel.end()
        with pytest.raises(ConflictError, match="reset"):
            await anext(tunnel)


async def test_closing_or_cancelling_a_tunnel_resets_its_stream() -> None:
    async def silent(call: PeerCall) -> None:
        if call.args["port"] == 1:
            call.event("connected", address="127.0.0.1")
        await call.over.wait()

    async with linked({"port.connect": silent}) as (link, peer):
        tunnel = await link.connect_port(1)
        await tunnel.aclose()
        await until(lambda: peer.calls[0].reset_code)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await link.connect_port(2)
        await until(lambda: peer.calls[1].reset_code)
        assert [call.reset_code for call in peer.calls] == ["cancelled", "cancelled"]


CONNECTED = {"event": "connected", "address": "127.0.0.1"}
END = {"event": "end"}
LIES: Mapping[str, Sequence[object]] = {
    "connected to what is no loopback": ({"event": "connected", "address": "10.0.0.1"},),
    "connected twice": (CONNECTED, CONNECTED),
    "an end before the beginning": (END,),
    "bytes before the beginning": (0,),
    "bytes of another channel": (CONNECTED, 1),
    "bytes after the end": (CONNECTED, END, 0),
    "two ends": (CONNECTED, END, END),
    "a word that there is not": ({"event": "moved", "to": "10.0.0.1"},),
    "a result that there is not": (CONNECTED, {"result": {"bytes": 1}}),
}
"""Messages of the guest, and channels on which it sends one byte."""


@pytest.mark.parametrize("lie", LIES)
async def test_invalid_tunnel_message_is_a_violation(lie: str) -> None:
    async def send_invalid(call: PeerCall) -> None:
        for said in LIES[lie]:
            if isinstance(said, int):
                call.put(said, b"x")
            else:
                call.say(said)

    async with linked({"port.connect": send_invalid}) as (link, _):
        with pytest.raises(SandboxEndedError, match="protocol"):
            await heard(await link.connect_port(1))


async def heard(tunnel: Tunnel) -> None:
    """Return the bytes and events of a tunnel."""
    async for _ in tunnel:
        pass
    await tunnel.wait()

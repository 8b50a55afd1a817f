"""Connections of programs through the gateway to real servers: what passes, and what a server never sees."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.egress.gateway.world import allowing, echo, reset, sandbox, serving, swallow

PIECE = bytes(range(256)) * 256


async def test_bytes_pass_in_both_directions_and_ends_are_passed_on() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0" + PIECE)
        program.end()
        assert await program.read_all() == b"\0" + PIECE
        assert not program.was_reset
        activity = world.network.activity()
        assert activity.sent_bytes == activity.received_bytes == 1 + len(PIECE)
        assert [(each.host, each.port, each.connections) for each in activity.destinations] == [("allowed.test", server.port, 1)]


async def test_server_may_send_after_the_program_has_ended() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await swallow(reader, writer)
        writer.write(PIECE)
        writer.write_eof()

    async with serving(answer) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        program.end()
        assert await program.read_all() == PIECE
        assert not program.was_reset


async def test_program_may_send_after_the_server_has_ended() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        await swallow(reader, writer)

    async with serving(greet) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        assert await program.read_all() == b"bye"
        await program.send(b"\0late")
        program.end()
        await server.read_until(b"\0late")


async def test_reset_of_the_server_is_a_reset_for_the_program() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reset(writer)

    async with serving(drop) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0")
        assert await program.read_all() == b""
        assert program.was_reset
        assert world.reasons == []


async def test_reset_of_the_program_is_a_reset_for_the_server() -> None:
    async with serving(echo) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(b"\0")
        await program.read()
        program.reset()
        await asyncio.wait_for(server.was_reset.wait(), 10)


async def test_refused_destination_is_neither_resolved_nor_connected() -> None:
    async with serving(echo) as server, sandbox(allowing("allowed.test")) as world:
        for host in ("other.test", "127.0.0.1", "allowed.test"):
            program = world.connect(host, server.port)
            assert await program.read_all() == b""
            assert program.was_reset
        assert world.names.asked == []
        assert server.connections == 0
        assert world.reasons == ["host_not_allowed", "host_not_allowed", "port_not_allowed"]


@pytest.mark.parametrize(
    "host, port",
    [("a" * 500, 80), ("allowed.test", -1), ("allowed.test", 70000), ("a\0b", 80), ("a@b.test", 80), ("", 80), (7, 80), ("allowed.test", "80")],
)
async def test_any_arguments_of_a_guest_are_refused(host: object, port: object) -> None:
    async with sandbox(allowing("allowed.test:*")) as world:
        program = world.connect(host, port)
        assert await program.read_all() == b""
        assert program.was_reset
        assert world.names.asked == []

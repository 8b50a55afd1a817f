"""Requests to URLs that tenants chose, against receivers on loopback: the address that is used, the bytes that are sent, and hostile receivers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from sandlot.egress.outbound import client
from sandlot.egress.outbound.client import OutboundHttpClient
from sandlot.egress.outbound.connector import Connector
from sandlot.egress.policy.addresses import Address
from sandlot.model.errors import ForbiddenError, InvalidRequestError, TimeoutExceededError, UnavailableError

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver:
    """Sends a given response, and records what it receives."""

    def __init__(self) -> None:
        self.port = 0
        self.says: bytes | None = OK
        self.heard: list[bytes] = []
        self.endless = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            self.heard.append(head + await reader.readexactly(length))
            if self.says is None:
                await reader.read()
                return
            writer.write(self.says)
            while self.endless:
                writer.write(b"x" * 65536)
                await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(host: str = "127.0.0.1") -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with await asyncio.start_server(receiver.serve, host, 0) as server:
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@asynccontextmanager
async def outside(*addresses: str, allow: Sequence[str] = ("127.0.0.1", "127.0.0.2")) -> AsyncIterator[OutboundHttpClient]:
    async def resolve(_host: str) -> Sequence[Address]:
        return [ip_address(address) for address in addresses]

    connector = Connector([ip_network(each) for each in allow], resolve=resolve if addresses else None)
    made = OutboundHttpClient(connector)
    try:
        yield made
    finally:
        await made.aclose()
        connector.close()


async def test_request_contains_body_and_host_name_and_no_data_of_this_machine(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    receiver.says = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with outside("127.0.0.1") as out:
        for _ in range(2):
            assert await out.post(f"http://hooks.example:{receiver.port}/a?b=c", b'{"x":1}', {"X-Signature": "s"}) == 200
    for heard in receiver.heard:
        head, _, body = heard.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0] == "POST /a?b=c HTTP/1.1"
        assert body == b'{"x":1}'
        names = {line.partition(":")[0].lower() for line in lines[1:]}
        assert names == {"host", "user-agent", "accept", "connection", "content-length", "x-signature"}
        assert f"Host: hooks.example:{receiver.port}" in lines


async def test_name_of_a_private_address_is_refused(receiver: Receiver) -> None:
    for address in ("127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1%lo"):
        async with outside(address, allow=()) as out:
            with pytest.raises(ForbiddenError) as refused:
                await out.post(f"http://hooks.example:{receiver.port}/", b"", {})
            assert refused.value.message == "hooks.example has no public address."
    assert receiver.heard == []


async def test_localhost_needs_no_lookup_and_is_checked(receiver: Receiver) -> None:
    async with outside() as out:
        assert await out.post(f"http://localhost:{receiver.port}/", b"", {}) == 204
    async with outside("8.8.8.8", allow=()) as out:
        for host in ("localhost", "127.1", "2130706433", "0x7f.1"):
            with pytest.raises(InvalidRequestError):
                await out.post(f"http://{host}:{receiver.port}/", b"", {})


async def test_failed_name_server_is_told_apart_from_a_missing_name(receiver: Receiver) -> None:
    async def fails(_host: str) -> Sequence[Address]:
        raise socket.gaierror(socket.EAI_AGAIN, "")

    with closing(Connector(resolve=fails)) as connector, pytest.raises(UnavailableError, match="cannot be looked up"):
        await OutboundHttpClient(connector).post(f"http://hooks.example:{receiver.port}/", b"", {})


async def test_next_address_is_tried_if_one_cannot_be_connected(receiver: Receiver) -> None:
    async with outside("127.0.0.2", "127.0.0.1") as out:
        assert await out.post(f"http://hooks.example:{receiver.port}/", b"", {}) == 204


async def test_public_address_of_this_machine_is_refused(receiver: Receiver) -> None:
    async def resolve(_host: str) -> Sequence[Address]:
        return [ip_address("8.8.8.8")]

    with closing(Connector(resolve=resolve, is_own=lambda address: str(address) == "8.8.8.8")) as connector, pytest.raises(ForbiddenError):
        await OutboundHttpClient(connector).post(f"http://hooks.example:{receiver.port}/", b"", {})


async def test_redirect_is_returned_and_not_followed(receiver: Receiver) -> None:
    async with receiving() as inside, outside("127.0.0.1") as out:
        for status in (301, 302, 303, 307, 308):
            where = f"http://127.0.0.1:{inside.port}/secret"
            receiver.says = f"HTTP/1.1 {status} Moved\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
            assert await out.post(f"http://hooks.example:{receiver.port}/", b"", {}) == status
        assert inside.heard == []


@pytest.mark.parametrize("says", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 300_000])
async def test_response_that_is_not_http_is_an_error(receiver: Receiver, says: bytes) -> None:
    receiver.says = says
    async with outside("127.0.0.1") as out:
        with pytest.raises(UnavailableError, match=r"hooks\.example closed the connection or does not speak HTTP"):
            await out.post(f"http://hooks.example:{receiver.port}/", b"", {})


async def test_endless_response_is_read_up_to_a_limit(receiver: Receiver) -> None:
    receiver.says, receiver.endless = b"HTTP/1.1 200 OK\r\n\r\n", True
    async with outside("127.0.0.1") as out:
        assert await out.post(f"http://hooks.example:{receiver.port}/", b"", {}) == 200


async def test_receiver_that_never_responds_times_out(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CALL_S", 0.2)
    receiver.says = None
    async with outside("127.0.0.1") as out:
        with pytest.raises(TimeoutExceededError):
            await out.post(f"http://hooks.example:{receiver.port}/", b"", {})


async def test_unreachable_receiver_is_unavailable() -> None:
    async with outside("127.0.0.1") as out:
        with pytest.raises(UnavailableError, match="cannot be connected to"):
            await out.post("http://hooks.example:1024/", b"", {})
        with pytest.raises(InvalidRequestError):
            await out.post("http://10.0.0.1/", b"", {})


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example"),
            *("-addext", "subjectAltName=DNS:hooks.example", "-keyout", tmp_path / "key", "-out", tmp_path / "certificate"),
        ],
        check=True,
        capture_output=True,
    )
    return tmp_path / "certificate"


async def test_tls_verifies_the_name_although_the_connection_uses_an_address(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, certificate.with_name("key"))
    receiver = Receiver()
    async with await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        async with outside("127.0.0.1") as out:
            with pytest.raises(UnavailableError, match="its certificate is not trusted"):
                await out.post(f"https://hooks.example:{port}/", b"", {})
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
        async with outside("127.0.0.1") as out:
            assert await out.post(f"https://hooks.example:{port}/", b"", {}) == 204
            with pytest.raises(UnavailableError, match="its certificate is not trusted"):
                await out.post(f"https://other.example:{port}/", b"", {})
    assert len(receiver.heard) == 1

"""TLS without I/O, against the client side of the standard library."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from sandlot.server.preview import tls
from sandlot.server.preview.tls import TlsConnection
from tests.support.web_servers import certificate


class Client:
    """Client side of a connection."""

    def __init__(self, file: Path) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = ssl.create_default_context(cafile=file).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake_hands(self, server: TlsConnection) -> bytes:
        """Complete the handshake; return what the server has decrypted."""
        received = b""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                received += server.receive(self.outgoing.read())
                self.incoming.write(server.take_output())
            else:
                return received + server.receive(self.outgoing.read())


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "certificate.pem")


@pytest.fixture
def server(tmp_path: Path) -> TlsConnection:
    context, _ = certificate(tmp_path, "localhost")
    return TlsConnection(context)


def test_bytes_pass_both_ways_and_the_end_of_each_direction_is_told(server: TlsConnection, client: Client) -> None:
    assert client.shake_hands(server) == b""
    client.tls.write(b"to the server")
    sent = client.outgoing.read()
    assert [server.receive(sent[:9]), server.receive(sent[9:])] == [b"", b"to the server"]
    data = bytes(range(256)) * 400
    client.incoming.write(server.encrypt(data))
    assert b"".join(client.tls.read(65536) for _ in range(7)) == data
    client.incoming.write(server.end())
    assert client.tls.read(1) == b""
    assert not server.is_ended
    client.tls.unwrap()
    assert server.receive(client.outgoing.read()) == b""
    assert server.is_ended


def test_nothing_is_sent_before_the_end_of_the_handshake(server: TlsConnection) -> None:
    with pytest.raises(ConnectionResetError):
        server.encrypt(b"early")
    assert server.end() == b""


def test_a_connection_that_takes_too_many_bytes_of_tls_itself_is_an_error(
    server: TlsConnection, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "OVERHEAD_MAX_BYTES", 100)
    with pytest.raises(ssl.SSLError, match="more than 100 bytes"):
        client.shake_hands(server)

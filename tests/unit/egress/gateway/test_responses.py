"""Refusals as a client reads them: with h11, and with the TLS of the standard library."""

from __future__ import annotations

import json
import ssl

import h11
import pytest

from sandlot.egress.gateway.responses import ACCESS_DENIED_ALERT, http_response
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.network_activity import RefusalReason


@pytest.mark.parametrize("reason", RefusalReason)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_refusal_is_one_whole_response_that_ends_the_connection(reason: RefusalReason, method: str) -> None:
    refusal = Refusal(reason, "a.b", 80, "GET a.b/é")
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a.b")]))
    client.send(h11.EndOfMessage())
    client.receive_data(http_response(refusal, to_head=method == "HEAD"))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == refusal.status
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.their_state is h11.MUST_CLOSE
    assert body == b"" if method == "HEAD" else json.loads(body) == refusal.body()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_client_reports_that_access_is_denied(version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    context.minimum_version = context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(ACCESS_DENIED_ALERT)
    with pytest.raises(ssl.SSLError) as denied:
        client.do_handshake()
    assert "ACCESS_DENIED" in str(denied.value).upper().replace(" ", "_")

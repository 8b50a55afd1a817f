"""Webhooks over a kill of the service: events that were not delivered are sent by the next service."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from sandlot import Client, InvalidRequestError
from tests.support.tcpservice import tcp_service


class Receiver(ThreadingHTTPServer):
    """Responds with ``status`` and records requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.status = 503
        self.got: list[tuple[int, str, str | None]] = []


class Answering(BaseHTTPRequestHandler):
    server: Receiver  # type: ignore[mutable-override]  # what made it

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.server.status, event["type"], event["sandbox"]))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_events_that_were_not_delivered_before_a_kill_are_sent_after_it() -> None:
    with receiving() as receiver, tcp_service({"SANDLOT_WEBHOOKS_ALLOW": "127.0.0.0/8", "SANDLOT_POOLS": "none"}) as service:
        key = service.key("hooked")
        with Client(url=service.url, api_key=key) as client:
            hook = client.webhooks.create(f"http://127.0.0.1:{receiver.server_port}/", events=["sandbox.created", "sandbox.ended"])
            made = _made(service.url, key)
            while not receiver.got:
                time.sleep(0.02)
            service.end(signal.SIGKILL)
            service.start()
            receiver.status = 200
            client.kill(made)
            while len([each for each in receiver.got if each[0] == 200]) < 2:
                time.sleep(0.02)
            taken = [each[1:] for each in receiver.got if each[0] == 200]
            assert taken == [("sandbox.created", made), ("sandbox.ended", made)]
            while client.webhooks.get(hook.id).delivered < 2:
                time.sleep(0.02)
            client.webhooks.remove(hook.id)


def test_disabled_webhook_gets_missed_events_at_its_new_address_after_a_kill() -> None:
    with (
        receiving() as before,
        receiving() as after,
        tcp_service({"SANDLOT_WEBHOOKS_ALLOW": "127.0.0.0/8", "SANDLOT_POOLS": "none"}) as service,
    ):
        before.status = after.status = 200
        key = service.key("hooked")
        with Client(url=service.url, api_key=key) as client:
            hook = client.webhooks.create(f"http://127.0.0.1:{before.server_port}/", events=["sandbox.created"])
            first = _made(service.url, key)
            while not client.webhooks.get(hook.id).delivered:
                time.sleep(0.02)
            assert not client.webhooks.update(hook.id, enabled=False).enabled
            second = _made(service.url, key)
            service.end(signal.SIGKILL)
            service.start()
            third = _made(service.url, key)
            with pytest.raises(InvalidRequestError, match="public"):
                client.webhooks.update(hook.id, url="http://10.0.0.1/", enabled=True)
            assert not client.webhooks.get(hook.id).enabled
            told = client.webhooks.update(
                hook.id, url=f"http://127.0.0.1:{after.server_port}/", events=["sandbox.created", "sandbox.ended"], enabled=True
            )
            assert (told.enabled, told.events) == (True, ("sandbox.created", "sandbox.ended"))
            client.kill(third)
            while len(after.got) < 3:
                time.sleep(0.02)
            assert [each[2] for each in before.got] == [first]
            assert [each[1:] for each in after.got] == [("sandbox.created", second), ("sandbox.created", third), ("sandbox.ended", third)]


def _made(url: str, key: str) -> str:
    return str(httpx.post(f"{url}/v1/sandboxes", json={"template": "base"}, headers={"X-API-Key": key}, timeout=120).json()["id"])

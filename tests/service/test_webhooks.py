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


def test_disabled_and_failing_webhooks_get_what_they_missed_after_a_kill() -> None:
    """One webhook is disabled and gets another address after the kill; the other one's address fails until then."""
    with (
        receiving() as before,
        receiving() as after,
        receiving() as failing,
        tcp_service({"SANDLOT_NETWORK_PRIVATE": "127.0.0.1", "SANDLOT_ISOLATION_ALLOWED": "gvisor,container"}) as service,
    ):
        before.status = after.status = 200
        key = service.key("hooked")
        with Client(url=service.url, api_key=key) as client:
            hook = client.webhooks.create(f"http://127.0.0.1:{before.server_port}/", events=["sandbox.created"])
            first = _made(service.url, key)
            while not client.webhooks.get(hook.id).delivered:
                time.sleep(0.02)
            assert not client.webhooks.update(hook.id, enabled=False).enabled
            failed = client.webhooks.create(f"http://127.0.0.1:{failing.server_port}/", events=["sandbox.created", "sandbox.ended"])
            second = _made(service.url, key)
            while not failing.got:
                time.sleep(0.02)
            service.end(signal.SIGKILL)
            service.start()
            failing.status = 200
            third = _made(service.url, key)
            with pytest.raises(InvalidRequestError, match="public"):
                client.webhooks.update(hook.id, url="http://10.0.0.1/", enabled=True)
            assert not client.webhooks.get(hook.id).enabled
            told = client.webhooks.update(
                hook.id, url=f"http://127.0.0.1:{after.server_port}/", events=["sandbox.created", "sandbox.ended"], enabled=True
            )
            assert (told.enabled, told.events) == (True, ("sandbox.created", "sandbox.ended"))
            client.sandboxes.kill(third)
            while len(after.got) < 3 or len([each for each in failing.got if each[0] == 200]) < 3:
                time.sleep(0.02)
            assert [each[2] for each in before.got] == [first]
            missed = [("sandbox.created", second), ("sandbox.created", third), ("sandbox.ended", third)]
            assert [each[1:] for each in after.got] == missed
            assert [each[1:] for each in failing.got if each[0] == 200] == missed
            while client.webhooks.get(failed.id).delivered < 3:
                time.sleep(0.02)
            client.webhooks.delete(failed.id)


def _made(url: str, key: str) -> str:
    body = {"template": "base", "isolation": "container"}
    return str(httpx.post(f"{url}/v1/sandboxes", json=body, headers={"X-API-Key": key}, timeout=120).json()["id"])

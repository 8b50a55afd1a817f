"""Clients of a service that is killed again and again: each knows what every answer must be, also after a cut.

Laws:
- An answer is a right one, or none came because the service was gone (:class:`Cut`). Everything else is a failure.
- Whoever was cut asks again until he is answered, and then knows which of the few possible things has happened.
- Where it stands, each client tells (:meth:`Ordeal.at`), so that a kill can be aimed at it.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 90.0
"""Until a service that does not answer counts as one that hangs."""
AGAIN_S = 0.02
PAUSE_S = 0.2
"""Between two steps of a client: what is killed is under load, not starved."""
AWAY = "service_unavailable"


class Cut(Exception):  # noqa: N818 - no error: it is what the test is about
    """The service went away before it answered."""


class Wrong(Exception):  # noqa: N818 - a finding
    """An answer that must not be."""


@dataclass
class Ordeal:
    """What all clients and whoever kills share.

    Args:
        socket: Where the service listens.
    """

    socket: Path
    failures: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    killed_at_s: list[float] = field(default_factory=list)
    _aim: tuple[str, int] = ("", 0)
    _hit: threading.Event = field(default_factory=threading.Event)

    def aim(self, what: str, value: int) -> None:
        """From now on wait for that moment: something is under way and has come that far."""
        self._hit.clear()
        self._aim = what, value

    def hit(self, timeout_s: float) -> bool:
        """Wait for the moment; whether it came."""
        return self._hit.wait(timeout_s)

    def aimed(self, what: str) -> bool:
        """Whether that is waited for."""
        return self._aim[0] == what and not self._hit.is_set()

    def at(self, what: str, value: int = 0) -> None:
        """A client is there now."""
        if self._aim[0] == what and value >= self._aim[1]:
            self._hit.set()


class Client(threading.Thread):
    """One client.

    Args:
        ordeal: What it takes part in.
        name: For people.
        seed: Where its choices come from.
    """

    def __init__(self, ordeal: Ordeal, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.ordeal = ordeal
        self.random = random.Random(seed)
        self.doing = "begins"
        self.steps = 0
        self.cuts = 0
        self.ready = threading.Event()
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=str(ordeal.socket)), base_url="http://sandlot", timeout=PATIENCE_S)

    def begin(self) -> None:
        """Once, while nothing is killed yet."""

    def step(self) -> None:
        """Once more, whatever it does; may be cut."""
        raise NotImplementedError

    def recover(self) -> None:
        """See what has happened to what was cut."""

    def finish(self) -> None:
        """Once, when nothing is killed any more."""

    def run(self) -> None:
        """Until the end, or the first failure of anybody."""
        try:
            self.begin()
            self.ready.set()
            while not self.ordeal.stopped.is_set() and not self.ordeal.failures:
                try:
                    self.step()
                    self.steps += 1
                    self.ordeal.stopped.wait(PAUSE_S)
                except Cut:
                    self.cuts += 1
                    self.patiently(self.recover)
            if not self.ordeal.failures:
                self.doing = "finishes"
                self.finish()
        except BaseException:  # noqa: BLE001 - told to whoever started it
            self.ordeal.failures.append(f"{self.name}, {self.doing}:\n{traceback.format_exc()}")
        finally:
            self.doing = "is done"
            self.ready.set()
            self.http.close()

    def ask(self, method: str, url: str, *, ok: Collection[int] = (200,), **request: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own
        """Ask once.

        Raises:
            Cut: The service was gone, or not ready yet.
            Wrong: Another status than one of ``ok``.
        """
        try:
            answer = self.http.request(method, url, **request)
        except httpx.TimeoutException as error:
            raise Wrong(f"{method} {url}: no answer in {PATIENCE_S:g} s") from error
        except httpx.TransportError as error:
            raise Cut(f"{method} {url}: {error!r}") from error
        return self.checked(answer, ok)

    def checked(self, answer: httpx.Response, ok: Collection[int]) -> httpx.Response:
        """The answer, where it is one of a service that runs, and a right one."""
        if answer.status_code == 503 and answer.json()["code"] == AWAY:
            raise Cut(answer.text)
        if answer.status_code not in ok:
            raise Wrong(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:2000]}")
        return answer

    def patiently(self, do: Callable[[], object]) -> None:
        """Do something that may be done again until it was not cut. Each kill of the service starts the time limit anew."""
        began_s = time.monotonic()
        while True:
            try:
                do()
            except Cut:
                if time.monotonic() > max([began_s, *self.ordeal.killed_at_s]) + PATIENCE_S:
                    raise
                time.sleep(AGAIN_S)
            else:
                return

    def patient_ask(self, method: str, url: str, *, ok: Collection[int] = (200,), **request: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own
        """Ask until there is an answer. The request must be one that may be made twice."""
        answers: list[httpx.Response] = []
        self.patiently(lambda: answers.append(self.ask(method, url, ok=ok, **request)))
        return answers[0]


def pages(client: Client, url: str, items: str, **query: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a query
    """All entries of a list that comes in pages."""
    cursor: str | None = None
    while True:
        page = client.patient_ask("GET", url, params={**query, **({"cursor": cursor} if cursor else {})}).json()
        yield from page[items]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def expect(found: object, *expected: object) -> None:
    """It must be one of these."""
    if found not in expected:
        raise Wrong(f"{str(found)[:2000]!r} is none of {str(expected)[:2000]}")

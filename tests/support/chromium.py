"""Headless Chromium, driven over the DevTools protocol. Tests that use it are marked ``soak``: Debian's package is large."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.support.until import PAUSE_S

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--ignore-certificate-errors",
    "--remote-debugging-port=0",
)
RESOLVER = "MAP *.preview.example.com 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE *.localhost, EXCLUDE localhost, EXCLUDE 127.0.0.1"
"""Names that resolve. All other names do not, so that the browser connects to nothing outside of the machine."""


class ScriptError(Exception):
    """A script of a page has thrown an exception."""


class Browser:
    """A running Chromium.

    Args:
        devtools: Connection to the browser's endpoint.
    """

    def __init__(self, devtools: Connection) -> None:
        self._devtools = devtools
        self._calls = 0
        self.events: list[dict[str, Any]] = []
        """Events of all pages since the start."""

    def call(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and return its result."""
        self._calls += 1
        own = {} if session is None else {"sessionId": session}
        self._devtools.send(json.dumps({"id": self._calls, "method": method, "params": params or {}, **own}))
        while True:
            message = json.loads(self._devtools.recv(timeout=60))
            if message.get("id") != self._calls:
                self.events.append(message)
            elif "error" in message:
                raise ScriptError(f"{method}: {message['error']}")
            else:
                return dict(message["result"])

    @contextmanager
    def profile(self) -> Iterator[Profile]:
        """Open a profile with cookies and storage of its own, and drop it afterwards."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            yield Profile(self, context)
        finally:
            self.call("Target.disposeBrowserContext", {"browserContextId": context})


class Profile:
    """Pages that share cookies and storage."""

    def __init__(self, browser: Browser, context: str) -> None:
        self._browser = browser
        self._context = context

    def open(self, url: str) -> Page:
        """Open a page in a new tab, and wait until it has loaded."""
        target = self._browser.call("Target.createTarget", {"url": "about:blank", "browserContextId": self._context})["targetId"]
        page = Page(self._browser, self._browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        self._browser.call("Network.enable", session=page.session)
        page.go(url)
        return page

    def cookies(self) -> list[dict[str, Any]]:
        """Return all cookies of the profile."""
        return list(self._browser.call("Storage.getCookies", {"browserContextId": self._context})["cookies"])


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self.session = session

    def go(self, url: str) -> None:
        """Load a URL, and wait until the page has loaded."""
        result = self._browser.call("Page.navigate", {"url": url}, self.session)
        assert "errorText" not in result, (url, result)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:  # noqa: ANN401 - a value of JavaScript
        """Return the value of an expression. A promise is awaited.

        Raises:
            ScriptError: The script has thrown an exception, or the page was left meanwhile.
        """
        params = {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        done = self._browser.call("Runtime.evaluate", params, self.session)
        if "exceptionDetails" in done:
            raise ScriptError(done["exceptionDetails"].get("exception", {}).get("description") or done["exceptionDetails"]["text"])
        return done["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true. Errors, such as those of a page that is being loaded, count as false."""

        def holds() -> bool:
            try:
                return bool(self.evaluate(condition))
            except ScriptError:
                return False

        while not holds():
            time.sleep(PAUSE_S)

    def wait_for_websocket(self) -> None:
        """Wait until a WebSocket of the page is open."""

        def is_open(event: dict[str, Any]) -> bool:
            is_handshake = event["method"] == "Network.webSocketHandshakeResponseReceived"
            return bool(
                is_handshake and event["sessionId"] == self.session and event["params"]["response"]["status"] == HTTPStatus.SWITCHING_PROTOCOLS
            )

        while not any(is_open(event) for event in self._browser.events):
            self.evaluate("null")  # receives the events until now
            time.sleep(PAUSE_S)

    @property
    def text(self) -> str:
        """Text of the page that is visible."""
        return str(self.evaluate("document.body.innerText"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser. The test is skipped on a machine without Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's package chromium")
    with tempfile.TemporaryDirectory(prefix="sandlot-chromium-") as folder:
        argv = [program, *OPTIONS, f"--host-resolver-rules={RESOLVER}", f"--user-data-dir={folder}"]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            found = next(filter(None, (re.search(r"DevTools listening on (\S+)", line) for line in process.stderr)))
            with connect(found[1], max_size=None, compression=None) as devtools:
                yield Browser(devtools)
                devtools.send(json.dumps({"id": 0, "method": "Browser.close"}))
                process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()

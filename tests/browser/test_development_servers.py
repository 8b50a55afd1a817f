"""Promise: development servers work in the host form. A page follows a change of its source without being loaded again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from sandlot import Sandbox
from tests.support.chromium import Profile
from tests.support.localservice import LocalService

pytestmark = pytest.mark.soak

FOLDER = "/workspace/app"
WORDS_JS = """
export function render() { document.getElementById("app").textContent = "first words" }
if (import.meta.hot) import.meta.hot.accept(changed => changed.render())
"""
MAIN_JS = "import {render} from './words.js'\nrender()\n"


@dataclass(frozen=True, slots=True)
class DevelopmentServer:
    """A development server.

    Args:
        packages: Packages of npm.
        command: Command that starts the server.
        port: Port on which the server listens.
        files: Sources.
        changed: Source that the test changes.
    """

    packages: str
    command: str
    port: int
    files: Mapping[str, str] = field(repr=False)
    changed: str


NEXT_FILES = {
    "app/layout.js": "export default function Layout({children}) { return <html><body>{children}</body></html> }\n",
    "app/page.js": "export default function Page() { return <p>first words</p> }\n",
}
SERVERS = {
    "vite": DevelopmentServer(
        "vite@8.4.0",
        "npx vite",
        5173,
        {"index.html": '<!doctype html><p id="app"></p><script type="module" src="/main.js"></script>', "main.js": MAIN_JS, "words.js": WORDS_JS},
        "words.js",
    ),
    "astro": DevelopmentServer(
        "astro@7.3.5",
        "npx astro dev",
        4321,
        {
            "src/pages/index.astro": "<html><body><p id='app'></p><script>import '../main.js'</script></body></html>",
            "src/main.js": MAIN_JS,
            "src/words.js": WORDS_JS,
        },
        "src/words.js",
    ),
    "next": DevelopmentServer("next@16.4.6 react@19 react-dom@19", "npx next dev", 3000, NEXT_FILES, "app/page.js"),
    "next-webpack": DevelopmentServer("next@16.4.6 react@19 react-dom@19", "npx next dev --webpack", 3000, NEXT_FILES, "app/page.js"),
}


@pytest.fixture
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create("code-interpreter-slim", cpus=2, memory="2GiB", disk="4GiB", timeout=1200) as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SERVERS)
def test_page_of_a_development_server_follows_a_changed_source_without_reload(sandbox: Sandbox, profile: Profile, name: str) -> None:
    server = SERVERS[name]
    sandbox.files.write(f"{FOLDER}/package.json", json.dumps({"private": True}))
    sandbox.commands.run(f"cd {FOLDER} && npm install --silent --no-audit --no-fund {server.packages}", timeout=500).check()
    for path, content in server.files.items():
        sandbox.files.write(f"{FOLDER}/{path}", content)
    silent = {"NEXT_TELEMETRY_DISABLED": "1", "ASTRO_TELEMETRY_DISABLED": "1"}
    sandbox.commands.run(f"cd {FOLDER} && {server.command} > /tmp/log 2>&1", envs=silent, background=True)
    while not any(each.port == server.port for each in sandbox.ports()):
        time.sleep(0.1)

    page = profile.open(sandbox.get_url(server.port))
    page.wait_for("document.body.innerText.includes('first words')")
    page.wait_for_websocket()
    page.evaluate("window.kept = 'kept'")
    before = server.files[server.changed]
    sandbox.files.write(f"{FOLDER}/{server.changed}", before.replace("first words", "second words"))
    page.wait_for("document.body.innerText.includes('second words')")
    assert page.evaluate("window.kept") == "kept", sandbox.files.read("/tmp/log")

"""Promise: Dockerfiles of web applications, as their authors write them, become templates whose sandboxes serve the application at once.

The packages come from the indexes that this machine is configured for. ``python`` and ``node`` are aliases of the built-in template ``base``, and
``golang`` is an alias of ``languages``.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from sandlot import BuildLine, Sandbox
from tests.support.applications import BROWSER, FLASK, GO, LOCK, NODE, write_files
from tests.support.environ import clean_environ
from tests.support.localservice import LocalService, local_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

FLASK_READY = "curl -sf localhost:8000"


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service() as running:
        yield running


def browser(sandbox: Sandbox, port: int) -> httpx.Client:
    """Return a client of the preview of a port, as any program outside has it."""
    return httpx.Client(base_url=sandbox.get_url(port, path_form=True), timeout=30)


NODE_USER = """\
FROM node:20-slim
RUN mkdir /app && chown node:node /app
WORKDIR /app
COPY --chown=node:node server.js .
USER node
"""


def check_shop(sandbox: Sandbox) -> None:
    """Read the page of the shop, add something, and read the page again."""
    with browser(sandbox, 8000) as http:
        page = http.get("")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), page.text
        assert page.text.strip() == "<h1>The corner shop</h1><p>served by shop</p>"
        assert http.post("goods", json={"name": "tea", "price": 3}).json() == {"added": "tea"}
        assert "<li>tea: 3</li>" in http.get("").text


def test_flask_application_is_built_and_serves(service: LocalService, tmp_path: Path) -> None:
    context, lines = write_files(tmp_path, FLASK), list[BuildLine]()
    service.client.templates.build("shop", context=context, ready_command=FLASK_READY, memory="512M", on_line=lines.append)
    assert any("is an alias" in line.text for line in lines)
    with service.create(template="shop") as sandbox:
        check_shop(sandbox)
        assert ".env" not in sandbox.commands.run("ls -A").stdout.split()
        assert sandbox.commands.run("id -un; pwd").stdout == "shop\n/srv/shop\n"
        assert sandbox.run_code("import flask, os; print(os.getcwd(), os.access('.', os.W_OK))").stdout == "/srv/shop True\n"
    with service.create(template="shop") as another:
        check_shop(another)  # it has none of the goods of the first


def test_flask_application_is_built_on_the_command_line(service: LocalService, tmp_path: Path) -> None:
    context = write_files(tmp_path, FLASK)
    argv = (sys.executable, "-m", "sandlot.cli", "template", "build", "cli-shop", str(context), "--ready", FLASK_READY, "--memory", "512M")
    done = subprocess.run(argv, env={**clean_environ(), "SANDLOT_DATA_DIR": str(service.data_dir)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert service.client.templates.get_build(done.stdout.strip()).status == "ready"
    with service.create(template="cli-shop") as sandbox:
        check_shop(sandbox)


def test_node_application_of_two_stages_is_built_and_serves(service: LocalService, tmp_path: Path) -> None:
    context = write_files(tmp_path, NODE)
    with service.create(network="packages") as sandbox:
        sandbox.files.write("package.json", NODE["package.json"])
        done = sandbox.commands.run(LOCK, timeout=300)
        assert done.exit_code == 0, done.stderr
        (context / "package-lock.json").write_text(sandbox.files.read("package-lock.json"))
    service.client.templates.build("notes", context=context, ready_command="curl -sf localhost:3000")
    with service.create(template="notes") as sandbox, browser(sandbox, 3000) as http:
        assert http.get("").text == NODE["public/index.html"]
        assert http.post("notes", json={"text": "one"}).json() == {"count": 1}
        assert http.get("notes").json() == {"notes": ["one"], "mode": "production", "uid": 1000}
        assert sorted(sandbox.commands.run("ls").stdout.split()) == ["public", "server.cjs"], "the packages stay in the first stage"


def test_dockerfile_on_an_alias_of_node_can_use_the_user_node(service: LocalService, tmp_path: Path) -> None:
    context = write_files(tmp_path, {"Dockerfile": NODE_USER, "server.js": "console.log(process.getuid(), require('os').homedir())\n"})
    assert service.client.templates.build("user-node", context=context, memory="512M").status == "ready"
    with service.create(template="user-node") as sandbox:
        assert sandbox.commands.run("id -u; id -g; node server.js; touch /app/new ~/new && stat -c %u ~ server.js new").stdout.split() == [
            *("1000", "1000", "1000", "/home/node"),
            *("1000", "1000", "1000"),
        ]
        assert sandbox.commands.run("sudo -n id -u").stdout == "0\n"
        assert sandbox.commands.run("id -u node user; stat -c %U:%G /app", user="root").stdout.split() == ["1000", "1000", "user:user"]
        assert sandbox.run_code("import os; print(os.getuid(), os.environ['HOME'])").stdout == "1000 /home/node\n"


def test_go_application_alone_in_its_image_is_built_and_serves(service: LocalService, tmp_path: Path) -> None:
    context, lines = write_files(tmp_path, GO), list[BuildLine]()
    service.client.templates.build("greetings", context=context, ready_command="curl -sf localhost:8080", on_line=lines.append)
    assert any("golang:1.24 is an alias" in line.text for line in lines)
    with service.create(template="greetings") as sandbox, browser(sandbox, 8080) as http:
        assert http.get("", params={"name": "Ada"}).text == "hello Ada from 65532\n"
        assert http.get("static/terms.md").text == GO["static/terms.md"]
        assert http.get("static/notes.md").status_code == 404
        assert "go" not in {entry.name for entry in sandbox.files.list("/usr")}, "the compiler stays in the first stage"


@pytest.mark.timeout(1200)  # Debian's Chromium has 160 packages
def test_browser_of_debian_visits_a_page_of_its_sandbox(service: LocalService, tmp_path: Path) -> None:
    service.client.templates.build("prices", context=write_files(tmp_path, BROWSER), ready_command="curl -sf localhost:8000")
    with service.create(template="prices") as sandbox:
        options = "--headless --window-size=800,600 --virtual-time-budget=3000"
        page = sandbox.commands.run(f"chromium {options} --dump-dom http://localhost:8000/", timeout=120)
        assert "<h1>tea: 42\n</h1>" in page.stdout, page.stderr
        sandbox.commands.run(f"chromium {options} --screenshot=/tmp/chromium.png http://localhost:8000/", timeout=120).check()
        assert sandbox.commands.run(["python3", "visit.py"], timeout=120, check=True).stdout == "Prices tea: 42\n"
        for name in ("chromium", "playwright"):
            picture = Image.open(io.BytesIO(sandbox.files.read(f"/tmp/{name}.png", "bytes"))).convert("RGB")
            assert (picture.size, picture.getpixel((700, 500))) == ((800, 600), (0x12, 0xAB, 0x34)), name

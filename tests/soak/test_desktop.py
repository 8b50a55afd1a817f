"""The template ``desktop``: its screen by the SDK, in a browser of the host, and by E2B's client; and the sandbox of its browser."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from sandlot import Sandbox
from sandlot.model.specs import GIB
from tests.support.chromium import Profile
from tests.support.environments import create_environment
from tests.support.localservice import LocalService, local_service
from tests.support.preview_service import preview_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parents[1] / "compat" / "e2b" / "programs" / "desktop.py"
PORT = 8000
PAGE = """<!doctype html>
<title>Paint</title>
<body style="margin: 0; background: #101010">
<input id="colour" style="position: fixed; inset: 0; width: 100%; height: 100%; border: 0; outline: 0; background: none; color: transparent">
<script>document.onclick = () => { document.body.style.background = document.getElementById("colour").value || "#101010" }</script>"""
BLACK, TYPED = (0x10, 0x10, 0x10), (0x12, 0xAB, 0x34)
POINT = (400, 500)
"""A point of the page."""
POINTER_SIZE = 40
"""Pixels around the pointer that its picture may cover."""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(isolation="gvisor") as started:
        yield started


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create("desktop", timeout=1800) as made:
        began_s = time.monotonic()
        made.desktop.start()
        print(f"the desktop started in {time.monotonic() - began_s:.1f} s")
        yield made


@pytest.fixture(scope="module")
def page(sandbox: Sandbox) -> Sandbox:
    """The sandbox with a page in Chromium."""
    sandbox.files.write("/tmp/page/index.html", PAGE)
    sandbox.commands.run(f"python3 -m http.server --directory /tmp/page --bind 127.0.0.1 {PORT}", background=True)
    sandbox.desktop.open(f"http://127.0.0.1:{PORT}/")
    wait_for_colour(sandbox, BLACK)
    return sandbox


def picture(sandbox: Sandbox) -> Image.Image:
    return Image.open(io.BytesIO(sandbox.desktop.screenshot())).convert("RGB")


def wait_for_colour(sandbox: Sandbox, colour: tuple[int, int, int]) -> None:
    """Wait until a part of the page beside the pointer has a colour."""
    while picture(sandbox).getpixel((POINT[0] + POINTER_SIZE, POINT[1] + POINTER_SIZE)) != colour:
        time.sleep(0.1)


def test_sandbox_has_the_memory_of_its_template(sandbox: Sandbox) -> None:
    assert sandbox.limits.memory_bytes == 2 * GIB


def test_panel_of_the_desktop_is_visible(sandbox: Sandbox) -> None:
    window = sandbox.commands.run("xdotool search --onlyvisible --class xfce4-panel | head -n 1", check=True).stdout.strip()
    shown = sandbox.commands.run(f"xdotool getwindowgeometry --shell {window}", check=True).stdout.split()
    geometry = {name: int(value) for name, _, value in (line.partition("=") for line in shown)}
    assert (geometry["X"], geometry["Y"], geometry["WIDTH"]) == (0, 0, 1024)
    while len(picture(sandbox).crop((0, 0, 1024, geometry["HEIGHT"])).getcolors(1 << 20) or []) <= 20:  # text and icons have more colours
        time.sleep(0.1)


def test_application_that_the_desktop_launches_runs_programs(sandbox: Sandbox) -> None:
    """``gtk-launch`` is a program of GLib, which starts the terminal, which starts a shell."""
    sandbox.commands.run("gtk-launch pterm", check=True)
    sandbox.commands.run("xdotool search --sync --onlyvisible --class pterm windowfocus --sync", check=True)
    sandbox.desktop.type("touch /tmp/typed; exit\n")
    sandbox.commands.run("until test -e /tmp/typed; do sleep 0.1; done", check=True)


def test_pointer_moves_to_a_position(sandbox: Sandbox) -> None:
    sandbox.desktop.move(7, 700)
    assert sandbox.desktop.cursor_position() == (7, 700)
    sandbox.desktop.move(7, 700)
    sandbox.desktop.drag((10, 600), (300, 650))
    while sandbox.desktop.cursor_position() != (300, 650):  # the window manager holds the pointer until it has seen the button
        time.sleep(0.1)


def test_typed_text_and_a_click_change_the_page_in_the_screenshot(page: Sandbox) -> None:
    page.desktop.click(*POINT)
    wait_for_colour(page, BLACK)
    page.desktop.press("x", "backspace")
    page.desktop.type("#12ab34")
    assert picture(page).getpixel((POINT[0] + POINTER_SIZE, POINT[1] + POINTER_SIZE)) == BLACK, "nothing but the click changes the page"
    page.desktop.click(*POINT)
    wait_for_colour(page, TYPED)


CANVAS = "document.querySelector('#noVNC_container canvas')"
COLOURS = f"new Set(new Uint32Array({CANVAS}.getContext('2d').getImageData(0, 0, 1024, 768).data.buffer)).size"
CLICK = f"""(canvas => {{
    const area = canvas.getBoundingClientRect(), x = area.x + area.width / 2, y = area.y + area.height / 2
    for (const type of ['mousemove', 'mousedown', 'mouseup'])
        canvas.dispatchEvent(new MouseEvent(type, {{bubbles: true, clientX: x, clientY: y, button: 0}}))
}})({CANVAS})"""
"""Clicks in the middle of the screen."""
RENDERERS = """
import os, pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    argv = (process / "cmdline").read_bytes().replace(b"\\0", b" ")
    if not argv.startswith(b"/usr/lib/chromium/"):
        continue
    if b" --type=renderer" in argv:
        status = dict(line.split(":\\t") for line in (process / "status").read_text().splitlines() if ":\\t" in line)
        own = [os.readlink(process / kind) != os.readlink(f"/proc/1/{kind}") for kind in ("ns/pid", "ns/net", "root")]
        print(status["Seccomp"], status["Uid"].split()[0], *own)
    if b" --no-sandbox" in argv:
        print("without a sandbox")
"""


def test_renderers_of_the_browser_are_in_its_sandbox(page: Sandbox) -> None:
    """Every process of the sandbox may have a filter. Namespaces and a root of their own are the work of the browser's sandbox only."""
    found = page.commands.run(["python3", "-c", RENDERERS], user="root", check=True).stdout.splitlines()
    assert found
    assert set(found) == {"2 1000 True True True"}


def test_screen_is_shown_and_used_in_a_browser_of_the_host(page: Sandbox, profile: Profile) -> None:
    screen = profile.open(page.desktop.stream_url())
    screen.wait_for("document.documentElement.classList.contains('noVNC_connected')")
    screen.wait_for(f"{CANVAS}.width === 1024")
    assert "Connected" in screen.evaluate("document.getElementById('noVNC_status').textContent")
    screen.wait_for(f"{COLOURS} > 100")
    page.desktop.move(11, 400)
    screen.evaluate(CLICK)
    while page.desktop.cursor_position() == (11, 400):
        time.sleep(0.1)
    x, y = page.desktop.cursor_position()
    assert abs(x - 512) <= 2
    assert abs(y - 384) <= 2


def test_desktop_continues_after_hibernation(page: Sandbox) -> None:
    before = page.desktop.cursor_position()
    page.hibernate()
    assert page.desktop.cursor_position() == before
    page.desktop.move(5, 6)
    assert page.desktop.cursor_position() == (5, 6)


def test_client_of_e2b_uses_the_desktop(tmp_path: Path) -> None:
    python = create_environment("tests/environments/clients/e2b-desktop.lock", tmp_path / "venv")
    with preview_service(tmp_path) as previews:
        url = f"{previews.service.url}/e2b"
        key = previews.service.key("desktop", "--e2b", "--public-ports")
        env = previews.environ(E2B_API_KEY=key, E2B_API_URL=url, E2B_SANDBOX_URL=url, OTEL_SDK_DISABLED="true")
        done = subprocess.run([python, PROGRAM], env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "size": [1280, 720],
        "moved": [321, 123],
        "focused": True,
        "screenshots": [[1280, 720], [1280, 720], True],
        "page": True,
    }

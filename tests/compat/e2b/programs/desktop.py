"""E2B's desktop client: screen, pointer, keys, an application and the stream. Prints what it has seen."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress

import httpx
from e2b import CommandExitException
from e2b_desktop import Sandbox
from PIL import Image

desktop = Sandbox.create(resolution=(1280, 720), timeout=900)
try:
    seen: dict[str, object] = {"size": desktop.get_screen_size()}
    desktop.move_mouse(321, 123)
    seen["moved"] = desktop.get_cursor_position()

    empty = Image.open(io.BytesIO(desktop.screenshot()))
    desktop.launch("pterm")
    windows: list[str] = []
    while not windows:
        with suppress(CommandExitException):
            windows = desktop.get_application_windows("pterm")
    desktop.commands.run(f"xdotool windowfocus --sync {windows[-1]}")
    seen["focused"] = desktop.get_current_window_id() == windows[-1]
    while not desktop.files.exists("/tmp/typed"):
        desktop.write("touch /tmp/typed")
        desktop.press("enter")
        time.sleep(0.5)
    shown = Image.open(io.BytesIO(desktop.screenshot()))
    seen["screenshots"] = [empty.size, shown.size, empty.tobytes() != shown.tobytes()]

    desktop.stream.start()
    seen["page"] = "noVNC" in httpx.get(desktop.stream.get_url()).text
    desktop.stream.stop()
    print(json.dumps(seen))
finally:
    desktop.kill()

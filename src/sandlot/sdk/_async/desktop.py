"""Desktop of a sandbox: screen, pointer and keys, by programs of its template."""

from __future__ import annotations

import re
import uuid
from urllib.parse import urlencode, urlsplit, urlunsplit

from sandlot.model.errors import ErrorCode, InternalError, NotFoundError, TimeoutExceededError
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.sdk import requests, xdotool
from sandlot.sdk._async.commands import AsyncCommands
from sandlot.sdk._async.files import AsyncFiles
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.xdotool import Button

DISPLAY = ":0"
VNC_PORT = 5900
STREAM_PORT = 6080
START_TIMEOUT_S = 60.0
NOVNC = "/opt/noVNC"

_ENV = {"DISPLAY": DISPLAY}
_UNTIL_DISPLAY = "until xdpyinfo >/dev/null 2>&1; do sleep 0.05; done"
_UNTIL_DESKTOP = """\
until for window in $(xdotool search --onlyvisible --class xfce4-panel 2>/dev/null); do xdotool getwindowgeometry --shell "$window"; done |
    grep -q '^WIDTH=[0-9][0-9][0-9]' && xdotool search --onlyvisible --class xfdesktop >/dev/null 2>&1; do sleep 0.1; done"""
"""Waits for the windows of the panel and the background. The panel has further windows, which are smaller than 100 pixels."""
_LISTENING = "netstat -ltn | grep -q ':{port} '"
_UNTIL_LISTENING = f"until {_LISTENING}; do sleep 0.05; done"

_KEY_S = 0.05
"""Seconds that a key takes at most when text is typed: xdotool waits 12 ms after each, and a busy machine longer."""
_CLICK_S = 0.2
"""Seconds that a click or a step of the wheel takes at most: xdotool waits up to 50 ms after each, and a busy machine longer."""


class AsyncDesktop:
    """The screen, pointer and keys of one sandbox, as ``sandbox.desktop``.

    The template must have the programs of a desktop: ``Sandbox.create("desktop")``. Coordinates are pixels from the upper left corner of the screen.
    """

    def __init__(self, transport: AsyncTransport, sandbox: str, commands: AsyncCommands, files: AsyncFiles) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}"
        self._commands = commands
        self._files = files

    async def start(self, *, width: int = 1024, height: int = 768, dpi: int = 96) -> None:
        """Start the display and XFCE, and wait for the windows of the panel and the background, which are drawn a moment later.

        A display or a desktop that runs already is not started again. A display that runs keeps its size and resolution.

        Args:
            width: Width of the screen in pixels.
            height: Height of the screen in pixels.
            dpi: Resolution that the display reports to programs, in dots per inch.

        Raises:
            NotFoundError: ``program_not_found``: the template has no desktop.
            TimeoutExceededError: The display, or then the desktop, was not ready within 60 s.
        """
        if not (await self._commands.run("xdpyinfo >/dev/null 2>&1", envs=_ENV)).ok:
            screen = ("-screen", "0", f"{width}x{height}x24", "-retro", "-dpi", str(dpi))
            await self._launch("Xvfb", DISPLAY, "-ac", *screen, "-nolisten", "tcp", "-nolisten", "unix")
            await self._wait(_UNTIL_DISPLAY, "The display")
        if not (await self._commands.run("pgrep --exact xfce4-session || pgrep --exact startxfce4")).ok:
            await self._launch("startxfce4")
        await self._wait(_UNTIL_DESKTOP, "The desktop")

    async def screenshot(self) -> bytes:
        """Return an image of the screen with the pointer, as PNG."""
        path = f"/tmp/screenshot-{uuid.uuid4()}.png"  # noqa: S108 - in the sandbox
        await self._run("scrot", "--silent", "--pointer", path)
        image = await self._files.read(path, "bytes")
        await self._files.remove(path)
        return image

    async def screen_size(self) -> tuple[int, int]:
        """Return the width and height of the screen in pixels."""
        width, height = (await self._xdotool(["getdisplaygeometry"])).split()
        return int(width), int(height)

    async def cursor_position(self) -> tuple[int, int]:
        """Return the position of the pointer."""
        found = re.match(r"x:(\d+) y:(\d+) ", await self._xdotool(["getmouselocation"]))
        if found is None:
            raise InternalError("xdotool did not report a position.")
        return int(found[1]), int(found[2])

    async def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        await self._xdotool(xdotool.move(x, y))

    async def click(self, x: int | None = None, y: int | None = None, *, button: Button = "left", count: int = 1) -> None:
        """Click, at a position or where the pointer is.

        Args:
            x: Position to move the pointer to first, with ``y``. Default: where the pointer is.
            y: Position to move the pointer to first, with ``x``.
            button: ``left``, ``middle`` or ``right``.
            count: Number of clicks: 2 for a double click.

        Raises:
            InvalidRequestError: One of ``x`` and ``y`` is missing, or the button is not known.
        """
        await self._xdotool(xdotool.click(x, y, button, count), clicks=count)

    async def drag(self, start: tuple[int, int], end: tuple[int, int], *, button: Button = "left") -> None:
        """Move the pointer from one position to another while a button is held down.

        Args:
            start: Position at which the button is pressed.
            end: Position at which the button is released.
            button: ``left``, ``middle`` or ``right``.

        Raises:
            InvalidRequestError: The button is not known.
        """
        await self._xdotool(xdotool.drag(start, end, button))

    async def scroll(self, amount: int, x: int | None = None, y: int | None = None) -> None:
        """Turn the wheel of the pointer.

        Args:
            amount: Steps of the wheel: down if positive, up if negative. 0 only moves the pointer.
            x: Position to move the pointer to first, with ``y``. Default: where the pointer is.
            y: Position to move the pointer to first, with ``x``.

        Raises:
            InvalidRequestError: One of ``x`` and ``y`` is missing.
        """
        await self._xdotool(xdotool.scroll(amount, x, y), clicks=abs(amount))

    async def type(self, text: str) -> None:
        """Type text into the window that has the focus. A line break is the enter key."""
        await self._run("xdotool", "type", "--file", "-", text=text, timeout_s=DEFAULT_COMMAND_TIMEOUT_S + _KEY_S * len(text))

    async def press(self, *keys: str) -> None:
        """Press keys one after the other.

        Args:
            keys: Names of keys, such as ``"enter"``, ``"a"`` or ``"F5"``: those of X11, and common names in any case. Keys that are joined by ``+``
                are pressed together: ``"ctrl+shift+t"``.

        Raises:
            InvalidRequestError: There are no keys, or a key is empty.
        """
        await self._xdotool(xdotool.press(keys))

    async def open(self, target: str) -> None:
        """Open a file or a URL with the program that the desktop uses for it, and do not wait for the window.

        Args:
            target: Path or URL. Programs of the template open web pages with Chromium.
        """
        await self._launch("xdg-open", target)

    async def stream_url(self, *, view_only: bool = False, expires_in: float | None = None) -> str:
        """Return the URL of a page that shows the screen and passes on pointer and keys. The first call starts the VNC server.

        The page is a preview of port 6080, so the URL contains a token unless the ports of the sandbox are public.

        Args:
            view_only: True to open the page in a mode that sends neither pointer nor keys. This is no access control: anyone with the URL can
                turn it off.
            expires_in: Seconds until the token expires, 1 to 604800. Default: 86400.

        Raises:
            NotFoundError: ``program_not_found``: the template has no VNC server.
            SandlotError: ``unsupported``: the service serves no previews.
        """
        body = requests.omit_none(expires_in=expires_in)
        preview = await self._transport.request("POST", f"{self._path}/ports/{STREAM_PORT}/url", body=body, idempotent=True)
        if not (await self._commands.run("pgrep -x x11vnc")).ok:
            await self._launch("x11vnc", "-quiet", "-forever", "-shared", "-nopw", "-localhost", "-rfbport", str(VNC_PORT))
            await self._wait(_UNTIL_LISTENING.format(port=VNC_PORT), "The VNC server")
        if not (await self._commands.run(_LISTENING.format(port=STREAM_PORT))).ok:
            await self._launch(f"{NOVNC}/utils/novnc_proxy", "--vnc", f"localhost:{VNC_PORT}", "--listen", str(STREAM_PORT), "--web", NOVNC)
        await self._wait(_UNTIL_LISTENING.format(port=STREAM_PORT), "The page of the screen")
        parts = urlsplit(str(preview["url"]))
        options = urlencode({"autoconnect": "true", "resize": "scale", **({"view_only": "true"} if view_only else {})})
        return urlunsplit(parts._replace(path="/vnc.html", query="&".join(filter(None, (options, parts.query)))))

    async def _run(self, *argv: str, text: str | None = None, timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S) -> str:
        try:
            return (await self._commands.run(argv, envs=_ENV, stdin=text, timeout=timeout_s, check=True)).stdout
        except NotFoundError as error:
            raise _explain_missing_program(error) from None

    async def _xdotool(self, arguments: list[str], *, clicks: int = 0) -> str:
        if not arguments:  # xdotool fails without arguments
            return ""
        return await self._run("xdotool", *arguments, timeout_s=DEFAULT_COMMAND_TIMEOUT_S + _CLICK_S * clicks)

    async def _launch(self, *argv: str) -> None:
        """Start a program that outlives the call."""
        try:
            await self._commands.run(argv, envs=_ENV, background=True)
        except NotFoundError as error:
            raise _explain_missing_program(error) from None

    async def _wait(self, command: str, subject: str) -> None:
        done = await self._commands.run(command, envs=_ENV, timeout=START_TIMEOUT_S)
        if done.timed_out:
            raise TimeoutExceededError(f"{subject} was not ready within {START_TIMEOUT_S:g} s.", hint="Give the sandbox at least 2 GiB of memory.")
        done.check()


def _explain_missing_program(error: NotFoundError) -> NotFoundError:
    """Return the error of a missing program with the hint to use the template ``desktop``. Return other errors unchanged."""
    if error.code is not ErrorCode.PROGRAM_NOT_FOUND:
        return error
    return NotFoundError(f"{error.message} It is needed for the desktop.", code=error.code, hint="Create the sandbox from the template 'desktop'.")

"""Responses of the listener itself: errors as a page for browsers and as JSON for programs, and redirects. Pure."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from http import HTTPStatus

from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.server.preview.forwarding import Headers
from sandlot.web.error_formats import retry_after_s
from sandlot.web.errors import MEDIA_TYPE, problem_document

RELOAD_S = 2
"""Seconds after which the page of an error that can pass asks for the first time whether the error has passed."""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">{reload}
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto; padding: 0 1rem; }} p {{ color: #555; }}</style>
<h1>{title}</h1>
<p>{message}</p>
<p>{hint}</p>
</html>
"""

_RELOAD = """
<script>
let afterMs = {after_ms};
const reload = () => location.reload();
const reloadOnReturn = () => document.addEventListener("visibilitychange", reload, {{once: true}});
const check = async () => {{
    if (document.hidden || afterMs > 60000) return reloadOnReturn();
    try {{
        const request = {{method: "HEAD", redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(10000)}};
        if ((await fetch(location.href, request)).status !== {status}) return reload();
    }} catch (error) {{
        if (error.name === "TimeoutError") return reload();
    }}
    setTimeout(check, afterMs *= 1.1);
}};
setTimeout(check, afterMs);
</script>"""
"""Each request resumes the sandbox, so the page asks less and less often, and stops after 10 minutes or when nobody looks at its tab."""


@dataclass(frozen=True, slots=True)
class OwnResponse:
    """A response of the listener.

    Args:
        status: HTTP status.
        headers: Headers, among them the length of the body.
        body: Body; empty for redirects.
    """

    status: int
    headers: Headers
    body: bytes = b""


def error_response(error: SandlotError, request_id: str, *, is_page: bool) -> OwnResponse:
    """Return the response to a request that failed.

    Args:
        error: The error. A port on which no program listens is reported as 502, as by other proxies.
        request_id: Id of the request.
        is_page: True for a browser, which gets a page. The page loads itself again if the error can pass.
    """
    status = HTTPStatus.BAD_GATEWAY if error.code is ErrorCode.PORT_NOT_FOUND else HTTPStatus(error.status)
    after_s = RELOAD_S if error.code is ErrorCode.PORT_NOT_FOUND else retry_after_s(error)
    if is_page:
        media_type, body = b"text/html; charset=utf-8", _page(error, status, after_s)
    else:
        media_type, body = (
            MEDIA_TYPE.encode(),
            json.dumps({**problem_document(error, request_id), "status": int(status), "title": status.phrase}).encode(),
        )
    headers = [
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if after_s is not None:
        headers.append((b"retry-after", b"%d" % after_s))
    return OwnResponse(status, headers, body)


class ProgramError(UnavailableError):
    """A program does not speak HTTP, or does not read its request."""

    @property
    def status(self) -> int:
        """HTTP status: 502."""
        return HTTPStatus.BAD_GATEWAY


def stalled_request_error(seconds: float) -> ProgramError:
    """Return the error for a program that reads no more of its request."""
    return ProgramError(
        f"The program has read nothing of the request for {seconds:g} s.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Check that the program reads the bodies of requests, and look at its output.",
    )


def bad_response_error(port: int) -> ProgramError:
    """Return the error for a program that has sent no valid HTTP response."""
    return ProgramError(
        f"The program on port {port} closed the connection, or did not respond with HTTP.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Check that the program serves HTTP (not HTTPS) on this port, and look at its output.",
        fields={"port": port},
    )


def refused_connection(error: UnavailableError) -> bytes:
    """Return the response on a connection that is refused."""
    response = error_response(error, "", is_page=False)
    fields = b"".join(b"%s: %s\r\n" % field for field in [*response.headers, (b"connection", b"close")])
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (response.status, HTTPStatus(response.status).phrase.encode(), fields, response.body)


def not_listening(error: NotFoundError, port: int) -> NotFoundError:
    """Return the error for a port on which no program listens, with a hint for people who open a preview."""
    return NotFoundError(
        f"No program listens on port {port} of the sandbox.",
        code=error.code,
        hint="Start a server inside the sandbox. In a browser, this page asks again for 10 minutes.",
        fields={"port": port},
    )


def _page(error: SandlotError, status: HTTPStatus, after_s: int | None) -> bytes:
    reload = "" if after_s is None else _RELOAD.format(after_ms=after_s * 1000, status=int(status))
    title = "Nothing is running here yet" if error.code is ErrorCode.PORT_NOT_FOUND else "This preview cannot be shown"
    return _PAGE.format(reload=reload, title=html.escape(title), message=html.escape(error.message), hint=html.escape(error.hint or "")).encode()

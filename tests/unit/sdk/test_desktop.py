"""``sandbox.desktop`` against scripted responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ErrorCode, NotFoundError, TimeoutExceededError
from tests.unit.sdk.scripted import Reply, Script, Seen, problem

ENDED = {"exit_code": 0, "reason": "exited", "stdout": "", "stderr": "", "duration_s": 0.1}


class Programs:
    """Answers requests as a sandbox in which programs end at once.

    Args:
        results: Beginning of a command -> its result, where it differs from success without output.
    """

    def __init__(self, results: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.results = dict(results or {})
        self.started: list[str] = []

    def __call__(self, seen: Seen) -> Reply:
        if seen.path.endswith("/url"):
            return Reply(body={"host": "h", "token": "t", "url": "http://6080-sb-x.localhost:1/?sandlot_token=t", "path_url": "/p/t/"})
        if not seen.path.endswith("/processes"):
            return Reply(body=b"image")
        body = seen.json()
        argv = body.get("argv") or [body["command"]]
        self.started.append(" ".join(argv))
        result = next((each for begin, each in self.results.items() if self.started[-1].startswith(begin)), {})
        if body.get("background"):
            return Reply(201, {"id": "p-1", "pid": 5, "argv": argv, "running": True})
        return Reply(body={**ENDED, **result})


FAILED = {"exit_code": 1, "reason": "exited"}


def test_start_launches_display_and_desktop_in_order_and_waits_for_each(service: Script, sandbox: Sandbox) -> None:
    programs = Programs({"xdpyinfo": FAILED, "pgrep": FAILED})
    service.say(programs)
    sandbox.desktop.start(width=800, height=600, dpi=120)
    assert [line.split()[0] for line in programs.started] == ["xdpyinfo", "Xvfb", "until", "pgrep", "startxfce4", "until"]
    assert programs.started[1] == "Xvfb :0 -ac -screen 0 800x600x24 -retro -dpi 120 -nolisten tcp -nolisten unix"


def test_start_only_waits_if_the_desktop_runs(service: Script, sandbox: Sandbox) -> None:
    programs = Programs()
    service.say(programs)
    sandbox.desktop.start()
    assert [line.split()[0] for line in programs.started] == ["xdpyinfo", "pgrep", "until"]


def test_start_after_an_interrupted_start_launches_the_desktop(service: Script, sandbox: Sandbox) -> None:
    programs = Programs({"pgrep": FAILED})
    service.say(programs)
    sandbox.desktop.start()
    assert [line.split()[0] for line in programs.started] == ["xdpyinfo", "pgrep", "startxfce4", "until"]


def test_desktop_that_is_not_ready_in_time_is_an_error(service: Script, sandbox: Sandbox) -> None:
    service.say(Programs({"until": {"exit_code": 124, "reason": "timeout"}}))
    with pytest.raises(TimeoutExceededError, match="The desktop was not ready within 60 s"):
        sandbox.desktop.start()


def test_template_without_a_desktop_is_named_in_the_error(service: Script, sandbox: Sandbox) -> None:
    service.say(problem(404, "program_not_found"))
    with pytest.raises(NotFoundError, match="needed for the desktop") as refused:
        sandbox.desktop.click(1, 2)
    assert (refused.value.code, "'desktop'" in str(refused.value.hint)) == (ErrorCode.PROGRAM_NOT_FOUND, True)


def test_positions_and_sizes_are_read_from_the_output(service: Script, sandbox: Sandbox) -> None:
    service.say(
        Programs({"xdotool getmouselocation": {"stdout": "x:12 y:345 screen:0 window:6\n"}, "xdotool getdisplaygeometry": {"stdout": "1024 768\n"}})
    )
    assert sandbox.desktop.cursor_position() == (12, 345)
    assert sandbox.desktop.screen_size() == (1024, 768)


def test_typed_text_goes_through_standard_input(service: Script, sandbox: Sandbox) -> None:
    service.say(Programs())
    sandbox.desktop.type("-a 'quoted'\n")
    body = service.seen[-1].json()
    assert (body["argv"], body["stdin"]) == (["xdotool", "type", "--file", "-"], "-a 'quoted'\n")


def test_time_to_type_grows_with_the_text(service: Script, sandbox: Sandbox) -> None:
    service.say(Programs())
    sandbox.desktop.type("x" * 20_000)
    assert service.seen[-1].json()["timeout"] == 60 + 1000


def test_time_to_click_and_to_scroll_grows_with_the_number_of_steps(service: Script, sandbox: Sandbox) -> None:
    service.say(Programs())
    sandbox.desktop.scroll(-5_000)
    sandbox.desktop.click(count=2_000)
    assert [seen.json()["timeout"] for seen in service.seen] == [60 + 1000, 60 + 400]


def test_scrolling_by_nothing_runs_no_command(service: Script, sandbox: Sandbox) -> None:
    programs = Programs()
    service.say(programs)
    sandbox.desktop.scroll(0)
    assert programs.started == []


def test_stream_url_starts_the_servers_once_and_keeps_the_token(service: Script, sandbox: Sandbox) -> None:
    programs = Programs({"pgrep": FAILED, "netstat": FAILED})
    service.say(programs)
    url = sandbox.desktop.stream_url(view_only=True)
    assert url == "http://6080-sb-x.localhost:1/vnc.html?autoconnect=true&resize=scale&view_only=true&sandlot_token=t"
    assert [line.split()[0] for line in programs.started] == ["pgrep", "x11vnc", "until", "netstat", "/opt/noVNC/utils/novnc_proxy", "until"]
    programs.results.clear()
    programs.started.clear()
    assert "view_only" not in sandbox.desktop.stream_url()
    assert [line.split()[0] for line in programs.started] == ["pgrep", "netstat", "until"]


def test_stream_url_starts_the_page_if_only_the_vnc_server_runs(service: Script, sandbox: Sandbox) -> None:
    programs = Programs({"netstat": FAILED})
    service.say(programs)
    sandbox.desktop.stream_url()
    assert [line.split()[0] for line in programs.started] == ["pgrep", "netstat", "/opt/noVNC/utils/novnc_proxy", "until"]

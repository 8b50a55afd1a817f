"""``sandlot url``, and the URLs of ``sandlot ports``."""

from __future__ import annotations

import pytest

from sandlot.cli.main import dispatch
from tests.unit.cli.test_lifecycle import BOX
from tests.unit.sdk.scripted import Reply, Script

PREVIEW = {"url": "http://h/?t", "path_url": "http://d/p/t/", "host": "h", "token": "t", "public": False, "expires_at": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    "options, printed, sent", [([], "http://h/?t\n", {}), (["--path-form", "--expires-in", "60"], "http://d/p/t/\n", {"expires_in": 60})]
)
def test_url_is_printed(there: Script, capsys: pytest.CaptureFixture[str], options: list[str], printed: str, sent: dict[str, int]) -> None:
    there.say(Reply(200, BOX), Reply(200, PREVIEW))
    assert dispatch(["url", "sb-1", "8000", *options]) == 0
    assert (capsys.readouterr().out, there.seen[-1].json()) == (printed, sent)


def test_ports_are_listed_with_their_urls(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(
        Reply(200, BOX), Reply(200, {"ports": [{"port": 80, "address": "::1", "url": "http://h/"}, {"port": 81, "address": "::1", "url": None}]})
    )
    assert dispatch(["ports", "sb-1"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["PORT", "ADDRESS", "URL"],
        ["80", "::1", "http://h/"],
        ["81", "::1", "-"],
    ]

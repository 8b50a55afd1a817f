"""What ``sandlot serve`` listens on."""

from __future__ import annotations

import pytest

from sandlot.cli.main import dispatch
from sandlot.server import process
from sandlot.server.settings import Settings


def test_the_command_line_goes_over_the_environment_and_both_over_the_default(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    served: list[Settings] = []

    def main(settings: Settings, *, local: bool) -> int:
        assert not local
        served.append(settings)
        return 0

    monkeypatch.setattr(process, "main", main)
    for set_, options, host in (
        (None, [], "127.0.0.1"),
        ("", [], "127.0.0.1"),
        ("127.0.0.2", [], "127.0.0.2"),
        ("127.0.0.2", ["--host", "::1"], "::1"),
        (None, ["--host", "127.0.0.3"], "127.0.0.3"),
    ):
        with subtests.test(set_=set_, options=options, host=host):
            served.clear()
            monkeypatch.delenv("SANDLOT_HOST", raising=False)
            if set_ is not None:
                monkeypatch.setenv("SANDLOT_HOST", set_)
            assert dispatch(["serve", *options]) == 0
            assert [settings.host for settings in served] == [host]

"""``sandlot install``: what it sends, and that the package manager's output and exit status are its own."""

from __future__ import annotations

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script, events, problem

ID = "sb-abcd-abcdefghijklmnop"
SANDBOX = {"id": ID, "state": "running", "template": "base"}
ENDED = {"id": "p1", "exit_code": 3, "reason": "exited", "signal": None, "duration_s": 0.1}
TOLD = events(
    ("started", {"id": "p1", "pid": 7}),
    ("output", {"stream": "stdout", "offset": 0, "encoding": "utf-8", "data": "read\n"}),
    ("output", {"stream": "stderr", "offset": 0, "encoding": "utf-8", "data": "no such package\n"}),
    ("exit", ENDED),
)


def test_the_managers_words_and_status_are_passed_on(there: Script, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, SANDBOX), TOLD)
    assert dispatch(["install", ID, "--manager", "npm", "--user", "root", "--timeout", "9", "left-pad", "lodash@^4"]) == 3
    assert capfd.readouterr() == ("read\n", "no such package\n")
    assert there.seen[-1].path == f"/v1/sandboxes/{ID}/packages"
    assert there.seen[-1].json() == {"manager": "npm", "packages": ["left-pad", "lodash@^4"], "timeout": 9, "user": "root"}


@pytest.mark.parametrize("words", [["-r", "requirements.txt"], ["-r requirements.txt"], ["--requirement", "requirements.txt"]])
def test_requirements_file_is_one_of_the_packages(there: Script, words: list[str]) -> None:
    there.say(Reply(200, SANDBOX), TOLD)
    dispatch(["install", ID, *words, "six"])
    first, second = there.seen[-1].json()["packages"]
    assert (first.split(), second) == (["-r", "requirements.txt"], "six")


def test_running_out_of_time_is_124(there: Script, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, SANDBOX), events(("started", {"id": "p1", "pid": 7}), ("exit", {**ENDED, "exit_code": 137, "reason": "timeout"})))
    assert dispatch(["install", ID, "six", "--timeout", "1"]) == 124
    assert "timeout of 1 s" in capfd.readouterr().err


def test_what_is_refused_is_a_failure_of_ours(there: Script, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, SANDBOX), problem(400, "invalid_request"))
    assert dispatch(["install", ID, "./here"]) == 125
    assert "do this" in capfd.readouterr().err
    assert dispatch(["install", ID]) == 125  # of the command line itself

"""The log: one event a line, for programs or for people, whoever speaks."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path

from sandlot.server import log_config

SPEAK = """
import logging, sys, structlog
from sandlot.server.log_config import configure
configure(sys.argv[1], sys.argv[2])
log = structlog.get_logger("x")
log.debug("quiet")
log.info("event", path="a\\nb", number=1)
logging.getLogger("uvicorn.error").info("chatter")
logging.getLogger("uvicorn.error").warning("warned %s", "of it")
try:
    key = "confidential-" + str(len(sys.argv))
    raise KeyError("k")
except KeyError:
    log.exception("failed")
"""


def test_lines_of_json_for_programs() -> None:
    lines = [json.loads(line) for line in spoken("info", "auto")]
    assert [line["event"] for line in lines] == ["event", "warned of it", "failed"]
    assert (lines[0]["path"], lines[0]["number"], lines[0]["level"]) == ("a\nb", 1, "info")
    assert lines[1]["logger"] == "uvicorn.error"
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert "KeyError" in json.dumps(lines[2]["exception"])


def test_text_for_people() -> None:
    lines = spoken("warning", "text")
    assert "warned of it" in lines[0]
    assert "failed" in lines[1]
    assert "Traceback" in lines[2]


TURN = """
import os, sys
from pathlib import Path
from sandlot.server.log_config import rotate_log
path = Path(sys.argv[1])
for number in range(3):
    print("line", number, "x" * 600, file=sys.stderr, flush=True)
    print(rotate_log(path, 1000), flush=True)
"""


def test_a_file_that_is_long_is_turned_over(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    with path.open("ab") as log:
        done = subprocess.run([sys.executable, "-c", TURN, str(path)], stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]
    assert "line 2" in path.read_text()
    assert "line 1" in (tmp_path / "service.log.1").read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_not_standard_error_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    path.write_text("x" * 10_000)
    done = subprocess.run([sys.executable, "-c", TURN, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
    assert [each.name for each in tmp_path.iterdir()] == ["service.log"]


def spoken(level: str, form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SPEAK, level, form], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "confidential-3" not in done.stderr, "values of variables are nobody's business"
    return done.stderr.splitlines()


SERVED = """
import logging
from sandlot.server.log_config import configure
from sandlot.web.errors import ResponseInterruptedError
configure("info", "json")
log = logging.getLogger("uvicorn.error")
for error in (ResponseInterruptedError(), ValueError("a defect")):
    try:
        raise error
    except Exception:
        log.exception("Exception in ASGI application")
for _ in range(1000):
    log.warning("Invalid HTTP request received.")
try:
    raise ValueError("another defect")
except Exception:
    log.exception("Exception in ASGI application")
"""


def test_clients_cannot_fill_the_log_and_defects_are_logged_whole() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, check=True)
    defect, *warnings, other = (json.loads(line) for line in done.stderr.splitlines())
    assert "a defect" in json.dumps(defect["exception"])
    assert len(warnings) == log_config.MAX_WARNINGS
    assert "another defect" in json.dumps(other["exception"])


def test_warnings_pass_again_after_their_time() -> None:
    now_s = 0.0
    passes = log_config.HttpServerFilter(lambda: now_s)
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid HTTP request received.", None, None)
    assert [passes(record) for _ in range(11)] == [True] * 10 + [False]
    now_s = log_config.WARNINGS_S
    assert passes(record)

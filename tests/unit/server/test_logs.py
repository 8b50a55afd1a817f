"""The log: one event a line, for programs or for people, whoever speaks."""

from __future__ import annotations

import json
import subprocess
import sys

SPEAK = """
import logging, sys, structlog
from sandlot.server.logs import configure
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


def test_the_level_decides() -> None:
    assert json.loads(spoken("debug", "json")[0])["event"] == "quiet"
    assert [json.loads(line)["event"] for line in spoken("error", "json")] == ["failed"]


def spoken(level: str, form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SPEAK, level, form], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "confidential-3" not in done.stderr, "values of variables are nobody's business"
    return done.stderr.splitlines()

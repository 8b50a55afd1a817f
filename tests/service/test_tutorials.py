"""The programs of the tutorials run as they stand and print what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.meta.tree import ROOT
from tests.support.chatting import Call, Message, Say, model
from tests.support.environ import clean_environ
from tests.support.localservice import LocalService


def blocks(page: str, language: str) -> str:
    """Return all code blocks of a tutorial in one language, joined."""
    text = (ROOT / "docs" / "tutorial" / f"{page}.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def run(program: str, service: LocalService, env: Mapping[str, str] | None = None) -> str:
    known = {**clean_environ(), "SANDLOT_DATA_DIR": str(service.data_dir), **(env or {})}
    done = subprocess.run([sys.executable, "-c", program], env=known, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_first_sandbox_prints_what_the_page_says(service: LocalService) -> None:
    assert run(blocks("first-sandbox", "python"), service) == blocks("first-sandbox", "text").replace("\n\n", "\n")


@pytest.mark.slow
def test_agent_loop_lets_the_model_correct_its_error(service: LocalService) -> None:
    """The model is an endpoint of the test; everything else is real."""

    def think(messages: Sequence[Message]) -> Say | Call:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        match len(results):
            case 0:
                return Call("run_python", {"code": "limit = 10 ** 6\nprint(primes(limit))"})
            case 1 if "NameError" in results[0]:
                sieve = "s = bytearray([1]) * limit\nfor i in range(2, 1000):\n    s[i * i :: i] = bytes(len(s[i * i :: i]))\nprint(sum(s) - 2)"
                return Call("run_python", {"code": sieve})
            case _:
                return Say(f"There are {results[-1].strip()}.")

    with model(think) as thinking:
        env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": thinking.url, "PATH": os.environ["PATH"]}
        assert run(blocks("agent-loop", "python"), service, env) == "There are 78498.\n"
    assert service.client.sandboxes.list() == []

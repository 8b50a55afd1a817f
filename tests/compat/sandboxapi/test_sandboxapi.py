"""SandboxAPI's surface against a real service: the program of its guide for agents, and what that does not show.

The vendor publishes no client, so it is Sandlot's own module with the surface of the guide, over TCP with a key; sandboxes are real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandlot import InvalidRequestError, NotFoundError, Sandbox
from sandlot.sdk.compat.sandboxapi import KEY_VARIABLE, URL_VARIABLE, SandboxAPI, Session
from tests.compat.sandboxapi.program import AGENT
from tests.support.cases import cases
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.support.tcpservice import TcpService

ABSENT = "prettytable"
"""A package that no image has."""


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(scope="module")
def base_url(service: TcpService) -> str:
    return f"{service.url}/sandboxapi"


@pytest.fixture(scope="module")
def sb(key: str, base_url: str) -> Iterator[SandboxAPI]:
    with SandboxAPI(api_key=key, base_url=base_url) as made:
        yield made


@pytest.fixture(scope="module")
def session(sb: SandboxAPI) -> Iterator[Session]:
    """One session that tests share."""
    made = sb.sessions.create(language="python3", idle_ttl=600)
    yield made
    sb.sessions.close(made.id)


@pytest.fixture(scope="module", autouse=True)
def forgotten(sb: SandboxAPI) -> Session:
    """One that is made first, and that nobody uses while the tests run."""
    return sb.sessions.create(language="bash", idle_ttl=5)


# ---------------------------------------------------------------------------------------------------------- the guide's own program

SALES = "item,units,price\nlamp,3,19.50\ndesk,1,120.00\nchair,4,45.25\n"
TOTAL = 3 * 19.5 + 120 + 4 * 45.25
LOOK = f"""
import csv
rows = list(csv.DictReader(open("/tmp/sales.csv")))
loaded = id(rows)
import {ABSENT}
"""
REPORT = f"""
import {ABSENT}
table = {ABSENT}.PrettyTable(["item", "revenue"])
for row in rows:
    table.add_row([row["item"], float(row["units"]) * float(row["price"])])
print(table)
print("same object:", loaded == id(rows))
print("total:", sum(float(row["units"]) * float(row["price"]) for row in rows))
"""


def script(conversation: Conversation) -> Step:
    """What the guide says that a model does: run code, read the error, install what is missing, run again, answer."""
    if not conversation.results:
        return Call("execute_python", {"code": LOOK})
    told = conversation.results[-1].text
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)'", told):
        return Call("install_packages", {"packages": [missing[1]]})
    if told.startswith("Installed"):
        return Call("execute_python", {"code": REPORT})
    total = re.search(r"total: ([0-9.]+)", told)
    return Say(f"The total revenue is {total[1] if total else told}.")


def test_program_of_the_guide(service: TcpService, key: str, base_url: str, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    changed = AGENT.replace("from sandboxapi import SandboxAPI\n", "import json\nfrom sandlot.sdk.compat.sandboxapi import SandboxAPI\n")
    assert changed != AGENT
    program.write_text(changed, encoding="utf-8")
    before = {info.id for info in service.client.sandboxes.list()}

    def upload_first(conversation: Conversation) -> Step:
        if not conversation.results:  # the file that the user speaks of is there by then
            (made,) = (info.id for info in service.client.sandboxes.list() if info.id not in before)
            Sandbox.connect(made, client=service.client).files.write("/tmp/sales.csv", SALES)
        return script(conversation)

    with scripted_model(upload_first) as model:
        env = {**os.environ, **model.env, KEY_VARIABLE: key, URL_VARIABLE: base_url}
        done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"The total revenue is {TOTAL}.\n"
    tools = [result.text for result in model.conversations[-1].results]
    assert "ModuleNotFoundError: No module named" in tools[0]
    assert tools[1] == f"Installed {ABSENT}"
    assert "same object: True" in tools[2]
    assert "| chair |  181.0  |" in tools[2]
    assert {info.id for info in service.client.sandboxes.list()} <= before  # the program has closed its session


# ------------------------------------------------------------------------------------------------------------------------ programs


def test_program_is_run_once_and_graded(sb: SandboxAPI) -> None:
    done = sb.execute(language="python3", code="import sys\nprint(sys.stdin.read().upper())", stdin="abc")
    assert (done.status, done.stdout, done.stderr, done.exit_code, done.language) == ("completed", "ABC\n", "", 0, "python3")
    assert done.id
    assert done.wall_time_ms > 0
    right = sb.execute_with_expected(language="bash", code="echo $((6 * 7))", expected_output="42")
    wrong = sb.execute_with_expected(language="bash", code="echo $((6 * 7))", expected_output="43")
    assert (right.status, wrong.status, wrong.stdout) == ("completed", "wrong_answer", "42\n")
    failed = sb.execute(language="js", code="console.log(1); null.x")
    assert (failed.status, failed.exit_code, failed.stdout, failed.language) == ("runtime_error", 1, "1\n", "javascript")
    assert "TypeError" in failed.stderr


def test_program_limits_for_time_output_and_memory(sb: SandboxAPI) -> None:
    late = sb.execute(language="python3", code="print('early', flush=True)\nwhile True: pass", timeout=1)
    assert (late.status, late.stdout, late.exit_signal) == ("timeout", "early\n", "SIGKILL")
    assert late.stderr.endswith("killed after 1 s.\n")
    assert sb.execute(language="bash", code="sleep 11; echo late", timeout=30).stdout == "late\n"  # longer than one has that asks for nothing
    flood = sb.execute(language="bash", code="yes")
    assert (flood.status, len(flood.stdout)) == ("runtime_error", 1 << 20)
    assert "killed" in flood.stderr
    hungry = sb.execute(language="python3", code="x = []\nwhile True: x.append(b'x' * (1 << 24))", timeout=60)
    assert hungry.status == "runtime_error"
    assert "memory limit" in hungry.stderr


REACH = """
import socket
for where in (("127.0.0.1", 4479), ("1.1.1.1", 53)):
    try:
        reached = socket.create_connection(where, 2)
        reached.sendall(b"GET /pypi/simple/six/ HTTP/1.0\\r\\n\\r\\n")
        print(reached.recv(100).split()[1].decode())
    except OSError:
        print("none")
"""


def test_program_has_no_network(sb: SandboxAPI) -> None:
    inside, outside = sb.execute(language="python3", code=REACH).stdout.split()
    assert inside in {"none", "403"}  # what listens inside lets nothing through
    assert outside == "none"


def test_batch_of_programs(sb: SandboxAPI) -> None:
    asked = [{"language": "bash", "code": f"echo {n}; exit {n % 2}"} for n in range(6)]
    done = sb.execute_batch([*asked, {"language": "cobol", "code": ""}], concurrency=3)
    assert [each.stdout for each in done.results[:6]] == [f"{n}\n" for n in range(6)]
    assert done.results[6].status == "error"
    assert "python3" in done.results[6].stderr
    assert (done.total, done.completed, done.failed) == (7, 3, 4)


def test_listed_languages_match_the_template(sb: SandboxAPI) -> None:
    versions = {
        "python3": "import platform; print(platform.python_version())",
        "javascript": "console.log(process.versions.node)",
        "bash": "echo $BASH_VERSION",
    }
    languages = sb.languages()
    assert {"python3", "javascript", "typescript", "bash", "java", "cpp", "c", "go"} <= {each["id"] for each in languages}
    for each in languages:
        assert set(each) == {"id", "name", "version", "aliases", "file_extension", "example"}
    here = [each for each in languages if each["id"] in versions]
    told = [done.stdout for done in sb.execute_batch([{"language": each["id"], "code": versions[each["id"]]} for each in here]).results]
    assert all(each["version"] and printed.startswith(each["version"]) for printed, each in zip(told, here, strict=True)), (told, here)
    examples = [{"language": word, "code": each["example"]} for each in here for word in each["aliases"][:1]]
    assert {done.stdout for done in sb.execute_batch(examples).results} == {"Hello, World!\n"}


# ------------------------------------------------------------------------------------------------------------------------ sessions


@pytest.mark.smoke
def test_state_persists_after_an_exception(sb: SandboxAPI, session: Session) -> None:
    assert sb.sessions.execute(session.id, code="import math\nx = 20\nopen('note', 'w').write('kept')").stderr == ""
    failed = sb.sessions.execute(session.id, code="x += 1\nraise ValueError('no')")
    assert (failed.status, failed.exit_code) == ("runtime_error", 1)
    assert "ValueError: no" in failed.stderr
    done = sb.sessions.execute(session.id, code="print(math.floor(x), open('note').read())\nx * 2")
    assert (done.status, done.stdout, done.stderr, done.result) == ("completed", "21 kept\n", "", "42")


def test_installed_package_can_be_imported_at_once(sb: SandboxAPI) -> None:
    session = sb.sessions.create(language="python3")
    before = sb.sessions.execute(session.id, code="kept = object()\nimport humanize")
    assert "ModuleNotFoundError: No module named 'humanize'" in before.stderr
    done = sb.sessions.install(session.id, manager="pip", packages=["humanize"])
    assert (done.status, done.exit_code, done.manager, done.packages) == ("completed", 0, "pip", ("humanize",)), done
    after = sb.sessions.execute(session.id, code="import humanize\nprint(humanize.intcomma(1234567), kept is not None)")
    assert after.stdout == "1,234,567 True\n", after
    failed = sb.sessions.install(session.id, manager="pip", packages=["no-such-package-of-anybody-1b2c"])
    assert failed.status == "failed"
    assert failed.exit_code != 0
    assert "no-such-package-of-anybody-1b2c" in failed.stdout + failed.stderr
    with pytest.raises(InvalidRequestError):
        sb.sessions.install(session.id, manager="pip", packages=["--pre"])
    sb.sessions.close(session.id)


@cases(
    "language, first, second",
    [
        ("bash", "cd /tmp; x=41", "echo $PWD $((x + 1))"),
        ("javascript", "let x = 41", "console.log('/tmp', x + 1)"),
        ("typescript", "let x: number = 41", "console.log('/tmp', x + 1)"),
    ],
)
def test_other_languages_keep_their_state(sb: SandboxAPI, language: str, first: str, second: str) -> None:
    session = sb.sessions.create(language=language)
    assert sb.sessions.execute(session.id, code=first).status == "completed"
    done = sb.sessions.execute(session.id, code=second)
    assert (done.status, done.stdout, done.language) == ("completed", "/tmp 42\n", language)
    sb.sessions.close(session.id)


def test_timeout_interrupts_code_and_keeps_the_session(sb: SandboxAPI, session: Session) -> None:
    late = sb.sessions.execute(session.id, code="here = 1\nimport time\ntime.sleep(60)", timeout=1)
    assert (late.status, late.exit_code) == ("timeout", 124)
    assert "after 1 s" in late.stderr
    assert sb.sessions.execute(session.id, code="print(here)").stdout == "1\n"


@pytest.mark.smoke
def test_sessions_are_listed_inspected_and_closed(sb: SandboxAPI, session: Session) -> None:
    made = sb.sessions.create(language="bash", idle_ttl=60)
    assert (made.status, made.language, made.idle_ttl) == ("active", "bash", 60)
    assert [each.id for each in sb.sessions.list()][-1] == made.id
    assert sb.sessions.get(made.id).created_at == made.created_at
    sb.sessions.close(made.id)
    for call in (sb.sessions.get, sb.sessions.close, lambda id_: sb.sessions.execute(id_, code="1")):
        with pytest.raises(NotFoundError) as refused:
            call(made.id)
        assert refused.value.fields["error"] == "session not found"
    assert sb.sessions.get(session.id).id == session.id


def test_unused_session_is_closed(sb: SandboxAPI, forgotten: Session) -> None:
    assert forgotten.idle_ttl == 5
    while True:  # looking at it is no use of it
        try:
            assert sb.sessions.get(forgotten.id).status == "active"
        except NotFoundError:
            break
        time.sleep(0.5)
    with pytest.raises(NotFoundError):
        sb.sessions.execute(forgotten.id, code="echo")


def test_install_uses_the_given_manager_and_timeout(sb: SandboxAPI) -> None:
    session = sb.sessions.create(language="javascript")
    done = sb.sessions.install(session.id, manager="npm", packages=["left-pad"])
    assert (done.status, done.exit_code, done.manager, done.packages) == ("completed", 0, "npm", ("left-pad",)), done
    used = sb.sessions.execute(session.id, code="console.log(require('left-pad')('7', 3, '0'))")
    assert used.stdout == "007\n", used
    late = sb.sessions.install(session.id, packages=["six"], timeout=0.001)
    assert (late.status, late.exit_code, late.manager) == ("failed", 124, "pip"), late
    assert "after 0.001 s" in late.stderr
    sb.sessions.close(session.id)


def test_session_refuses_input_and_other_languages(sb: SandboxAPI, session: Session, key: str, base_url: str) -> None:
    def told(**body: str) -> httpx.Response:
        url = f"{base_url}/v1/sessions/{session.id}/execute"
        return httpx.post(url, json={"code": "print(1)", **body}, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    assert (told(stdin="x").status_code, told(language="bash").status_code) == (400, 400)
    assert "standard input" in told(stdin="x").json()["error"]
    assert told(language="bash").json()["error"].startswith("This session speaks python3.")
    assert told(stdin="", language="py").json()["stdout"] == "1\n"
    assert sb.sessions.get(session.id).language == "python3"


def test_alternative_paths_and_headers_work(key: str, base_url: str) -> None:
    with httpx.Client(base_url=base_url, headers={"X-RapidAPI-Key": key, "X-RapidAPI-Host": "there"}, timeout=120) as http:
        made = http.post("/v1/sessions", json={"language": "python"})
        assert made.status_code == 201
        path = f"/v1/sessions/{made.json()['session_id']}"
        installed = http.post(f"{path}/packages", json={"manager": "pip", "packages": ["six"]}).json()
        assert (installed["status"], installed["exit_code"]) == ("completed", 0), installed
        assert http.post(f"{path}/close").status_code == 204
        assert http.post(f"{path}/execute", json={"code": "1"}).json()["error"] == "session not found"
    answer = httpx.post(f"{base_url}/v1/execute", json={"language": "bash", "code": "echo 1"}, headers={"X-RapidAPI-Proxy-Secret": key}, timeout=60)
    assert (answer.status_code, answer.json()["stdout"]) == (200, "1\n")
    assert httpx.post(f"{base_url}/v1/execute", json={"language": "bash", "code": "echo 1"}).status_code == 401

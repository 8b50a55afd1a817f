"""AgentSandbox's own client against a real service: every program of its documentation, and what these do not show.

The client is the vendor's package from PyPI, unmodified, sync and async, over TCP with a key; sandboxes are real, on gVisor.
"""

from __future__ import annotations

import asyncio
import io
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import agentsandbox
import pytest
from agentsandbox import AgentSandbox, AsyncAgentSandbox, Language

from tests.compat import programs
from tests.support.tcpservice import TcpService, tcp_service

SESSION_ID = re.compile(r"sb-[a-z0-9]{4}-[a-z0-9]{16}")


@pytest.fixture(scope="module")
def service() -> Iterator[TcpService]:
    with tcp_service() as running:
        yield running


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(scope="module")
def base_url(service: TcpService) -> str:
    return f"{service.url}/agentsandbox"


@pytest.fixture
def told(key: str, base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user tells the client by its environment."""
    monkeypatch.setenv("AGENTSANDBOX_BASE_URL", base_url)
    monkeypatch.setenv("AGENTSANDBOX_API_KEY", key)


@pytest.fixture(scope="module")
def client(key: str, base_url: str) -> Iterator[AgentSandbox]:
    with AgentSandbox(api_key=key, base_url=base_url) as made:
        yield made


@pytest.fixture(scope="module")
def session(client: AgentSandbox) -> Iterator[str]:
    """One session that tests share."""
    with client.sessions.context() as made:
        yield made.session_id


def program(text: str, key: str, names: dict[str, Any]) -> list[str]:
    """Run a program of the documentation; the lines that it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(text.replace("your-api-key", key), "<program>", "exec"), names)  # noqa: S102 - that is the test
    return printed.getvalue().splitlines()


@pytest.fixture
def names(client: AgentSandbox) -> dict[str, Any]:
    """The names of a page whose first programs have run."""
    return {"client": client}


# ------------------------------------------------------------------------------------------------- the documentation's programs


@pytest.mark.usefixtures("told")
def test_quick_start(key: str) -> None:
    names: dict[str, Any] = {}
    assert program(programs.QUICK_START, key, names) == ["Hello, World!", "", "0"]
    names["client"].close()


@pytest.mark.usefixtures("told")
def test_basic_execution(key: str) -> None:
    names: dict[str, Any] = {}
    lines = program(programs.BASIC_EXECUTION, key, names)
    assert lines[:3] == ["2", "", "Hello"]
    # A listing of a new /workspace: its size, itself and the folder above it, and nothing else.
    assert [line.split()[-1] for line in lines[4:-1]] == [".", ".."]
    names["client"].close()


def test_environment_variables(names: dict[str, Any], key: str) -> None:
    program(programs.ENVIRONMENT_VARIABLES, key, names)
    assert (names["result"].stdout, names["result"].stderr) == ("secret123\ntrue\n", "")


def test_file_injection(names: dict[str, Any], key: str) -> None:
    program(programs.FILE_INJECTION, key, names)
    assert names["result"].stdout.split() == ["name", "value", "0", "foo", "1", "1", "bar", "2"]
    assert names["result"].files == []
    with pytest.raises(agentsandbox.NotFoundError):
        names["client"].files.download(names["uploaded"].file_id)


def test_sessions_keep_the_workspace_and_no_variables(names: dict[str, Any], key: str) -> None:
    assert program(programs.SESSIONS, key, names) == ["42", ""]
    with pytest.raises(agentsandbox.NotFoundError):
        names["client"].sessions.get(names["sid"])


def test_sessions_with_preloaded_files(names: dict[str, Any], key: str) -> None:
    (listed, empty) = program(programs.PRELOADED_SESSIONS, key, names)
    assert (sorted(eval(listed)), empty) == (["config.txt", "users.csv"], "")  # noqa: S307 - what the program printed


def test_files_are_injected_into_a_session(names: dict[str, Any], key: str) -> None:
    assert program(programs.INJECTED_SESSION, key, names) == []
    assert names["result"].stdout == "data content\n"


def test_file_operations(names: dict[str, Any], key: str, tmp_path: Path) -> None:
    source, target = tmp_path / "data.csv", tmp_path / "save.csv"
    source.write_bytes(b"a,b\n1,2\n")
    names["file_id"] = names["client"].files.upload(b"\x00\xff" * 500, filename="größe 1.bin").file_id
    before = names["client"].files.list().total
    text = programs.FILE_OPERATIONS.replace("/path/to/data.csv", str(source)).replace("/path/to/save.csv", str(target))
    lines = program(text, key, names)
    assert re.fullmatch(r"Uploaded: file-\w+", lines[0])
    assert lines[1] == f"Total: {before + 2}"
    assert lines[2:5] == ["  - data.csv (16 bytes)", "  - data.csv (8 bytes)", "  - größe 1.bin (1000 bytes)"]
    assert names["content"] == target.read_bytes() == b"\x00\xff" * 500
    assert (names["uploaded"].mime_type, names["uploaded"].size_bytes) == ("text/csv", 16)
    with pytest.raises(agentsandbox.NotFoundError):
        names["client"].files.download(names["file_id"])


@pytest.mark.usefixtures("told")
def test_the_async_client(key: str, client: AgentSandbox) -> None:
    names: dict[str, Any] = {}
    left = [file.filename for file in client.files.list_all()]
    assert program(programs.ASYNC_CLIENT, key, names) == ["Hello async!", "", *left]


@pytest.mark.usefixtures("told")
def test_error_handling(key: str) -> None:
    for shown, lines in ((key, []), ("wrong", ["Invalid API key"])):
        names: dict[str, Any] = {}
        assert program(programs.ERROR_HANDLING, shown, names) == lines
        names["client"].close()


def test_execution_results(names: dict[str, Any], key: str) -> None:
    session, *rest = program(programs.EXECUTION_RESULTS, key, names)
    assert SESSION_ID.fullmatch(session)
    assert rest == ["hello", "", "", "0", "0", "True", "[]"]


def test_configuration(key: str, base_url: str) -> None:
    names: dict[str, Any] = {}
    assert program(programs.CONFIGURATION.replace("https://custom.api.com", f"{base_url}/"), key, names) == []
    assert names["client"].sessions.list().sessions == []
    names["client"].close()


# ---------------------------------------------------------------------------------------------------------- beyond the documentation


def test_sessions_are_listed_looked_at_and_deleted(client: AgentSandbox) -> None:
    before = client.sessions.list().sessions
    made = client.sessions.create(env_vars={"A": "1"})
    assert (made.created, client.sessions.get(made.session_id).created) == (True, False)
    assert client.sessions.list().sessions == [*before, made.session_id]
    client.sessions.delete(made.session_id)
    assert client.sessions.list().sessions == before
    with pytest.raises(agentsandbox.NotFoundError, match=made.session_id):
        client.sessions.delete(made.session_id)
    with pytest.raises(agentsandbox.NotFoundError):
        client.run("1", session_id=made.session_id)


def test_a_run_is_a_fresh_process_in_the_workspace(client: AgentSandbox, session: str) -> None:
    looks = "import os, sys; print(os.getcwd(), sys.argv == [__file__], repr(sys.stdin.read()), os.listdir('.'), __name__, 'x' in globals()); x = 1"
    for _ in range(2):
        assert client.run(looks, session_id=session).stdout.split(maxsplit=1)[1] == "True '' [] __main__ False\n"
    failed = client.run("def f():\n    return 1 / 0\n\nf()\n", session_id=session)
    assert failed.exit_code == 1
    assert not failed.success
    assert "line 2, in f" in failed.stderr
    assert "return 1 / 0" in failed.stderr
    assert client.run("import sys; sys.exit(7)", session_id=session).return_code == 7
    assert client.run("kill -TERM $$", language="bash", session_id=session).return_code == 143
    bash = client.run('read line; echo "[$line]" $# "$PWD"; echo no >&2; no-such-command', language=Language.BASH, session_id=session)
    assert (bash.stdout, bash.return_code) == ("[] 0 /workspace\n", 127)
    assert bash.stderr.startswith("no\n")
    assert client.run("ls -A", language="bash", session_id=session).stdout == ""
    # Programs are removed beside the answer: after a while there is but the one that looks.
    until(lambda: client.run("ls /run/code | wc -l", language="bash", session_id=session).stdout == "1\n")


def test_the_runs_environment_goes_before_the_sessions_and_does_not_stay(client: AgentSandbox) -> None:
    show = "import os; print(os.environ.get('A'), os.environ.get('B'))"
    with client.sessions.context(env_vars={"A": "session", "B": "session"}) as made:
        assert client.run(show, session_id=made.session_id, env_vars={"A": "run"}).stdout == "run session\n"
        assert client.run(show, session_id=made.session_id).stdout == "session session\n"
        assert client.run("echo $A", language="bash", session_id=made.session_id).stdout == "session\n"


def test_files_that_a_run_made_can_be_downloaded(client: AgentSandbox, session: str) -> None:
    upload = client.files.upload(b"given", filename="given.txt")
    made = client.run(
        "import os, pathlib\n"
        "os.makedirs('deep/er')\n"
        "for path in ('/output/chart.png', 'table.csv', 'deep/er/x.bin', '.hidden', '/tmp/elsewhere'):\n"
        "    pathlib.Path(path).write_text(path)\n"
        "pathlib.Path('helper.py').write_text('value = 42')\n"
        "import helper\n"
        "os.symlink('/etc/passwd', 'link')\n"
        "print(helper.value, os.path.exists('__pycache__'))\n",
        session_id=session,
        file_ids=[upload.file_id],
    )
    assert (made.stdout, made.stderr) == ("42 True\n", "")
    assert [file.filename for file in made.files] == ["chart.png", "helper.py", "table.csv", "x.bin"]
    assert [client.files.download(file.file_id) for file in made.files][::2] == [b"/output/chart.png", b"table.csv"]
    assert client.run("import helper; print(helper.value)", session_id=session).files == []
    again = client.run("open('table.csv', 'a').write('more'); open('given.txt', 'w').write('other')", session_id=session)
    assert [(file.filename, client.files.download(file.file_id)) for file in again.files] == [
        ("given.txt", b"other"),
        ("table.csv", b"table.csvmore"),
    ]
    client.run("rm -rf /workspace/* /workspace/.hidden /output/*", language="bash", session_id=session)
    for file in [*made.files, *again.files]:
        client.files.delete(file.file_id)
    client.files.delete(upload.file_id)


def test_a_run_without_a_session_gives_its_files_and_leaves_no_session(client: AgentSandbox, service: TcpService) -> None:
    before = client.sessions.list().sessions
    made = client.run("open('/workspace/a.txt', 'w').write('a'); open('/output/b.txt', 'w').write('b')")
    assert [(file.filename, client.files.download(file.file_id)) for file in made.files] == [("b.txt", b"b"), ("a.txt", b"a")]
    assert SESSION_ID.fullmatch(made.session_id or "")
    assert client.sessions.list().sessions == before
    with pytest.raises(agentsandbox.NotFoundError):
        client.run("1", session_id=made.session_id)
    until(lambda: made.session_id not in {box.id for box in service.client.sandboxes()})
    for file in made.files:
        client.files.delete(file.file_id)


def test_code_and_output_of_large_size(client: AgentSandbox, session: str) -> None:
    code = "data = '" + "x" * 3_000_000 + "'\nprint(len(data))\n"
    assert client.run(code, session_id=session).stdout == "3000000\n"
    whole = client.run("print('0123456789' * 200_000)", session_id=session).stdout
    assert whole == "0123456789" * 200_000 + "\n"
    cut = client.run("print('start'); print('0123456789' * 500_000); print('end')", session_id=session).stdout
    assert len(cut) < 2_200_000
    assert cut.startswith("start\n")
    assert cut.endswith("789\nend\n")
    assert re.search(r"\n\[\.\.\. \d+ bytes omitted \.\.\.\]\n", cut)


def test_all_files_are_listed_page_by_page(client: AgentSandbox, session: str) -> None:
    before = {file.file_id for file in client.files.list_all()}
    made = [client.files.upload(str(number).encode(), filename=f"{number}.txt").file_id for number in range(120)]
    for limit in (50, 7, 100):
        listed = [file.file_id for file in client.files.list_all(limit=limit)]
        assert [id_ for id_ in listed if id_ not in before] == made[::-1]
    page = client.files.list(limit=20, offset=100)
    assert (len(page.files), page.total, page.limit, page.offset) == (20, 120 + len(before), 20, 100)
    assert client.files.list(offset=10_000).files == []
    client.sessions.inject_files(session, made[:100])
    assert client.run("ls | wc -l; rm *", language="bash", session_id=session).stdout == "100\n"
    for id_ in made:
        client.files.delete(id_)
    assert {file.file_id for file in client.files.list_all()} == before


def test_the_log_of_a_run(client: AgentSandbox, session: str) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); open('/output/made', 'w').close(); sys.exit(3)"
    log = client.executions.get(run_of(client, code, session))
    assert (log.endpoint, log.method, log.status_code, log.session_id) == ("/v1/execute", "POST", 200, session)
    assert (log.language, log.code, log.stdout, log.stderr, log.return_code) == (Language.PYTHON, code, "out\n", "err\n", 3)
    assert log.files_count == 1
    assert log.duration_ms is not None
    assert log.duration_ms > 0
    assert not log.success
    for wrong in ("0" * 32, "no-id", "x" * 300):
        with pytest.raises(agentsandbox.NotFoundError):
            client.executions.get(wrong)


async def test_many_at_once(key: str, base_url: str) -> None:
    async with AsyncAgentSandbox(api_key=key, base_url=base_url) as client, client.sessions.context() as made:
        runs = [client.run(f"print({number} ** 2)", session_id=made.session_id) for number in range(8)]
        results = await asyncio.gather(*runs, client.run("print('own')"), client.run("echo own", language="bash"))
        assert [result.stdout for result in results] == [f"{number**2}\n" for number in range(8)] + ["own\n"] * 2
        assert (await client.run("ls -A", language="bash", session_id=made.session_id)).stdout == ""


def test_what_is_another_keys_is_not_there(client: AgentSandbox, session: str, service: TcpService, base_url: str) -> None:
    file = client.files.upload(b"mine", filename="mine.txt")
    execution = run_of(client, "1", session)
    with AgentSandbox(api_key=service.key("other"), base_url=base_url) as other:
        assert other.sessions.list().sessions == []
        assert other.files.list().total == 0
        own = other.sessions.create()
        attempts: list[Callable[[], object]] = [
            lambda: other.sessions.get(session),
            lambda: other.sessions.delete(session),
            lambda: other.run("1", session_id=session),
            lambda: other.sessions.inject_files(session, []),
            lambda: other.sessions.inject_files(own.session_id, [file.file_id]),
            lambda: other.sessions.create(file_ids=[file.file_id]),
            lambda: other.run("1", file_ids=[file.file_id]),
            lambda: other.files.download(file.file_id),
            lambda: other.files.delete(file.file_id),
            lambda: other._http.post(  # noqa: SLF001 - the vendor's plugin sends this, its client has no word for it
                f"files?session_id={session}", files={"file": ("a", b"a")}
            ),
            lambda: other.executions.get(execution),
        ]
        for attempt in attempts:
            with pytest.raises(agentsandbox.NotFoundError):
                attempt()
        assert other.sessions.list().sessions == [own.session_id]
        assert other.files.list().total == 0
        other.sessions.delete(own.session_id)
    assert client.files.download(file.file_id) == b"mine"
    client.files.delete(file.file_id)


def test_the_clients_errors_say_what_to_do(client: AgentSandbox, session: str, base_url: str) -> None:
    with AgentSandbox(api_key="wrong", base_url=base_url) as stranger, pytest.raises(agentsandbox.AuthenticationError) as unknown:
        stranger.sessions.list()
    assert unknown.value.message.startswith("This API key is not known.")
    with pytest.raises(agentsandbox.ValidationError, match="'A=B' is not a name for an environment variable"):
        client.run("1", env_vars={"A=B": "1"}, session_id=session)
    with pytest.raises(agentsandbox.ValidationError, match="code"):
        client.run("#" * 5_000_000, session_id=session)
    with pytest.raises(agentsandbox.ValidationError, match="limit"):
        client.files.list(limit=1000)
    with pytest.raises(agentsandbox.NotFoundError, match="file-none"):
        client.run("1", file_ids=["file-none"])
    with pytest.raises(agentsandbox.AgentSandboxError, match="more than 8388608 bytes") as large:
        client.run("#" * 9_000_000)
    assert large.value.status_code == 413


def test_sessions_outlive_a_service_that_is_killed(client: AgentSandbox, service: TcpService) -> None:
    with client.sessions.context(env_vars={"A": "1"}) as made:
        client.run("echo kept > state; (setsid sleep 1000 >/dev/null 2>&1 &)", language="bash", session_id=made.session_id)
        service.end(signal.SIGKILL)
        service.start()
        assert made.session_id in client.sessions.list().sessions
        after = client.run("cat state; echo $A; pgrep -c sleep", language="bash", session_id=made.session_id)
        assert after.stdout == "kept\n1\n1\n"


def run_of(client: AgentSandbox, code: str, session: str) -> str:
    """Run code; the id of the run in the log, which the client's own result drops."""
    answer = client._http.post("execute", json={"code": code, "session_id": session})  # noqa: SLF001 - see above
    return str(answer["execution_id"])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)

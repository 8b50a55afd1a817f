"""AgentSandbox's own client against a real service: every program of its documentation, and what these do not show.

The client is the vendor's package from PyPI, unmodified, sync and async, over TCP with a key; sandboxes are real.
"""

from __future__ import annotations

import ast
import asyncio
import io
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import agentsandbox
import pytest
from agentsandbox import AgentSandbox, AsyncAgentSandbox, Language

from tests.compat.agentsandbox import programs
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.tcpservice import TcpService, tcp_service

SESSION_ID = re.compile(r"sb-[a-z0-9]{4}-[a-z0-9]{16}")


@pytest.fixture(scope="module", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest) -> Iterator[TcpService]:
    with tcp_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(scope="module")
def base_url(service: TcpService) -> str:
    return f"{service.url}/agentsandbox"


@pytest.fixture(scope="module")
def client(key: str, base_url: str) -> Iterator[AgentSandbox]:
    with AgentSandbox(api_key=key, base_url=base_url) as made:
        yield made


@pytest.fixture(scope="module")
def session(client: AgentSandbox) -> Iterator[str]:
    """One session that tests share."""
    with client.sessions.context() as made:
        yield made.session_id


class Page:
    """One who reads the documentation, and runs its programs one after the other.

    Args:
        key: What stands in the place of ``your-api-key``.
        asynchronous: Whether it is the asynchronous client that is used, as the page says that everything works with it as well.
    """

    def __init__(self, key: str, *, asynchronous: bool) -> None:
        self.key = key
        self.names: dict[str, Any] = {}
        self._asynchronous = asynchronous
        self._runner = asyncio.Runner()

    def run(self, text: str) -> list[str]:
        """Run a program; the lines that it printed."""
        text = text.replace("your-api-key", self.key)
        code = compile(asynchronous(text) if self._asynchronous else text, "<program>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with redirect_stdout(printed):
            self._wait(eval(code, self.names))  # noqa: S307 - that is the test
        return printed.getvalue().splitlines()

    def close(self) -> None:
        """Close the client that was used last; programs of the page never do."""
        if "client" in self.names:
            self._wait(self.names["client"].close())

    def end(self) -> None:
        self.close()
        self._runner.close()

    def _wait(self, result: Any) -> None:  # noqa: ANN401 - whatever a program gives
        if asyncio.iscoroutine(result):
            self._runner.run(result)


def asynchronous(text: str) -> str:
    """A program for the asynchronous client: the same calls, awaited."""
    text = re.sub(r"\bAgentSandbox\b", "AsyncAgentSandbox", text)
    text = re.sub(r"^(with|for file in) (?=client\.)", r"async \1 ", text, flags=re.MULTILINE)
    return re.sub(r"\bclient\.(?=run|execute|files\.(?!list_all)|sessions\.(?!context))", "await client.", text)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def page(key: str, base_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Page]:
    monkeypatch.setenv("AGENTSANDBOX_BASE_URL", base_url)
    made = Page(key, asynchronous=request.param)
    made.run(programs.CLIENT)
    yield made
    made.end()


# ------------------------------------------------------------------------------------------------- the documentation's programs


def test_quick_start(page: Page) -> None:
    page.close()
    assert page.run(programs.QUICK_START) == ["Hello, World!", "", "0"]


def test_basic_execution(page: Page) -> None:
    page.close()
    lines = page.run(programs.BASIC_EXECUTION)
    assert lines[:3] == ["2", "", "Hello"]
    # A listing of a new /workspace: its size, itself and the folder above it, and nothing else.
    assert [line.split()[-1] for line in lines[4:-1]] == [".", ".."]


def test_environment_variables(page: Page) -> None:
    page.run(programs.ENVIRONMENT_VARIABLES)
    assert (page.names["result"].stdout, page.names["result"].stderr) == ("secret123\ntrue\n", "")


def test_file_injection(page: Page, client: AgentSandbox) -> None:
    page.run(programs.FILE_INJECTION)
    assert page.names["result"].stdout.split() == ["name", "value", "0", "foo", "1", "1", "bar", "2"]
    assert page.names["result"].files == []
    with pytest.raises(agentsandbox.NotFoundError):
        client.files.download(page.names["uploaded"].file_id)


def test_session_keeps_its_workspace_but_no_variables(page: Page, client: AgentSandbox) -> None:
    assert page.run(programs.SESSIONS) == ["42", ""]
    with pytest.raises(agentsandbox.NotFoundError):
        client.sessions.get(page.names["sid"])


def test_sessions_with_preloaded_files(page: Page) -> None:
    listed, empty = page.run(programs.PRELOADED_SESSIONS)
    assert (sorted(ast.literal_eval(listed)), empty) == (["config.txt", "users.csv"], "")


def test_files_are_injected_into_an_existing_session(page: Page) -> None:
    assert page.run(programs.INJECTED_SESSION) == []
    assert page.names["result"].stdout == "data content\n"


@pytest.mark.smoke
def test_file_operations(page: Page, client: AgentSandbox, tmp_path: Path) -> None:
    source, target = tmp_path / "data.csv", tmp_path / "save.csv"
    source.write_bytes(b"a,b\n1,2\n")
    page.names["file_id"] = client.files.upload(b"\x00\xff" * 500, filename="größe 1.bin").file_id
    before = client.files.list().total
    lines = page.run(programs.FILE_OPERATIONS.replace("/path/to/data.csv", str(source)).replace("/path/to/save.csv", str(target)))
    assert re.fullmatch(r"Uploaded: file-\w+", lines[0])
    assert lines[1] == f"Total: {before + 2}"
    assert lines[2:5] == ["  - data.csv (16 bytes)", "  - data.csv (8 bytes)", "  - größe 1.bin (1000 bytes)"]
    assert page.names["content"] == target.read_bytes() == b"\x00\xff" * 500
    assert (page.names["uploaded"].mime_type, page.names["uploaded"].size_bytes) == ("text/csv", 16)
    with pytest.raises(agentsandbox.NotFoundError):
        client.files.download(page.names["file_id"])


@pytest.mark.parametrize("page", [False], indirect=True, ids=["as it is"])
def test_the_async_client(page: Page, client: AgentSandbox) -> None:
    left = [file.filename for file in client.files.list_all()]
    assert page.run(programs.ASYNC_CLIENT) == ["Hello async!", "", *left]


def test_error_handling(page: Page) -> None:
    for key, lines in ((page.key, []), ("wrong", ["Invalid API key"])):
        page.close()
        page.key = key
        assert page.run(programs.ERROR_HANDLING) == lines


def test_execution_results(page: Page) -> None:
    session, *rest = page.run(programs.EXECUTION_RESULTS)
    assert SESSION_ID.fullmatch(session)
    assert rest == ["hello", "", "", "0", "0", "True", "[]"]


def test_configuration(page: Page, base_url: str, service: TcpService) -> None:
    page.close()
    page.key = service.key(f"configuration-{secrets.token_hex(4)}")  # other tests have sessions
    assert page.run(programs.CONFIGURATION.replace("https://custom.api.com", f"{base_url}/")) == []
    assert page.run("print((client.sessions.list()).sessions)") == ["[]"]


# ---------------------------------------------------------------------------------------------------------- beyond the documentation


def test_sessions_are_listed_inspected_and_deleted(client: AgentSandbox) -> None:
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


@pytest.mark.smoke
def test_run_is_a_fresh_process_in_the_workspace(client: AgentSandbox, session: str) -> None:
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


def test_run_environment_overrides_the_sessions_for_that_run_only(client: AgentSandbox) -> None:
    show = "import os; print(os.environ.get('A'), os.environ.get('B'))"
    with client.sessions.context(env_vars={"A": "session", "B": "session"}) as made:
        assert client.run(show, session_id=made.session_id, env_vars={"A": "run"}).stdout == "run session\n"
        assert client.run(show, session_id=made.session_id).stdout == "session session\n"
        assert client.run("echo $A", language="bash", session_id=made.session_id).stdout == "session\n"


def test_files_made_by_a_run_can_be_downloaded(client: AgentSandbox, session: str) -> None:
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


def test_run_without_a_session_returns_files_and_leaves_no_session(client: AgentSandbox, service: TcpService) -> None:
    before = client.sessions.list().sessions
    made = client.run("open('/workspace/a.txt', 'w').write('a'); open('/output/b.txt', 'w').write('b')")
    assert [(file.filename, client.files.download(file.file_id)) for file in made.files] == [("b.txt", b"b"), ("a.txt", b"a")]
    assert SESSION_ID.fullmatch(made.session_id or "")
    assert client.sessions.list().sessions == before
    with pytest.raises(agentsandbox.NotFoundError):
        client.run("1", session_id=made.session_id)
    until(lambda: made.session_id not in {box.id for box in service.client.sandboxes.list()})
    for file in made.files:
        client.files.delete(file.file_id)


def test_session_starts_with_its_files_and_environment(client: AgentSandbox) -> None:
    upload = client.files.upload(b"given", filename="given.txt")
    with client.sessions.context(file_ids=[upload.file_id], env_vars={"A": "1"}) as made:
        assert client.run("echo $A; ls -A; cat given.txt", language="bash", session_id=made.session_id).stdout == "1\ngiven.txt\ngiven"
    with client.sessions.context() as other:
        assert client.run("ls -A", language="bash", session_id=other.session_id).stdout == ""
        client.sessions.inject_files(other.session_id, file_ids=[upload.file_id])
        assert client.run("cat given.txt", language="bash", session_id=other.session_id).stdout == "given"
    client.files.delete(upload.file_id)


def test_upload_can_also_go_into_a_session(client: AgentSandbox, session: str) -> None:
    told = client._http.post(  # noqa: SLF001 - the vendor's plugin sends this, its client has no word for it
        f"files?session_id={session}", files={"file": ("both.csv", b"1,2", "text/csv")}
    )
    assert (told["session_id"], client.files.download(told["file_id"])) == (session, b"1,2")
    assert client.run("cat both.csv; rm both.csv", language="bash", session_id=session).stdout == "1,2"
    client.files.delete(told["file_id"])


def test_large_code_and_output(client: AgentSandbox, session: str) -> None:
    code = "data = '" + "x" * 3_000_000 + "'\nprint(len(data))\n"
    assert client.run(code, session_id=session).stdout == "3000000\n"
    whole = client.run("print('0123456789' * 200_000)", session_id=session).stdout
    assert whole == "0123456789" * 200_000 + "\n"
    cut = client.run("print('start'); print('0123456789' * 500_000); print('end')", session_id=session).stdout
    assert len(cut) < 2_200_000
    assert cut.startswith("start\n")
    assert cut.endswith("789\nend\n")
    assert re.search(r"\n\[\.\.\. \d+ bytes omitted \.\.\.\]\n", cut)


def test_files_are_listed_in_pages(client: AgentSandbox, session: str) -> None:
    before = {file.file_id for file in client.files.list_all()}
    made = [client.files.upload(str(number).encode(), filename=f"{number}.txt").file_id for number in range(120)]
    for limit in (50, 7, 100):
        listed = [file.file_id for file in client.files.list_all(limit=limit)]
        assert [id_ for id_ in listed if id_ not in before] == made[::-1]
    assert [file.file_id for file in client.files.list(limit=3, offset=2).files] == made[::-1][2:5]
    page = client.files.list(limit=20, offset=100)
    assert (len(page.files), page.total, page.limit, page.offset) == (20, 120 + len(before), 20, 100)
    assert client.files.list(offset=10_000).files == []
    client.sessions.inject_files(session, made[:100])
    assert client.run("ls | wc -l; rm *", language="bash", session_id=session).stdout == "100\n"
    for id_ in made:
        client.files.delete(id_)
    assert {file.file_id for file in client.files.list_all()} == before


def test_large_tree_is_searched_for_files_that_a_run_made(client: AgentSandbox, session: str) -> None:
    def run(code: str) -> agentsandbox.ExecuteResponse:
        return client.run(code, language="bash", session_id=session)

    assert len(run("for i in $(seq 40); do mkdir -p d$i; echo $i > d$i/f$i; done").files) == 40
    few = run("echo new > d7/new; echo changed > d8/f8; rm d9/f9; touch d1/.hidden; mkfifo pipe; mv d10/f10 moved")
    assert sorted(file.filename for file in few.files) == ["f8", "moved", "new"]
    killed = run("pkill -KILL -fx '.*changes.*'; echo done > d1/done; echo $?")
    assert (killed.stdout, killed.return_code, killed.files) == ("0\n", 0, [])
    assert "there may be others" in killed.stderr
    over = run("rm -r /workspace/*; cd /output; for i in $(seq 60); do echo $i > $i; done")
    assert len(over.files) == 50
    assert "50 of 60 files" in over.stderr
    run("rm /output/*")
    for file in client.files.list_all():
        client.files.delete(file.file_id)


def test_background_process_outlives_its_run(client: AgentSandbox, session: str) -> None:
    begun = client.run("sleep 1000 & echo $! > /tmp/pid; echo out", language="bash", session_id=session)  # it holds the run's output open as well
    assert (begun.stdout, begun.return_code) == ("out\n", 0)
    ended = client.run("kill $(cat /tmp/pid)", language="bash", session_id=session)
    assert (ended.return_code, ended.stderr) == (0, "")


def test_execution_log_of_a_run(client: AgentSandbox, session: str) -> None:
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


async def test_many_concurrent_requests(key: str, base_url: str) -> None:
    async with AsyncAgentSandbox(api_key=key, base_url=base_url) as client, client.sessions.context() as made:
        runs = [client.run(f"print({number} ** 2)", session_id=made.session_id) for number in range(8)]
        results = await asyncio.gather(*runs, client.run("print('own')"), client.run("echo own", language="bash"))
        assert [result.stdout for result in results] == [f"{number**2}\n" for number in range(8)] + ["own\n"] * 2
        assert (await client.run("ls -A", language="bash", session_id=made.session_id)).stdout == ""


def test_resources_of_another_key_are_not_found(client: AgentSandbox, session: str, service: TcpService, base_url: str) -> None:
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


def test_client_errors_have_hints(client: AgentSandbox, session: str, base_url: str) -> None:
    with AgentSandbox(api_key="wrong", base_url=base_url) as stranger, pytest.raises(agentsandbox.AuthenticationError) as unknown:
        stranger.sessions.list()
    assert unknown.value.message.startswith("The API key is unknown.")
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


def test_sessions_survive_a_killed_service(client: AgentSandbox, service: TcpService) -> None:
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

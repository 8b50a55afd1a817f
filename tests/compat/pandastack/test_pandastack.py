"""PandaStack's own client against a real service: the programs of its guide, and every call that COVERAGE.md says there is.

It is the package from PyPI, as it is, over TCP with a key; sandboxes are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import httpx
import pandastack
import pytest
from pandastack import Client, Sandbox
from pandastack.exceptions import AuthError, BadRequestError, CommandFailed, NotFoundError, SandboxTimeout, ServerError

from tests.compat.pandastack.conftest import client_of
from tests.compat.pandastack.programs import AGENT, RUN_CODE, SESSION, TOOL
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.support.tcpservice import TcpService

FIBONACCI = """
a, b = 0, 1
for _ in range(30):
    a, b = b, a + b
print(a)
"""


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(scope="module")
def url(service: TcpService) -> str:
    return f"{service.url}/pandastack"


@pytest.fixture(scope="module")
def client(key: str, url: str) -> Client:
    return Client(api_url=url, api_key=key, max_create_retry_seconds=0)


@pytest.fixture(scope="module")
def gvisor_client(gvisor_service: TcpService) -> Client:
    return client_of(gvisor_service, "gvisor")


@pytest.fixture(scope="module")
def sb(client: Client) -> Iterator[Sandbox]:
    """One sandbox that tests share."""
    made: Sandbox = client.sandboxes.create(metadata={"job": "shared"})
    yield made
    made.kill()


@pytest.fixture(scope="module")
def wire(key: str, url: str) -> Iterator[httpx.Client]:
    """For what the client has no method for."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False) as made:
        yield made


# ------------------------------------------------------------------------------------------------------------- the guide's programs


@pytest.fixture
def program(key: str, url: str, tmp_path: Path) -> Callable[..., str]:
    """Runs a program, and gives what it printed."""

    def run(text: str, model_env: Mapping[str, str] = MappingProxyType({})) -> str:
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        # PANDASTACK_TOKEN is what the guide says, PANDASTACK_API_KEY what this version of the client reads.
        env = {**os.environ, "PANDASTACK_API": url, "PANDASTACK_API_KEY": key, "PANDASTACK_TOKEN": key, "HOME": str(tmp_path)}
        # The guide's model is one that Anthropic's package warns about.
        env |= {"NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "ignore::DeprecationWarning", **model_env}
        done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_tool_of_the_guide(program: Callable[[str], str], service: TcpService) -> None:
    before = {info.id for info in service.client.sandboxes.list()}
    assert program(RUN_CODE) == "5050\n"
    assert {info.id for info in service.client.sandboxes.list()} == before  # it has ended what it made


def test_agent_of_the_guide(program: Callable[..., str]) -> None:
    only_main = RUN_CODE.partition('if __name__ == "__main__":')[0]

    def script(conversation: Conversation) -> Step:
        if not conversation.results:
            return Call("run_code", {"code": FIBONACCI})
        return Say(f"It is {conversation.results[0].text}.")

    with scripted_model(script) as model:
        assert program(f"{TOOL}\n{only_main}\n{AGENT}", model.env) == "It is 832040.\n"


def test_session_of_the_guide_uses_one_sandbox(program: Callable[[str], str]) -> None:
    calls = """
    run_code("open('f', 'w').write('kept')")
    print(run_code("print(open('f').read())"))
    print(run_code("1 / 0").splitlines()[-1])
"""
    text = SESSION.replace("    # ... run the agent loop here, all calls share `sb` ...\n", calls)
    assert text != SESSION
    assert program(f"from pandastack import Sandbox\n{text}") == "kept\nZeroDivisionError: division by zero\n"


# ---------------------------------------------------------------------------------------------------------------------- sandboxes


@pytest.mark.smoke
def test_sandbox_is_created_listed_inspected_and_killed(client: Client, sb: Sandbox) -> None:
    made = client.sandboxes.create(template="base", ttl_seconds=120, metadata={"job": "demo"})
    assert (made.template, made.status, made.persistent, made.metadata, made.cpu, made.memory_mb) == (
        "base",
        "running",
        False,
        {"job": "demo"},
        1,
        1024,
    )
    assert made.boot_ms is not None
    assert [each.id for each in client.sandboxes.list()] == [sb.id, made.id]
    assert client.sandboxes.get(made.id).metadata == {"job": "demo"}
    assert made.refresh().status == "running"
    made.kill()
    made.kill()  # once more is no failure
    with pytest.raises(NotFoundError):
        client.sandboxes.get(made.id)
    with pytest.raises(NotFoundError):
        made.exec("true")
    assert [each.id for each in client.sandboxes.list()] == [sb.id]


def test_lifecycle_is_read_and_updated(client: Client) -> None:
    with client.sandboxes.create(template="base", persistent=True, ttl_seconds=7200) as made:
        assert made.persistent
        told = made.lifecycle()
        assert (told["ttl_seconds"], told["persistent"], type(told["idle_seconds"])) == (7200, True, int)
        with pytest.raises(BadRequestError, match="persistent"):
            made.set_ttl(60)
        assert made.set_persistent(False) == {**told, "persistent": False, "idle_seconds": 0}
        assert made.set_ttl(60)["ttl_seconds"] == 60
        assert made.set_persistent(True)["persistent"] is True
        assert client.sandboxes.get(made.id).persistent
        made.set_persistent(False)
        made.set_ttl(1)
        while made.id in {each.id for each in client.sandboxes.list()}:
            time.sleep(0.1)


def test_persistent_sandbox_outlives_its_context_manager(client: Client) -> None:
    with client.sandboxes.create(template="base", persistent=True) as made:
        pass
    assert made.exec("echo here").stdout == "here\n"
    made.kill()


def test_paused_sandbox_continues_where_it_was(client: Client, sb: Sandbox) -> None:
    sb.pause()
    assert client.sandboxes.get(sb.id).status == "paused"
    sb.resume()
    assert client.sandboxes.get(sb.id).status == "running"
    sb.pause()
    assert sb.exec("echo awake").stdout == "awake\n"


def test_hibernated_sandbox_wakes_on_request_and_by_itself(gvisor_client: Client) -> None:
    client = gvisor_client
    with client.sandboxes.create(template="base") as made:
        context = made.create_code_context()
        context.run_code("x = 41")
        made.hibernate()
        assert client.sandboxes.get(made.id).status == "hibernated"
        assert context.run_code("x + 1").text == "42"  # the next request wakes it
        made.hibernate()
        made.wake()
        made.wake()
        assert made.refresh().status == "running"
        assert context.run_code("x").text == "41"


def test_snapshot_is_created_restored_and_deleted(gvisor_client: Client) -> None:
    client = gvisor_client
    with client.sandboxes.create(template="base") as made:
        made.exec("echo kept > /root/note")
        taken = made.snapshot()
        assert client.snapshots.get(taken)["sandbox_id"] == made.id
        (listed,) = client.snapshots.list(sandbox_id=made.id)
        assert (listed["id"], listed["template"]) == (taken, "base")
        assert listed["size_bytes"] > 0
        assert [each["id"] for each in client.snapshots.list()] == [taken]
    assert client.snapshots.list(sandbox_id="sb-none") == []
    with client.sandboxes.create(from_snapshot=taken) as again:
        assert (again.from_snapshot, again.template) == (taken, "base")
        assert again.exec("cat /root/note").stdout == "kept\n"
    client.snapshots.delete(taken)
    with pytest.raises(NotFoundError):
        client.snapshots.get(taken)
    with pytest.raises(NotFoundError):
        client.sandboxes.create(from_snapshot=taken)


def test_forks_continue_from_the_parent_and_one_is_promoted(gvisor_client: Client) -> None:
    client = gvisor_client
    with client.sandboxes.create(template="base", metadata={"of": "parent"}) as parent:
        parent.exec("echo 1 > /tmp/state")
        child = parent.fork(metadata={"branch": "x"})
        assert child.metadata == {"branch": "x", "fork_parent_id": parent.id, "fork_tree_id": child.metadata["fork_tree_id"]}
        assert child.exec("cat /tmp/state").stdout == "1\n"
        children = parent.fork_tree(3)
        tree = children[0].metadata["fork_tree_id"]
        assert [each.metadata for each in children] == [{"of": "parent", "fork_parent_id": parent.id, "fork_tree_id": tree}] * 3
        children[0].exec("echo 2 > /tmp/state")
        assert {each.exec("cat /tmp/state").stdout for each in [parent, *children[1:]]} == {"1\n"}
        assert children[0].promote() == {"winner": children[0].id, "tree_id": tree, "deleted": [], "failures": {}}
        with pytest.raises(BadRequestError):
            children[0].promote(tree_id="another", cleanup_siblings=True)
        told = children[0].promote(cleanup_siblings=True, tree_id=tree)
        assert (told["winner"], set(told["deleted"]), told["failures"]) == (children[0].id, {children[1].id, children[2].id}, {})
        assert {each.id for each in client.sandboxes.list()} >= {parent.id, child.id, children[0].id}  # the other tree's is left alone
        with pytest.raises(BadRequestError):
            parent.promote()
        with pytest.raises(BadRequestError):
            parent.fork_tree(17)
        for each in (child, children[0]):
            each.kill()


def test_volume_contents_outlive_sandboxes(gvisor_client: Client) -> None:
    client = gvisor_client
    made = client.volumes.create("models", 64)
    assert (made["name"], made["size_mb"]) == ("models", 64)
    assert [each["name"] for each in client.volumes.list()] == ["models"]
    assert client.volumes.get("models")["size_bytes"] == 64 << 20
    with pytest.raises(BadRequestError):
        client.volumes.create("models", 64)
    with client.sandboxes.create(template="base", volumes=[{"name": "models"}]) as one:
        assert one.exec("echo kept > /mnt/models/note").exit_code == 0
        with one.fork() as child:
            assert child.exec("cat /mnt/models/note; echo child > /mnt/models/of").stdout == "kept\n"
        assert one.exec("cat /mnt/models/of").stdout == "child\n"
        with pytest.raises(BadRequestError):
            client.volumes.delete("models")
    with client.sandboxes.create(template="base", volumes=[{"name": "models", "read_only": True}]) as other:
        done = other.exec("cat /mnt/models/note; echo more >> /mnt/models/note")
        assert done.stdout == "kept\n"
        assert "Read-only" in done.stderr
    client.volumes.delete("models")
    for call in (client.volumes.get, client.volumes.delete):
        with pytest.raises(NotFoundError):
            call("models")
    with pytest.raises(NotFoundError):
        client.sandboxes.create(template="base", volumes=[{"name": "models"}])
    assert client.volumes.list() == []


def test_best_of_several_forks_is_kept(gvisor_client: Client) -> None:
    parent = gvisor_client.sandboxes.create(template="base")
    found = parent.explore(["exit 1", "echo PASS > /root/way", "sleep 1; echo PASS"], score_fn=lambda _box, done: 2.0 if done.files_changed else 1.0)
    assert found.winner is not None
    assert found.winner.exec("cat /root/way").stdout == "PASS\n"
    assert (len(found.reaped), found.reap_failures, found.errors) == (2, {}, [])
    assert next(done.label for done in found.outcomes if done.ok).endswith("/root/way")
    assert len([done for done in found.outcomes if done.ok]) == 2
    found.winner.kill()
    assert [each.id for each in gvisor_client.sandboxes.list()] == [parent.id]
    parent.kill()


# ------------------------------------------------------------------------------------------------------------------------ commands


@pytest.mark.smoke
def test_command_runs_in_the_shell_as_root(sb: Sandbox) -> None:
    done = sb.exec("cd /root && echo $0 $(id -u) $PWD; echo bad >&2; exit 3", timeout_seconds=20)
    assert (done.stdout, done.stderr, done.exit_code) == ("/bin/sh 0 /root\n", "bad\n", 3)
    assert done.duration_ms > 0
    assert sb.commands.run("pwd; readlink /proc/$$/exe").stdout == "/workspace\n/usr/bin/dash\n"
    with pytest.raises(CommandFailed):
        sb.exec("false", check=True)
    assert sb.run_code("echo ${BASH_VERSION%%.*}", language="bash").stdout == "5\n"


def test_command_is_ended_at_its_timeout(sb: Sandbox, wire: httpx.Client) -> None:
    with pytest.raises(SandboxTimeout):
        sb.exec("sleep 60", timeout_seconds=1)
    with pytest.raises(SandboxTimeout):
        sb.exec_stream("sleep 60", timeout_seconds=1)
    assert sb.exec("pgrep -c sleep").stdout == "0\n"
    for path in ("exec", "exec/stream"):  # the client does not say which time it was
        asked = {"cmd": "sleep 60", "timeout_seconds": 2}
        assert "command timeout: it was ended after 2 s" in wire.post(f"/v1/sandboxes/{sb.id}/{path}", json=asked).text


def test_code_may_exceed_the_argument_limit(sb: Sandbox) -> None:
    blob = "x" * 300_000
    code = f"""import sys
text = '''{blob}'''
it = "it's"
print(len(text), it, sys.argv, __name__)
raise SystemExit(7)
"""
    done = sb.run_code(code)
    assert (done.stdout, done.stderr, done.exit_code) == ("300000 it's ['-c'] __main__\n", "", 7)
    assert 'File "<string>", line 2' in sb.run_code(f"text = '{blob}'\nnone()").stderr
    assert sb.run_code(f"text='{blob}'; echo ${{#text}} $0", language="bash").stdout == "300000 bash\n"
    assert sb.exec(f"text='{blob}'; echo ${{#text}} it\\'s; cat").stdout == "300000 it's\n"
    assert sb.exec("ls /run/code").stdout.count("\n") <= 1  # what the last one was run from is being removed


def test_output_is_streamed(sb: Sandbox) -> None:
    out: list[str] = []
    bad: list[str] = []
    sb.filesystem.write("/tmp/go", "")
    sb.exec("rm /tmp/go")

    def first(chunk: str) -> None:
        out.append(chunk)
        if len(out) == 1:
            sb.filesystem.write("/tmp/go", "")  # it goes on only once it was heard

    command = """
        echo 'ä\u2028 one'; while ! test -e /tmp/go; do sleep 0.05; done; echo two; echo three >&2
        printf '\\303'; sleep 0.1; printf '\\244\\n'; exit 5
    """
    assert sb.exec_stream(command, on_stdout=first, on_stderr=bad.append) == 5
    assert ("".join(out), "".join(bad)) == ("ä\u2028 one\ntwo\nä\n", "three\n")


def test_end_of_the_sandbox_leaves_the_outcome_of_a_stream_open(client: Client) -> None:
    made = client.sandboxes.create(template="base")
    with pytest.raises(pandastack.ExecInterrupted) as broken:
        made.exec_stream("echo begun; sleep 60", on_stdout=lambda _: made.kill())
    assert broken.value.partial_stdout == "begun\n"


# ------------------------------------------------------------------------------------------------------------------------ sessions


def test_session_keeps_variables_and_returns_charts(sb: Sandbox, wire: httpx.Client) -> None:
    with sb.create_code_context() as context:
        context.run_code("import math\nx = 20")
        done = context.run_code("import sys; print('out'); print('err', file=sys.stderr); math.floor(x) + 1")
        assert (done.stdout, done.stderr, done.text, done.error, done.exit_code) == ("out\n", "err\n", "21", None, 0)
        failed = context.run_code("1 / 0")
        assert (failed.exit_code, "ZeroDivisionError" in str(failed.error)) == (1, True)
        shown = context.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2, 3]); plt.show()")
        assert str(shown.results[0].png).startswith("iVBOR")
        assert "<table" in str(context.run_code("import pandas as pd; pd.DataFrame({'a': [1]})").results[0].html)
        with pytest.raises(SandboxTimeout):
            context.run_code("import time; time.sleep(30)", timeout_seconds=1)
        asked = {"code": "time.sleep(30)", "timeout_ms": 1500}
        assert "ended after 1.5 s" in wire.post(f"/v1/sandboxes/{sb.id}/repl/sessions/{context.id}/run", json=asked).json()["error"]
        assert context.run_code("x").text == "20"
        listed = wire.get(f"/v1/sandboxes/{sb.id}/repl/sessions").json()["items"]
        assert {"id": context.id, "sandbox_id": sb.id, "language": "python"} in listed
    with pytest.raises(NotFoundError):
        context.run_code("x")
    with pytest.raises(BadRequestError):
        sb.create_code_context("cobol")
    with sb.create_code_context("bash") as shell:
        shell.run_code("y=5")
        assert shell.run_code("echo $y").stdout == "5\n"


# --------------------------------------------------------------------------------------------------------- files, ports, logs


@pytest.mark.smoke
def test_files_are_written_read_listed_and_inspected(sb: Sandbox, wire: httpx.Client, tmp_path: Path) -> None:
    fs = sb.filesystem
    content = bytes(range(256)) * 4096
    assert fs.write("/app/made/data.bin", content) == {"path": "/app/made/data.bin", "bytes": len(content)}
    assert fs.read("/app/made/data.bin") == content
    fs.write("/app/ä \u2028.txt", "text")
    assert sb.exec("cat /app/ä*").stdout == "text"
    (tmp_path / "up").write_bytes(b"up")
    fs.upload(tmp_path / "up", "/app/up")
    fs.download("/app/up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b"up"
    sb.exec("ln -s made /app/link; chmod 600 /app/up")
    listed = {each.name: each for each in fs.listdir("/app")}
    assert {name: (each.is_dir, each.path) for name, each in listed.items()} == {
        "link": (False, "/app/link"),
        "made": (True, "/app/made"),
        "up": (False, "/app/up"),
        "ä \u2028.txt": (False, "/app/ä \u2028.txt"),
    }
    assert (listed["up"].size, listed["up"].mode) == (2, "-rw-------")
    assert abs(listed["up"].mtime - time.time()) < 3600
    looked = fs.stat("/app/made")
    assert (looked.name, looked.is_dir, looked.path) == ("made", True, "/app/made")
    assert (fs.exists("/app/up"), fs.exists("/app/none")) == (True, False)
    assert [path for path, _, _ in fs.walk("/app")] == ["/app", "/app/made"]
    with pytest.raises(NotFoundError):
        fs.read("/app/none")
    with pytest.raises(BadRequestError):
        fs.write("a\0b", "x")
    assert wire.delete(f"/v1/sandboxes/{sb.id}/fs", params={"path": "/app"}).status_code == 204
    assert not fs.exists("/app")


def test_large_folder_is_listed_completely(sb: Sandbox) -> None:
    sb.exec("mkdir /tmp/many && cd /tmp/many && seq 1 2500 | xargs touch")
    assert len(sb.filesystem.listdir("/tmp/many")) == 2500


def test_listening_ports_are_reported(sb: Sandbox) -> None:
    assert sb.preview_urls() == {}
    sb.exec("python3 -m http.server 8000 >/dev/null 2>&1 & python3 -m http.server 8001 --bind 127.0.0.1 >/dev/null 2>&1 &")
    while len(told := sb.preview_urls()) < 2:
        time.sleep(0.05)
    assert set(told) == {8000, 8001}
    assert f"8000-{sb.id}" in told[8000]
    sb.exec("pkill -f http.server")


def test_logs_of_runs_are_read_and_followed(client: Client) -> None:
    made = client.sandboxes.create(template="base")
    made.exec("echo one; echo two >&2")
    made.run_code("print('ä', end='')")
    assert list(made.logs()) == ["one", "two", "ä"]
    assert list(made.logs(stream="stderr")) == ["two"]
    heard: list[str] = []
    three = threading.Event()

    def listen() -> None:
        for line in made.logs(follow=True):
            heard.append(line)
            if line == "three \u2028":
                three.set()

    listener = threading.Thread(target=listen)
    listener.start()
    made.exec_stream("echo 'three \u2028'; echo four >&2")
    assert three.wait(30)
    made.kill()
    listener.join(30)
    assert sorted(heard) == sorted(["one", "two", "ä", "three \u2028", "four"])


# -------------------------------------------------------------------------------------------------------- templates, keys, failures


def test_templates_are_listed(client: Client) -> None:
    assert {"base", "code-interpreter"} <= {each.name for each in client.templates.list()}
    found = client.templates.get("code-interpreter")
    assert (found.cpu, found.memory_mb, found.is_global) == (1, 1024, True)
    assert found.description
    assert client.templates.builds() == []
    for call in (client.templates.get, client.templates.delete, client.templates.get_build):
        with pytest.raises(NotFoundError):
            call("none")
    with pytest.raises(BadRequestError, match="service's own"):
        client.templates.delete("base")
    with pytest.raises(NotFoundError, match="code-interpreter"):
        client.sandboxes.create(template="browser")


def test_owner_of_the_key_is_reported(client: Client, url: str) -> None:
    assert client.me()["name"] == "compat"
    with pytest.raises(AuthError):
        Client(api_url=url, api_key="wrong").me()


def test_resources_of_another_key_are_not_found(service: TcpService, url: str, sb: Sandbox) -> None:
    other = Client(api_url=url, api_key=service.key("other"), max_create_retry_seconds=0)
    assert other.sandboxes.list() == []
    stranger = Sandbox.from_dict({"id": sb.id}, client=other)
    calls: list[Callable[[], object]] = [
        *(stranger.refresh, stranger.kill, stranger.pause, stranger.wake, stranger.snapshot, stranger.fork, stranger.lifecycle),
        *(stranger.create_code_context, stranger.preview_urls, lambda: stranger.exec("true"), lambda: list(stranger.logs())),
        *(lambda: stranger.filesystem.read("/etc/passwd"), lambda: stranger.filesystem.write("/tmp/x", "x")),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    assert sb.exec("echo there").stdout == "there\n"


def test_unsupported_calls_are_refused_in_the_vendors_format(client: Client) -> None:
    for call in (client.apps.list, client.functions.list, client.schedules.list, client.databases.list, client.tokens.list):
        with pytest.raises(ServerError, match="Sandlot does not have"):
            call()
    with pytest.raises(NotFoundError):
        client.apps.get("none")

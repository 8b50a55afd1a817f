"""Commands by E2B's own client: run, followed, fed, connected to, killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import httpx
import pytest
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotRunningException,
    TimeoutException,
)
from e2b.envd.client_sync import create_rpc_client
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import ProcessClientSync
from e2b.envd.process.process_pb import StreamInputRequest as Input
from e2b.exceptions import AuthenticationException
from protobuf import Oneof

from tests.compat.e2b.conftest import Options


@pytest.fixture
def rpc(sandbox: Sandbox, url: str) -> ProcessClientSync:
    """What the client itself speaks by, for fields that no method of it sends."""
    return create_rpc_client(ProcessClientSync, url, sandbox.connection_config)


@pytest.fixture(autouse=True)
def nothing_runs_on(sandbox: Sandbox) -> Iterator[None]:
    yield
    for each in sandbox.commands.list():
        sandbox.commands.kill(each.pid)


def test_command_output_is_streamed(sandbox: Sandbox) -> None:
    told: list[tuple[str, str]] = []
    done = sandbox.commands.run(
        "echo one; sleep 0.2; echo two >&2; printf 'drei \\xc3\\xa4'",
        on_stdout=lambda text: told.append(("out", text)),
        on_stderr=lambda text: told.append(("err", text)),
    )
    assert (done.stdout, done.stderr, done.exit_code, done.error) == ("one\ndrei ä", "two\n", 0, None)
    assert (told[0], told[1]) == (("out", "one\n"), ("err", "two\n"))
    assert "".join(text for name, text in told if name == "out") == done.stdout


def test_failed_command_raises_with_its_output(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; echo why >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (3, "before\n", "why\n")
    assert failed.value.error == "exit status 3"
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("kill -9 $$")
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")


def test_command_runs_with_the_given_environment_folder_and_user(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("id -un; pwd; echo $A-$HOME", envs={"A": "b c"})
    assert done.stdout == "user\n/home/user\nb c-/home/user\n"
    done = sandbox.commands.run("id -un; pwd; echo $HOME", user="root", cwd="/tmp")
    assert done.stdout == "root\n/tmp\n/root\n"
    sandbox.files.make_dir("below")
    assert sandbox.commands.run("pwd", cwd="below").stdout == "/home/user/below\n"
    with pytest.raises(NotFoundException):
        sandbox.commands.run("pwd", cwd="/nowhere")
    done = sandbox.commands.run("id -un; pwd", user="games", cwd="..")
    assert done.stdout == "games\n/usr\n"
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("pwd", user="no-such-user")


def test_megabytes_of_output_arrive_complete(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert done.stdout == "x" * 3_000_000
    quiet = sandbox.commands.run("echo gone", retain_output=False)
    assert quiet.stdout is None


def test_command_ends_at_its_timeout(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("echo a; sleep 77", timeout=0.5)
    deadline = time.monotonic() + 10
    while "sleep 77" in str(sandbox.commands.list()):
        assert time.monotonic() < deadline
    assert sandbox.commands.run("sleep 1; echo done", timeout=0).stdout == "done\n"


def test_background_command_outlives_its_client(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo begun; read line; echo got $line; echo more", background=True, stdin=True, timeout=60)
    assert next(iter(handle))[0] == "begun\n"
    handle.disconnect()
    (running,) = sandbox.commands.list()
    assert (running.pid, running.cmd, running.args[:2], running.tag) == (handle.pid, "/bin/bash", ["-l", "-c"], None)
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "text\n")
    done = again.wait()
    assert (done.stdout, done.exit_code) == ("got text\nmore\n", 0)
    assert sandbox.commands.list() == []
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(handle.pid)


def test_background_command_is_awaited_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("for i in 1 2 3; do echo $i; done", background=True)
    assert [out for out, _, _ in handle if out]
    assert handle.wait().stdout == "1\n2\n3\n"
    endless = sandbox.commands.run("sleep 1000", background=True)
    assert endless.kill() is True
    with pytest.raises(CommandExitException) as ended:
        endless.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")
    assert endless.kill() is False
    assert sandbox.commands.kill(999_999) is False


def test_stdin_is_written_and_closed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; echo over", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin(b"two\n")
    sandbox.commands.stream_input(handle.pid, ["three\n", "x" * 300_000, b"\n"])
    handle.close_stdin()
    assert handle.wait().stdout == f"one\ntwo\nthree\n{'x' * 300_000}\nover\n"
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(handle.pid, "late")
    deaf = sandbox.commands.run("sleep 1000", background=True)
    with pytest.raises(SandboxException, match="no input"):
        deaf.send_stdin("x")
    with pytest.raises(NotFoundException):
        sandbox.commands.stream_input(999_999, ["x"])


def test_idle_input_stream_is_kept_alive(sandbox: Sandbox, rpc: ProcessClientSync) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    selected: Oneof[Literal["pid"], int] = Oneof("pid", handle.pid)
    selector = process_pb.ProcessSelector(selector=selected)

    def written(text: bytes) -> Input:
        stdin: Oneof[Literal["stdin"], bytes] = Oneof("stdin", text)
        data: Oneof[Literal["data"], Input.DataEvent] = Oneof("data", Input.DataEvent(input=process_pb.ProcessInput(input=stdin)))
        return Input(event=data)

    def messages() -> Iterator[Input]:
        start: Oneof[Literal["start"], Input.StartEvent] = Oneof("start", Input.StartEvent(process=selector))
        yield Input(event=start)
        yield written(b"one ")
        keepalive: Oneof[Literal["keepalive"], Input.KeepAlive] = Oneof("keepalive", Input.KeepAlive())
        yield Input(event=keepalive)
        yield written(b"two")

    rpc.stream_input(messages())
    handle.close_stdin()
    assert handle.wait().stdout == "one two"


def test_process_list_has_environment_folder_and_tag(sandbox: Sandbox, rpc: ProcessClientSync) -> None:
    asked = process_pb.StartRequest(
        process=process_pb.ProcessConfig(cmd="sleep", args=["1000"], envs={"A": "b"}, cwd="/tmp"),
        tag="mine",
        stdin=False,
    )
    events = rpc.start(asked)
    next(events)
    (told,) = sandbox.commands.list()
    assert (told.cmd, told.args, told.envs, told.cwd, told.tag) == ("sleep", ["1000"], {"A": "b"}, "/tmp", "mine")
    tagged: Oneof[Literal["tag"], str] = Oneof("tag", "mine")
    selector = process_pb.ProcessSelector(selector=tagged)
    rpc.send_signal(process_pb.SendSignalRequest(process=selector, signal=process_pb.Signal.SIGTERM))
    last = list(events)[-1].event
    assert last is not None
    assert last.event is not None
    assert isinstance(last.event.value, process_pb.ProcessEvent.EndEvent)
    assert (last.event.value.status, last.event.value.exited) == ("signal: terminated", False)


def test_idle_output_stream_sends_keepalives(rpc: ProcessClientSync) -> None:
    asked = process_pb.StartRequest(process=process_pb.ProcessConfig(cmd="sleep", args=["2.5"]), stdin=False)
    events = rpc.start(asked, headers={"Keepalive-Ping-Interval": "1"})
    kinds = [event.event.event.field for event in events if event.event is not None and event.event.event is not None]
    assert kinds[0] == "start"
    assert "keepalive" in kinds
    assert kinds[-1] == "end"


def test_invalid_requests_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", envs={"A=B": "c"})
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", envs={"A": "x" * 300_000})


def test_sandbox_of_another_key_is_not_found_with_key_or_token(sandbox: Sandbox, others: Options, options: Options) -> None:
    theirs = Sandbox.create(template="base", **others)
    try:
        for shown, status in (
            ({"X-Access-Token": sandbox.connection_config.sandbox_headers["X-Access-Token"]}, 401),
            ({"X-Access-Token": theirs.connection_config.sandbox_headers["X-Access-Token"]}, 200),
            ({"X-API-KEY": options["api_key"]}, 502),
        ):
            headers = {"E2b-Sandbox-Id": theirs.sandbox_id, "Content-Type": "application/json", **shown}
            answer = httpx.post(f"{options['sandbox_url']}/process.Process/List", content=b"{}", headers=headers)
            assert answer.status_code == status, answer.text
            assert (answer.status_code == 200) == ("processes" in answer.json())
        with pytest.raises(NotFoundException):
            Sandbox.connect(theirs.sandbox_id, **options)
    finally:
        theirs.kill()


def test_end_of_the_sandbox_is_reported_to_a_running_command(options: Options) -> None:
    doomed = Sandbox.create(template="base", **options)
    assert doomed.is_running()
    handle = doomed.commands.run("sleep 1000", background=True, timeout=0)
    doomed.kill()
    with pytest.raises(SandboxNotRunningException, match="sandbox was killed or reached its end of life"):
        handle.wait()
    with pytest.raises(SandboxNotRunningException):
        doomed.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        doomed.files.read("x")
    assert doomed.is_running() is False


def test_git_helpers_work(sandbox: Sandbox) -> None:
    sandbox.git.init("repo", initial_branch="main")
    sandbox.git.configure_user("A", "a@example.org", scope="local", path="repo")
    sandbox.files.write("repo/file", "one\n")
    assert [each.name for each in sandbox.git.status("repo").file_status] == ["file"]
    sandbox.git.add("repo")
    sandbox.git.commit("repo", "first")
    sandbox.git.create_branch("repo", "other")
    assert sandbox.git.status("repo").is_clean
    found = sandbox.git.branches("repo")
    assert (set(found.branches), found.current_branch) == ({"main", "other"}, "other")
    sandbox.git.clone("/home/user/repo", path="copy")
    assert sandbox.files.read("copy/file") == "one\n"
    assert sandbox.commands.run("git log --format='%an %s'", cwd="copy").stdout == "A first\n"
    with pytest.raises(CommandExitException):
        sandbox.git.checkout_branch("repo", "nowhere")

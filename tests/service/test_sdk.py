"""The SDK against a real service: each of its operations, in sandboxes on gVisor. Refusals are in ``test_bad_input.py``."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator

import pytest

from sandlot import AsyncSandbox, Network, Sandbox
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.specs import MIB
from sandlot.sdk import AsyncClient, Output
from tests.support.localservice import LocalService
from tests.support.until import until

ECHO = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"


@pytest.fixture
async def async_sandbox(service: LocalService, sandbox: Sandbox) -> AsyncIterator[AsyncSandbox]:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        yield await AsyncSandbox.connect(sandbox.id, client=client)


def test_sandbox_is_created_inspected_changed_and_killed(service: LocalService) -> None:
    with service.create(name="mine", metadata={"job": "7"}, timeout=100, cpus=0.5, memory="256M", disk=64 * MIB, pids=64, envs={"A": "b"}) as made:
        info = made.info()
        assert (info.state, info.template, info.name, info.metadata, info.timeout) == ("running", "base", "mine", {"job": "7"}, 100)
        assert (info.limits.cpus, info.limits.memory_bytes, info.limits.disk_bytes, info.limits.pids) == (0.5, 256 * MIB, 64 * MIB, 64)
        assert (info.isolation, info.network) == ("gvisor", Network("packages"))
        assert made.is_running()
        assert made.id in [each.id for each in Sandbox.list(client=service.client)]
        assert made.commands.run("echo $A").stdout == "b\n"
        usage = made.usage()
        assert usage.cpu_s > 0
        assert 0 < usage.memory_bytes <= usage.memory_peak_bytes <= 256 * MIB
        before = info.expires_at
        made.set_timeout(1000)
        after = made.info().expires_at
        assert before is not None
        assert after is not None
        assert after > before
        made.run_code("held = 41")
        assert Sandbox.connect(made.id, client=service.client).run_code("held + 1").text == "42"
    assert made.id not in [each.id for each in Sandbox.list(client=service.client)]
    ended = made.info()
    assert (ended.state, ended.exit_reason) == ("stopped", "killed")
    Sandbox.kill(made.id, url=f"unix://{service.data_dir}/sandlot.sock")
    with pytest.raises(SandboxEndedError) as caught:
        made.run_code("1")
    assert caught.value.fields["reason"] == "killed"
    with pytest.raises(SandboxEndedError):
        Sandbox.connect(made.id, client=service.client)


# ----------------------------------------------------------------------------------------------------------------------- code


def test_environment_of_a_run_is_not_seen_by_the_next(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import os; os.environ.get('ONCE')", envs={"ONCE": "x"}).text == "'x'"
    assert sandbox.run_code("os.environ.get('ONCE')").text is None


def test_callbacks_get_output_while_code_runs_and_then_results_and_errors(sandbox: Sandbox) -> None:
    told: list[str] = []

    def heard(text: str) -> None:
        told.append(text)
        if text.startswith("waiting"):
            sandbox.files.write("/tmp/go", "")  # the code goes on only once its first line was seen

    code = "import os, time\nprint('waiting', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('gone')"
    execution = sandbox.run_code(code, on_stdout=heard)
    assert "".join(told) == execution.stdout == "waiting\ngone\n"

    results: list[object] = []
    errors: list[object] = []
    assert sandbox.run_code("6 * 7", on_result=results.append, on_error=errors.append).text == "42"
    failed = sandbox.run_code("1 / 0", on_result=results.append, on_error=errors.append)
    assert [getattr(result, "text", None) for result in results] == ["42"]
    assert errors == [failed.error]


# ------------------------------------------------------------------------------------------------------------------- commands


def test_commands_run_as_asked_and_report_how_they_ended(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo a; echo b >&2; exit 3 | cat").stdout == "a\n"
    result = sandbox.commands.run("echo a; echo b >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.reason, result.ok) == ("a\n", "b\n", 3, "exited", False)
    assert sandbox.commands.run(["echo", "a;", "$HOME", "*"]).stdout == "a; $HOME *\n"
    assert sandbox.commands.run("pwd; id -un").stdout == "/workspace\nuser\n"
    assert sandbox.commands.run("pwd; id -un", cwd="/etc", user="root").stdout == "/etc\nroot\n"
    assert sandbox.commands.run("echo $X", envs={"X": "y"}).stdout == "y\n"
    for number, name in ((15, "TERM"), (2, "INT")):
        result = sandbox.commands.run(f"kill -{name} $$")
        assert (result.exit_code, result.signal, result.reason) == (128 + number, number, "signalled")
    result = sandbox.commands.run("echo begun; sleep 321 & sleep 321", timeout=2.0)
    assert (result.timed_out, result.exit_code, result.signal, result.stdout) == (True, 124, 9, "begun\n")
    assert sandbox.commands.run("pgrep -cf 'sleep 32[1]'").stdout == "0\n"


def test_standard_input_of_any_kind_arrives_whole(sandbox: Sandbox) -> None:
    for data in ("", b"\xff\x00\xfe", os.urandom(300_000), "é" * 100_000):
        raw = data.encode() if isinstance(data, str) else data
        received = bytearray()
        result = sandbox.commands.run(["python3", "-c", ECHO], stdin=data, on_output=lambda piece, into=received: into.extend(piece.data))
        assert result.exit_code == 0
        assert bytes(received) == raw
    assert sandbox.commands.run("cat", stdin=io.BytesIO(b"file")).stdout == "file"
    assert sandbox.commands.run("cat", stdin=io.StringIO("wörter")).stdout == "wörter"
    assert sandbox.commands.run("cat", stdin=(b"%d" % number for number in range(5))).stdout == "01234"
    assert sandbox.commands.run("true", stdin=iter([b"x" * 100_000] * 20)).exit_code == 0, "nothing reads it"


def test_characters_that_are_split_over_writes_are_decoded_whole(sandbox: Sandbox) -> None:
    program = (
        "import sys, time\nfor byte in 'aé€😀'.encode():\n    sys.stdout.buffer.write(bytes([byte]))\n    sys.stdout.flush()\n    time.sleep(0.02)"
    )
    told: list[str] = []
    result = sandbox.commands.run(["python3", "-c", program], on_stdout=told.append)
    assert result.stdout == "".join(told) == "aé€😀"
    assert "\ufffd" not in "".join(told)


def test_long_output_is_truncated_alike_streamed_and_collected(sandbox: Sandbox) -> None:
    command = "head -c 3000000 /dev/zero | tr '\\0' x; echo end"
    received = 0

    def count(piece: Output) -> None:
        nonlocal received
        received += len(piece.data)

    streamed = sandbox.commands.run(command, on_output=count)
    collected = sandbox.commands.run(command)
    assert received == 3_000_004
    assert streamed.stdout_omitted_bytes == collected.stdout_omitted_bytes == 3_000_004 - 2 * MIB
    assert streamed.stdout == collected.stdout
    assert collected.stdout.endswith("xend\n")


def test_background_command_is_found_again_and_given_input(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo begun; read line; echo got $line; exit 4", background=True, stdin=True)
    assert handle.poll() is None
    assert handle.pid is not None
    assert (handle.id, True) in [(info.id, info.running) for info in sandbox.commands.list()]
    handle.send_stdin("é\n")
    told: list[str] = []
    result = handle.wait(on_stdout=told.append)
    assert (result.exit_code, result.stdout) == (4, "begun\ngot é\n")
    assert handle.stdout == "begun\ngot é\n"
    again = sandbox.commands.connect(handle.id)
    assert again.poll() == result
    assert not handle.kill()
    assert sandbox.commands.run("wc -c", background=True, stdin=b"\xff" * 200_000).wait().stdout == "200000\n"
    with pytest.raises(SandlotError) as caught:
        sandbox.commands.connect("0" * 32)
    assert caught.value.code is ErrorCode.PROCESS_NOT_FOUND
    assert not sandbox.commands.kill("0" * 32)


def test_commands_and_terminals_are_found_by_their_tag(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000", tag="mine", cwd="/tmp", envs={"A": "b"}, background=True)
    terminal = sandbox.pty.create("cat", tag="seen")
    sandbox.commands.run("true", tag="over")
    known = {info.tag: info for info in sandbox.commands.list() if info.tag is not None}
    assert (known["mine"].id, known["mine"].cwd, known["mine"].envs) == (handle.id, "/tmp", {"A": "b"})
    assert (known["seen"].id, known["seen"].pty, known["over"].running) == (terminal.id, True, False)
    assert sandbox.commands.get(handle.id).tag == "mine"
    assert handle.kill()
    terminal.kill()


# ---------------------------------------------------------------------------------------------------------------------- files


def test_file_is_written_appended_to_read_and_listed(sandbox: Sandbox) -> None:
    entry = sandbox.files.write("/workspace/notes/ü.txt", "zwölf\n", mode=0o600)
    assert (entry.name, entry.kind, entry.size_bytes, entry.mode & 0o777) == ("ü.txt", "file", 7, 0o600)
    assert sandbox.files.read(entry.path) == "zwölf\n"
    assert sandbox.files.read(entry.path, "bytes") == "zwölf\n".encode()
    sandbox.files.write(entry.path, b"more", append=True)
    assert b"".join(sandbox.files.read(entry.path, "stream")) == "zwölf\nmore".encode()
    assert [each.name for each in sandbox.files.list("/workspace/notes")] == ["ü.txt"]
    stat = sandbox.files.stat(entry.path)
    assert (stat.size_bytes, stat.uid, stat.is_dir) == (11, 1000, False)
    assert stat.modified_at is not None
    assert sandbox.commands.run("cat /workspace/notes/*").stdout == "zwölf\nmore"
    assert sandbox.files.write("/etc/motd", "hello", user="root").uid == 0


# ----------------------------------------------------------------------------------------------------------------------- async


async def test_cancelled_call_ends_its_command(async_sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()
    call = asyncio.create_task(async_sandbox.commands.run("echo begun; sleep 654", timeout=None, on_stdout=lambda _: begun.set()))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def ended() -> bool:
        return (await async_sandbox.commands.run("pgrep -f 'sleep 65[4]'")).exit_code == 1

    await until(ended)


async def test_cancelled_context_kills_its_sandbox(service: LocalService) -> None:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        made: asyncio.Future[AsyncSandbox] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with AsyncSandbox.create("base", client=client) as sandbox:
                made.set_result(sandbox)
                await asyncio.sleep(100)

        task = asyncio.create_task(work())
        sandbox = await made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.info()).state == "stopped"

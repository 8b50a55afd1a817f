"""The SDK against a real service: every verb, in sandboxes on gVisor."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Sandbox
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.specs import MIB
from sandlot.sdk import AsyncClient, Output
from tests.support.localservice import LocalService

ECHO = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"


@pytest.fixture
async def async_sandbox(service: LocalService, sandbox: Sandbox) -> AsyncIterator[AsyncSandbox]:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        yield await AsyncSandbox.connect(sandbox.id, client=client)


# ------------------------------------------------------------------------------------------------------------------ sandboxes


def test_a_sandbox_is_made_told_and_ended(service: LocalService) -> None:
    with service.create(name="mine", metadata={"job": "7"}, timeout=100, cpus=0.5, memory="256M", disk=64 * MIB, pids=64, envs={"A": "b"}) as made:
        info = made.info()
        assert (info.state, info.template, info.name, info.metadata, info.timeout_s) == ("running", "base", "mine", {"job": "7"}, 100)
        assert (info.limits.cpus, info.limits.memory_bytes, info.limits.disk_bytes, info.limits.pids) == (0.5, 256 * MIB, 64 * MIB, 64)
        assert (info.isolation, info.network) == ("gvisor", "packages")
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
    assert made.id not in [each.id for each in Sandbox.list(client=service.client)]
    ended = made.info()
    assert (ended.state, ended.exit_reason) == ("stopped", "killed")
    made.kill()
    Sandbox.kill(made.id, url=f"unix://{service.data_dir}/sandlot.sock")
    with pytest.raises(SandboxEndedError) as caught:
        made.run_code("1")
    assert caught.value.fields["reason"] == "killed"
    with pytest.raises(SandboxEndedError):
        Sandbox.connect(made.id, client=service.client)


def test_a_sandbox_is_taken_hold_of_by_its_id(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.run_code("held = 41")
    again = Sandbox.connect(sandbox.id, client=service.client)
    assert again.run_code("held + 1").text == "42"


@pytest.mark.parametrize(
    "options, code",
    [
        ({"template": "nope"}, ErrorCode.TEMPLATE_NOT_FOUND),
        ({"timeout": 0}, ErrorCode.INVALID_REQUEST),
        ({"memory": "1K"}, ErrorCode.INVALID_REQUEST),
        ({"envs": {"A": "b\0c"}}, ErrorCode.INVALID_REQUEST),
        ({"envs": {"A": "x" * 200_000}}, ErrorCode.INVALID_REQUEST),
        ({"isolation": "container"}, ErrorCode.FORBIDDEN),
        ({"network": "internet"}, ErrorCode.UNSUPPORTED),
    ],
    ids=["template", "timeout", "memory", "nul", "large environment", "isolation", "network"],
)
def test_what_cannot_be_made_is_refused_with_the_reason(service: LocalService, options: dict[str, object], code: ErrorCode) -> None:
    before = {each.id for each in Sandbox.list(client=service.client)}
    with pytest.raises(SandlotError) as caught:
        Sandbox.create(**{"template": "base", "client": service.client, **options})  # type: ignore[arg-type]
    assert caught.value.code is code
    assert caught.value.message
    assert {each.id for each in Sandbox.list(client=service.client)} == before


# ----------------------------------------------------------------------------------------------------------------------- code


def test_variables_stay_also_after_an_exception(sandbox: Sandbox) -> None:
    assert sandbox.run_code("numbers = [1, 2, 3]").ok
    failed = sandbox.run_code("print('before')\nnumbers[9]")
    assert (failed.status, failed.exit_code, failed.stdout) == ("error", 1, "before\n")
    assert failed.error is not None
    assert failed.error.name == "IndexError"
    assert "numbers[9]" in str(failed.error)
    fixed = sandbox.run_code("sum(numbers)")
    assert (fixed.text, fixed.exit_code, fixed.error) == ("6", 0, None)
    assert fixed.execution_count == (failed.execution_count or 0) + 1


def test_the_environment_of_a_run_is_its_own(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import os; os.environ.get('ONCE')", envs={"ONCE": "x"}).text == "'x'"
    assert sandbox.run_code("os.environ.get('ONCE')").text is None


def test_code_that_runs_too_long_is_interrupted_and_its_variables_stay(sandbox: Sandbox) -> None:
    timed_out = sandbox.run_code("kept = 5\nwhile True: pass", timeout=1)
    assert (timed_out.status, timed_out.exit_code) == ("timeout", 124)
    assert sandbox.run_code("kept").text == "5"


def test_output_of_code_arrives_while_it_runs(sandbox: Sandbox) -> None:
    # The code goes on only once the callback has seen its first line.
    told: list[str] = []

    def heard(text: str) -> None:
        told.append(text)
        if text.startswith("waiting"):
            sandbox.files.write("/tmp/go", "")

    code = "import os, sys, time\nprint('waiting', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('gone')"
    execution = sandbox.run_code(code, on_stdout=heard)
    assert "".join(told) == execution.stdout == "waiting\ngone\n"


def test_results_and_errors_of_code_are_told(sandbox: Sandbox) -> None:
    results: list[object] = []
    errors: list[object] = []
    assert sandbox.run_code("6 * 7", on_result=results.append, on_error=errors.append).text == "42"
    failed = sandbox.run_code("1 / 0", on_result=results.append, on_error=errors.append)
    assert [getattr(result, "text", None) for result in results] == ["42"]
    assert errors == [failed.error]


@pytest.mark.parametrize(
    "code, refused",
    [("x = '\0'", ErrorCode.INVALID_REQUEST), ("x = '" + "a" * 10_000_000 + "'", ErrorCode.TOO_LARGE)],
    ids=["nul", "10 MB"],
)
def test_code_that_no_kernel_takes_is_refused_and_the_next_runs(sandbox: Sandbox, code: str, refused: ErrorCode) -> None:
    with pytest.raises(SandlotError) as caught:
        sandbox.run_code(code)
    assert caught.value.code is refused
    assert sandbox.run_code("'next'").text == "'next'"


def test_much_code_is_still_code(sandbox: Sandbox) -> None:
    assert sandbox.run_code("len('" + "a" * 3_000_000 + "')").text == "3000000"


def test_another_language_is_refused_by_name(sandbox: Sandbox) -> None:
    with pytest.raises(SandlotError, match="python"):
        sandbox.run_code("1", language="cobol")


# ------------------------------------------------------------------------------------------------------------------- commands


def test_a_shell_line_and_a_list_of_arguments(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo a; echo b >&2; exit 3 | cat").stdout == "a\n"
    result = sandbox.commands.run("echo a; echo b >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.reason, result.ok) == ("a\n", "b\n", 3, "exited", False)
    assert sandbox.commands.run(["echo", "a;", "$HOME", "*"]).stdout == "a; $HOME *\n"


def test_where_and_as_whom(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("pwd; id -un").stdout == "/workspace\nuser\n"
    assert sandbox.commands.run("pwd; id -un", cwd="/etc", user="root").stdout == "/etc\nroot\n"
    assert sandbox.commands.run("echo $X", envs={"X": "y"}).stdout == "y\n"


@pytest.mark.parametrize("number, name", [(15, "TERM"), (9, "KILL"), (2, "INT"), (13, "PIPE")])
def test_a_signal_is_in_the_exit_code(sandbox: Sandbox, number: int, name: str) -> None:
    result = sandbox.commands.run(f"kill -{name} $$")
    assert (result.exit_code, result.signal, result.reason) == (128 + number, number, "signalled")


def test_a_command_that_runs_too_long_is_killed_with_its_children(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo begun; sleep 321 & sleep 321", timeout=1)
    assert (result.timed_out, result.stdout) == (True, "begun\n")
    assert sandbox.commands.run("pgrep -cf 'sleep 32[1]'").stdout == "0\n"


@pytest.mark.parametrize(
    "data",
    ["text\n", "", b"\xff\x00\xfe", os.urandom(300_000), "é" * 100_000],
    ids=["text", "nothing", "bytes", "much", "much text"],
)
def test_standard_input_arrives_whole(sandbox: Sandbox, data: str | bytes) -> None:
    raw = data.encode() if isinstance(data, str) else data
    received = bytearray()
    result = sandbox.commands.run(["python3", "-c", ECHO], stdin=data, on_output=lambda piece: received.extend(piece.data))
    assert result.exit_code == 0
    assert bytes(received) == raw


def test_standard_input_may_be_a_file_or_pieces(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat", stdin=io.BytesIO(b"file")).stdout == "file"
    assert sandbox.commands.run("cat", stdin=io.StringIO("wörter")).stdout == "wörter"
    assert sandbox.commands.run("cat", stdin=(b"%d" % number for number in range(5))).stdout == "01234"


def test_a_command_that_does_not_read_its_input_ends_all_the_same(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("true", stdin=iter([b"x" * 100_000] * 20)).exit_code == 0


def test_characters_are_whole_wherever_they_are_cut(sandbox: Sandbox) -> None:
    program = (
        "import sys, time\nfor byte in 'aé€😀'.encode():\n    sys.stdout.buffer.write(bytes([byte]))\n    sys.stdout.flush()\n    time.sleep(0.02)"
    )
    told: list[str] = []
    result = sandbox.commands.run(["python3", "-c", program], on_stdout=told.append)
    assert result.stdout == "".join(told) == "aé€😀"
    assert "\ufffd" not in "".join(told)


def test_long_output_is_the_same_collected_here_or_there(sandbox: Sandbox) -> None:
    command = "head -c 5000000 /dev/zero | tr '\\0' x; echo end"
    received = 0

    def count(piece: Output) -> None:
        nonlocal received
        received += len(piece.data)

    streamed = sandbox.commands.run(command, on_output=count)
    collected = sandbox.commands.run(command)
    assert received == 5_000_004
    assert streamed.stdout_omitted == collected.stdout_omitted == 5_000_004 - 2 * MIB
    assert streamed.stdout == collected.stdout
    assert collected.stdout.endswith("xend\n")


@pytest.mark.parametrize(
    "command, options, code",
    [
        ("", {}, ErrorCode.INVALID_REQUEST),
        ("a\0b", {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        (["nonexistent-program"], {}, ErrorCode.PATH_NOT_FOUND),
        (["/etc/passwd"], {}, ErrorCode.PERMISSION_DENIED),
        ("true", {"cwd": "/nonexistent"}, ErrorCode.PATH_NOT_FOUND),
        ("true", {"cwd": "relative"}, ErrorCode.PATH_INVALID),
        ("true", {"user": "nobody"}, ErrorCode.INVALID_REQUEST),
        ("true", {"envs": {"A": "x" * 200_000}}, ErrorCode.INVALID_REQUEST),
        ("true", {"timeout": -1}, ErrorCode.INVALID_REQUEST),
        (["true", "x" * 200_000], {}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["empty", "nul", "no argument", "no program", "no permission", "no folder", "relative", "user", "environment", "timeout", "argument"],
)
def test_a_command_that_cannot_be_run_is_refused_and_the_next_runs(
    sandbox: Sandbox, command: str | list[str], options: dict[str, object], code: ErrorCode
) -> None:
    with pytest.raises(SandlotError) as caught:
        sandbox.commands.run(command, **options)  # type: ignore[call-overload]
    assert caught.value.code is code
    assert sandbox.commands.run("echo next").stdout == "next\n"


def test_a_command_in_the_background_lives_on_and_is_found_again(sandbox: Sandbox) -> None:
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


def test_a_command_in_the_background_is_polled_iterated_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("while true; do echo tick; sleep 0.05; done", background=True)
    seen = b""
    for piece in handle:
        seen += piece.data
        if seen.count(b"tick") >= 3:
            break
    assert handle.poll() is None
    assert handle.kill("SIGTERM")
    result = handle.wait()
    assert (result.exit_code, result.signal) == (143, 15)
    assert result.stdout.startswith(seen.decode())


def test_a_command_in_the_background_takes_input_given_at_its_start(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat", background=True, stdin="words").wait().stdout == "words"
    assert sandbox.commands.run("wc -c", background=True, stdin=b"\xff" * 200_000).wait().stdout == "200000\n"


def test_a_command_is_found_by_what_was_said_when_it_was_started(sandbox: Sandbox) -> None:
    handle = sandbox.commands.start("sleep 1000", tag="mine", cwd="/tmp", envs={"A": "b"})
    terminal = sandbox.pty.create("cat", tag="seen")
    sandbox.commands.run("true", tag="over")
    known = {info.tag: info for info in sandbox.commands.list() if info.tag is not None}
    assert (known["mine"].id, known["mine"].cwd, known["mine"].env) == (handle.id, "/tmp", {"A": "b"})
    assert (known["seen"].id, known["seen"].pty, known["over"].running) == (terminal.id, True, False)
    assert sandbox.commands.get(handle.id).tag == "mine"
    assert handle.kill()
    terminal.kill()


def test_an_unknown_process_is_not_found(sandbox: Sandbox) -> None:
    with pytest.raises(SandlotError) as caught:
        sandbox.commands.connect("0" * 32)
    assert caught.value.code is ErrorCode.PROCESS_NOT_FOUND
    assert not sandbox.commands.kill("0" * 32)


# ---------------------------------------------------------------------------------------------------------------------- files


def test_a_file_is_written_read_and_told(sandbox: Sandbox) -> None:
    entry = sandbox.files.write("/workspace/notes/ü.txt", "zwölf\n", mode=0o600)
    assert (entry.name, entry.kind, entry.size, entry.mode & 0o777) == ("ü.txt", "file", 7, 0o600)
    assert sandbox.files.read(entry.path) == "zwölf\n"
    assert sandbox.files.read(entry.path, "bytes") == "zwölf\n".encode()
    sandbox.files.write(entry.path, b"more", append=True)
    assert b"".join(sandbox.files.read(entry.path, "stream")) == "zwölf\nmore".encode()
    assert [each.name for each in sandbox.files.list("/workspace/notes")] == ["ü.txt"]
    stat = sandbox.files.stat(entry.path)
    assert (stat.size, stat.uid, stat.is_dir) == (11, 1000, False)
    assert stat.modified_at is not None
    assert sandbox.commands.run("cat /workspace/notes/*").stdout == "zwölf\nmore"


def test_folders_are_made_moved_and_removed(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("/workspace/a/b")
    assert not sandbox.files.make_dir("/workspace/a/b")
    sandbox.files.write("/workspace/a/b/c", "x")
    assert sandbox.files.move("/workspace/a", "/workspace/z").path == "/workspace/z"
    assert not sandbox.files.exists("/workspace/a")
    assert sandbox.files.exists("/workspace/z/b/c")
    sandbox.files.write("/workspace/other", "y")
    with pytest.raises(SandlotError) as caught:
        sandbox.files.rename("/workspace/other", "/workspace/z/b/c")
    assert caught.value.code is ErrorCode.PATH_EXISTS
    sandbox.files.rename("/workspace/other", "/workspace/z/b/c", overwrite=True)
    assert sandbox.files.read("/workspace/z/b/c") == "y"
    with pytest.raises(SandlotError):
        sandbox.files.remove("/workspace/z", recursive=False)
    assert sandbox.files.remove("/workspace/z") == 3
    assert not sandbox.files.exists("/workspace/z")


def test_a_large_file_comes_and_goes_in_pieces(sandbox: Sandbox, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(20_000_000))
    source.chmod(0o755)
    assert sandbox.files.upload(source, "/tmp/large") == 1
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert sandbox.commands.run("sha256sum < /tmp/large").stdout.split()[0] == digest
    assert sandbox.files.download("/tmp/large", target) == 1
    assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
    assert os.access(target, os.X_OK)


def test_a_download_that_nobody_finishes_keeps_nothing_open(sandbox: Sandbox) -> None:
    sandbox.commands.run("head -c 30000000 /dev/zero > /tmp/zeros")
    with sandbox.files.read("/tmp/zeros", "stream") as pieces:
        assert set(next(iter(pieces))) == {0}
    assert sandbox.commands.run("rm /tmp/zeros; echo gone").stdout == "gone\n"


def test_a_folder_goes_there_and_back(sandbox: Sandbox, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "a b").write_text("1")
    (tree / "sub" / "ü").write_bytes(b"\x00\xff")
    assert sandbox.files.upload(tree, "/workspace/tree") == 2
    # What comes back must not bring links along, wherever they point to.
    sandbox.commands.run("ln -s /etc tree/link; ln -s ../tree tree/loop; mkfifo tree/pipe")
    assert sandbox.files.download("/workspace/tree", tmp_path / "back") == 2
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")) == ["a b", "sub", "sub/empty", "sub/ü"]
    assert (tmp_path / "back" / "sub" / "ü").read_bytes() == b"\x00\xff"


def test_a_folder_of_thousands_is_listed_whole(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import pathlib\nmany = pathlib.Path('/tmp/many')\nmany.mkdir()\nfor n in range(2500): (many / f'{n:05}').touch()").ok
    assert [entry.name for entry in sandbox.files.list("/tmp/many")] == [f"{number:05}" for number in range(2500)]


@pytest.mark.parametrize(
    "path, code",
    [
        ("/nonexistent", ErrorCode.PATH_NOT_FOUND),
        ("relative", ErrorCode.PATH_INVALID),
        ("/a\0b", ErrorCode.PATH_INVALID),
        ("/etc/shadow", ErrorCode.PERMISSION_DENIED),
        ("/workspace", ErrorCode.PATH_INVALID),
        ("/" + "x" * 5000, ErrorCode.PATH_INVALID),
    ],
    ids=["missing", "relative", "nul", "forbidden", "a folder", "long"],
)
def test_a_file_that_cannot_be_read_is_refused_and_the_next_is_read(sandbox: Sandbox, path: str, code: ErrorCode) -> None:
    with pytest.raises(SandlotError) as caught:
        sandbox.files.read(path)
    assert caught.value.code is code
    assert sandbox.files.read("/etc/hostname")


def test_writing_where_only_root_may_takes_root(sandbox: Sandbox) -> None:
    with pytest.raises(SandlotError) as caught:
        sandbox.files.write("/etc/motd", "hello")
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert sandbox.files.write("/etc/motd", "hello", user="root").uid == 0


# ----------------------------------------------------------------------------------------------------------------------- async


async def test_the_asynchronous_client_does_the_same(async_sandbox: AsyncSandbox, tmp_path: Path) -> None:
    assert (await async_sandbox.run_code("20 + 1")).text == "21"
    assert (await async_sandbox.commands.run("cat", stdin=b"\xff" * 100_000)).stdout == "\ufffd" * 100_000
    await async_sandbox.files.write("/tmp/async", iter([b"a", b"b"]))
    assert await async_sandbox.files.read("/tmp/async") == "ab"
    async with await async_sandbox.files.read("/tmp/async", "stream") as pieces:
        assert b"".join([piece async for piece in pieces]) == b"ab"
    assert await async_sandbox.files.download("/tmp/async", tmp_path / "async") == 1
    handle = await async_sandbox.commands.run("echo x", background=True)
    assert b"".join([piece.data async for piece in handle]) == b"x\n"
    assert (await handle.wait()).exit_code == 0


async def test_many_calls_at_once(async_sandbox: AsyncSandbox) -> None:
    results = await asyncio.gather(*(async_sandbox.commands.run(f"sleep 0.1; echo {number}") for number in range(20)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]


async def test_a_call_that_is_given_up_ends_its_command(async_sandbox: AsyncSandbox) -> None:
    begun = asyncio.Event()
    call = asyncio.create_task(async_sandbox.commands.run("echo begun; sleep 654", timeout=None, on_stdout=lambda _: begun.set()))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await async_sandbox.commands.run("while pgrep -f 'sleep 65[4]' >/dev/null; do sleep 0.05; done; echo ended")).stdout == "ended\n"


async def test_a_context_that_is_cancelled_still_ends_its_sandbox(service: LocalService) -> None:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        made: asyncio.Future[AsyncSandbox] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with await AsyncSandbox.create("base", client=client) as sandbox:
                made.set_result(sandbox)
                await asyncio.sleep(100)

        task = asyncio.create_task(work())
        sandbox = await made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.info()).state == "stopped"

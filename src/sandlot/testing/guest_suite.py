"""Tests of a guest through the host's ``Link``: files, processes, kernels and lifecycle.

The real guest and the scripted in-memory guest pass the suite. Tests of core can therefore use the scripted guest.
Subclass the suite and define two fixtures: ``harness`` returns a ``DriverHarness``, and ``sandbox`` returns a ``ConnectedSandbox`` whose guest is
awake. The tests of a class may share one sandbox, because each test uses its own paths and contexts.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from sandlot.link.client import Link
from sandlot.link.kernels import CellCall
from sandlot.link.processes import InputCall, ProcessCall
from sandlot.link.types import CellResult, ProcessResult
from sandlot.model.errors import ConflictError, InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.executions import CellError, Display, Output
from sandlot.model.ids import new_context_id, new_process_id
from sandlot.model.specs import CellSpec, ProcessSpec, User, shell_argv
from sandlot.protocol.streams import WINDOW_BYTES
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox


class GuestFilesSuite:
    """Tests of the guest's calls for files. Needs a fixture ``sandbox``."""

    async def test_file_is_written_read_in_parts_and_described(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        written = await link.files.write("/home/user/a/b/text", b"0123456789")
        assert (written.path, written.kind, written.size, written.mode) == ("/home/user/a/b/text", "file", 10, 0o644)
        assert await _read(link, "/home/user/a/b/text") == b"0123456789"
        assert await _read(link, "/home/user/a/b/text", offset=4, length=3) == b"456"
        assert await _read(link, "/home/user/a/b/text", offset=99) == b""
        await link.files.write("/home/user/a/b/text", b"new", mode=0o600)
        found = await link.files.stat("/home/user/a/b/text")
        assert (found.size, found.mode) == (3, 0o600)

    async def test_large_file_arrives_whole(self, sandbox: ConnectedSandbox) -> None:
        content = bytes(range(256)) * 4096
        await sandbox.link.files.write("/home/user/large", content)
        assert await _read(sandbox.link, "/home/user/large") == content

    async def test_write_in_place_keeps_the_mode_and_what_an_interrupted_upload_wrote(self, sandbox: ConnectedSandbox) -> None:
        link, path = sandbox.link, "/home/user/in-place/file"
        created = await link.files.write(path, b"old content", mode=0o666, in_place=True)
        assert (created.size, created.mode) == (11, 0o666)
        written = await link.files.write(path, b"new", mode=0o600, in_place=True)
        assert (written.size, written.mode) == (3, 0o666)
        assert await _read(link, path) == b"new"

        async def interrupted() -> AsyncIterator[bytes]:
            yield b"x" * 2 * WINDOW_BYTES
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await link.files.write(path, interrupted(), in_place=True)
        content = await _read(link, path)
        assert WINDOW_BYTES <= len(content) <= 2 * WINDOW_BYTES
        assert set(content) == set(b"x")

    async def test_hard_links_keep_one_content(self, sandbox: ConnectedSandbox) -> None:
        link, first, second = sandbox.link, "/home/user/linked/first", "/home/user/linked/second"
        await link.files.write(first, b"old content")
        await sandbox.run("ln", first, second)
        written = await link.files.write(first, b"new", mode=0o600)
        assert (written.size, written.mode) == (3, 0o600)
        assert await _read(link, second) == b"new"
        await link.files.write(second, b"er", append=True)
        assert await _read(link, first) == b"newer"

    async def test_links_of_a_path_are_resolved(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        await link.files.write("/home/user/resolved/file", b"1234")
        await sandbox.run("ln", "-s", "/home/user/resolved", "/home/user/resolved/folder")
        await sandbox.run("ln", "-s", "folder/file", "/home/user/resolved/link")
        await sandbox.run("ln", "-s", "nothing", "/home/user/resolved/dangling")
        found = await link.files.resolve("/home/user/resolved/folder/link")
        assert (found.path, found.name, found.kind, found.size) == ("/home/user/resolved/file", "file", "file", 4)
        assert (await link.files.resolve("/home/user/resolved/folder")).kind == "directory"
        with pytest.raises(NotFoundError):
            await link.files.resolve("/home/user/resolved/dangling")
        with pytest.raises(SandlotError):
            await link.files.resolve("/root/nothing")

    async def test_root_writes_files_with_attributes_for_the_user(self, sandbox: ConnectedSandbox) -> None:
        link, folder = sandbox.link, "/opt/owned"
        await link.files.write(f"{folder}/a/file", b"", user=User.ROOT, owner=User.USER, attributes={"user.one": "1", "user.two": "2"})
        await link.files.mkdir(f"{folder}/b/c", user=User.ROOT, owner=User.USER)
        for path in ("", "/a", "/a/file", "/b", "/b/c"):
            assert (await link.files.stat(folder + path)).uid == 1000, path
        assert (await link.files.stat("/opt")).uid == 0
        found = await link.files.stat(f"{folder}/a/file", attributes="user.o")
        assert found.attributes == {"user.one": "1"}
        listed = await link.files.list(f"{folder}/a", attributes="user.")
        assert [entry.attributes for entry in listed.entries] == [{"user.one": "1", "user.two": "2"}]
        assert (await link.files.stat(f"{folder}/a/file")).attributes == {}
        await link.files.write(f"{folder}/a/file", b"", user=User.ROOT, owner=User.USER, attributes={})
        assert (await link.files.stat(f"{folder}/a/file", attributes="user.")).attributes == {}

    async def test_folder_is_listed_by_name_and_in_pages(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        for name in ("c", "a", "b"):
            await link.files.write(f"/home/user/listed/{name}", b"")
        await link.files.mkdir("/home/user/listed/folder")
        whole = await link.files.list("/home/user/listed")
        assert [(entry.name, entry.kind) for entry in whole.entries] == [("a", "file"), ("b", "file"), ("c", "file"), ("folder", "directory")]
        page = await link.files.list("/home/user/listed", limit=2, offset=1)
        assert ([entry.name for entry in page.entries], page.more) == (["b", "c"], True)

    async def test_files_are_moved_and_removed(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        await link.files.write("/home/user/moved/one", b"1")
        await link.files.write("/home/user/moved/two", b"2")
        with pytest.raises(ConflictError):
            await link.files.move("/home/user/moved/one", "/home/user/moved/two")
        await link.files.move("/home/user/moved/one", "/home/user/moved/two", overwrite=True)
        assert await _read(link, "/home/user/moved/two") == b"1"
        with pytest.raises(SandlotError):
            await link.files.remove("/home/user/moved")
        assert await link.files.remove("/home/user/moved", recursive=True) == 2
        with pytest.raises(NotFoundError):
            await link.files.stat("/home/user/moved")

    async def test_refused_file_calls_have_error_codes(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        await link.files.write("/home/user/refused/file", b"")
        codes = {}
        for name, call in {
            "missing": link.files.stat("/home/user/nothing"),
            "relative": link.files.stat("home"),
            "folder": link.files.write("/home/user/refused", b""),
            "stat below a file": link.files.stat("/home/user/refused/file/below"),
            "no folder": link.files.list("/home/user/refused/file"),
            "below a file": link.files.write("/home/user/refused/file/below", b""),
            "folders below a file": link.files.mkdir("/home/user/refused/file/below/more"),
            "not empty": link.files.remove("/home/user/refused"),
            "into itself": link.files.move("/home/user/refused", "/home/user/refused/inner"),
            "folder in place": link.files.write("/home/user/refused", b"", in_place=True),
            "denied": link.files.write("/root/file", b""),
            "denied in place": link.files.write("/etc/passwd", b"", in_place=True),
            "exists": link.files.mkdir("/home/user/refused/file", parents=False),
            "file with parents": link.files.mkdir("/home/user/refused/file"),
        }.items():
            with pytest.raises(SandlotError) as refused:
                await call
            codes[name] = str(refused.value.code)
        assert codes == {
            "missing": "path_not_found",
            "relative": "path_invalid",
            "folder": "path_is_directory",
            "stat below a file": "path_not_directory",
            "no folder": "path_not_directory",
            "below a file": "path_not_directory",
            "folders below a file": "path_not_directory",
            "not empty": "path_not_empty",
            "into itself": "invalid_request",
            "folder in place": "path_is_directory",
            "denied": "permission_denied",
            "denied in place": "permission_denied",
            "exists": "path_exists",
            "file with parents": "path_exists",
        }


class GuestProcessesSuite:
    """Tests of the guest's calls for processes. Needs a fixture ``sandbox``."""

    async def test_process_has_output_exit_code_environment_and_folder(self, sandbox: ConnectedSandbox) -> None:
        done = await sandbox.run("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
        spec = ProcessSpec(shell_argv("echo $WORD; pwd; whoami"), env={"WORD": "x y"}, cwd="/tmp")  # noqa: S108
        assert await _text(await sandbox.link.processes.start(spec)) == "x y\n/tmp\nuser\n"
        as_root = ProcessSpec(("id", "-u"), user=User.ROOT)
        assert await _text(await sandbox.link.processes.start(as_root)) == "0\n"

    async def test_refused_starts_have_error_codes(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        for call, code in (
            (link.processes.start(ProcessSpec(("no-such-program",))), "program_not_found"),
            (link.processes.start(ProcessSpec(("true",), cwd="/no/such/folder")), "working_directory_not_found"),
            (link.processes.start(ProcessSpec(("true",), cwd="/etc/passwd")), "path_not_directory"),
            (link.kernels.create("ctx-missing", "bash", cwd="/no/such/folder"), "working_directory_not_found"),
            (link.kernels.create("ctx-file", "bash", cwd="/etc/passwd"), "path_not_directory"),
        ):
            with pytest.raises(SandlotError) as refused:
                await call
            assert refused.value.code == code

    async def test_standard_input_is_delivered_and_ended(self, sandbox: ConnectedSandbox) -> None:
        assert (await sandbox.run("cat", stdin=b"x" * 300_000)).stdout == "x" * 300_000

    async def test_received_input_is_reported_to_its_call(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        process = await link.processes.start(ProcessSpec(("cat",), stdin=True))
        async with await link.processes.open_input(process.id) as first:
            assert (first.is_open, first.stdin_bytes) == (True, 0)
            await first.write(b"one ")
            assert await first.arrived()
            assert first.stdin_bytes == 4
        async with await link.processes.open_input(process.id) as second, await link.processes.open_input(process.id) as third:
            assert second.stdin_bytes == 4
            await second.write(b"two")
            assert await second.arrived()
            assert (second.arrived_bytes, second.stdin_bytes) == (3, 7)
            second.close_stdin()
            await second.wait()
            await third.wait()
            assert not await _writes(third)
        assert await _text(process) == "one two"
        assert not (await link.processes.open_input(process.id)).is_open
        with pytest.raises(NotFoundError):
            await link.processes.open_input(new_process_id())

    async def test_input_that_is_not_read_is_reported_up_to_the_window(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        process = await link.processes.start(ProcessSpec(("sleep", "1000"), stdin=True))
        async with await link.processes.open_input(process.id) as stdin:
            writing = asyncio.create_task(stdin.write(b"x" * 1_000_000))
            # The window of the stream, and in a real guest also the pipe of the process.
            while stdin.arrived_bytes < WINDOW_BYTES:  # noqa: ASYNC110 - reports have no event of their own
                await asyncio.sleep(0.001)
            assert not writing.done()
            await link.processes.signal(process.id, int(signal.SIGKILL))
            await stdin.wait()
            with pytest.raises(ConflictError):
                await writing
        await _result(process)

    async def test_input_ends_with_its_process(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        without = await link.processes.start(ProcessSpec(("sleep", "1000")))
        assert not (await link.processes.open_input(without.id)).is_open
        process = await link.processes.start(ProcessSpec(("sleep", "1000"), stdin=True))
        stdin = await link.processes.open_input(process.id)
        for call in (without, process):
            await link.processes.signal(call.id, int(signal.SIGKILL))
        await stdin.wait()
        for call in (without, process):
            await _result(call)

    async def test_process_is_signalled_and_timed_out(self, sandbox: ConnectedSandbox) -> None:
        call = await sandbox.link.processes.start(ProcessSpec(("sleep", "1000")))
        assert await sandbox.link.processes.signal(call.id, int(signal.SIGTERM))
        ended = await _result(call)
        assert (ended.reason, ended.exit_code, ended.signal) == ("signalled", None, int(signal.SIGTERM))
        assert not await sandbox.link.processes.signal(call.id, int(signal.SIGTERM))
        timed_out = await _result(await sandbox.link.processes.start(ProcessSpec(("sleep", "1000"), timeout_s=0.05)))
        assert (timed_out.reason, timed_out.signal) == ("timeout", int(signal.SIGKILL))

    async def test_same_id_is_the_same_process_and_its_output_is_read_from_an_offset(self, sandbox: ConnectedSandbox) -> None:
        id_ = new_process_id()
        spec = ProcessSpec(shell_argv("echo once; sleep 1000"))
        first = await sandbox.link.processes.start(spec, id=id_)
        assert await _next_output(first) == b"once\n"
        pid = (await sandbox.link.processes.get(id_)).pid
        again = await sandbox.link.processes.start(spec, id=id_)
        assert await _next_output(again) == b"once\n"
        attached = await sandbox.link.processes.attach(id_, stdout_from=3)
        assert await _next_output(attached) == b"e\n"
        assert [info.pid for info in await sandbox.link.processes.list() if info.process == id_] == [pid]
        with pytest.raises(ConflictError):
            await sandbox.link.processes.forget(id_)
        await sandbox.link.processes.signal(id_, int(signal.SIGKILL))
        assert (await sandbox.link.processes.wait(id_)).signal == int(signal.SIGKILL)
        await sandbox.link.processes.forget(id_)
        with pytest.raises(NotFoundError):
            await sandbox.link.processes.get(id_)

    async def test_missing_program_or_directory_is_an_error(self, sandbox: ConnectedSandbox) -> None:
        for spec in (ProcessSpec(("no-such-program",)), ProcessSpec(("true",), cwd="/no/such/folder")):
            with pytest.raises(NotFoundError):
                await _result(await sandbox.link.processes.start(spec))

    async def test_hidden_process_is_not_listed(self, sandbox: ConnectedSandbox) -> None:
        call = await sandbox.link.processes.start(ProcessSpec(("sleep", "1000"), hidden=True))
        assert call.id not in {info.process for info in await sandbox.link.processes.list()}
        await sandbox.link.processes.signal(call.id, int(signal.SIGKILL))
        await _result(call)


class GuestKernelsSuite:
    """Tests of code execution: contexts and their cells. Needs a fixture ``sandbox``."""

    async def test_cell_prints_displays_its_last_value_and_keeps_variables(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        printed, displays, errors, first = await _cell(await link.kernels.execute(CellSpec("x = 41\nprint('hi')\nx + 1")))
        assert (printed, displays, errors, first.status) == ("hi\n", ["42"], [], "ok")
        assert first.execution_count is not None
        printed, displays, _, result = await _cell(await link.kernels.execute(CellSpec("x = x + 1; print(x);")))
        assert (printed, displays, result.execution_count) == ("42\n", [], first.execution_count + 1)
        await link.kernels.restart()
        _, _, errors, result = await _cell(await link.kernels.execute(CellSpec("x")))
        assert (errors, result.status, result.execution_count) == (["NameError"], "error", 1)

    async def test_failed_cell_reports_its_error(self, sandbox: ConnectedSandbox) -> None:
        _, _, errors, result = await _cell(await sandbox.link.kernels.execute(CellSpec("1 / 0")))
        assert (errors, result.status) == (["ZeroDivisionError"], "error")

    async def test_cell_is_timed_out_and_interrupted_and_the_kernel_survives(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        await _cell(await link.kernels.execute(CellSpec("import time; kept = 1")))
        _, _, errors, result = await _cell(await link.kernels.execute(CellSpec("time.sleep(1000)", timeout_s=0.3)))
        assert (errors, result.status) == (["KeyboardInterrupt"], "timeout")
        call = await link.kernels.execute(CellSpec("print('begun'); time.sleep(1000)"))
        assert await _next_output(call) == b"begun\n"
        waiting = await link.kernels.execute(CellSpec("kept + 1"))
        assert await link.kernels.interrupt()
        assert (await _cell(call))[3].status == "error"
        assert (await _cell(waiting))[1] == ["2"]
        assert not await link.kernels.interrupt()

    async def test_contexts_are_separate_and_have_their_environment(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        context = new_context_id()
        made = await link.kernels.create(context, "python", env={"WORD": "mine"})
        assert (made.language, made.kernel) == ("python", context)
        printed, *_ = await _cell(await link.kernels.execute(CellSpec("import os; y = 5; print(os.environ['WORD'])", context=context)))
        assert printed == "mine\n"
        assert (await _cell(await link.kernels.execute(CellSpec("y"))))[2] == ["NameError"]
        with pytest.raises(ConflictError):
            await link.kernels.create(context, "bash")
        assert {context, "default"} <= {info.kernel for info in await link.kernels.list()}
        await link.kernels.remove(context)
        with pytest.raises(NotFoundError):
            await (await link.kernels.execute(CellSpec("y", context=context))).result()
        with pytest.raises((InvalidRequestError, SandlotError)):
            await link.kernels.create("other", "cobol")

    async def test_bash_context_keeps_variables_and_reports_its_exit_status(self, sandbox: ConnectedSandbox) -> None:
        link = sandbox.link
        await _cell(await link.kernels.execute(CellSpec("WORD=kept", language="bash")))
        printed, _, errors, result = await _cell(await link.kernels.execute(CellSpec("echo $WORD; false", language="bash")))
        assert (printed, errors, result.status) == ("kept\n", ["ExitStatus"], "error")

    async def test_same_id_is_the_same_cell_and_is_attached_to(self, sandbox: ConnectedSandbox) -> None:
        link, id_ = sandbox.link, new_process_id()
        await _cell(await link.kernels.execute(CellSpec("once = globals().get('once', 0) + 1\nprint('text')\nonce"), id=id_))
        assert (await _cell(await link.kernels.execute(CellSpec("once = globals().get('once', 0) + 1\nprint('text')\nonce"), id=id_)))[1] == ["1"]
        printed, displays, _, result = await _cell(await link.kernels.attach(id_, stdout_from=2))
        assert (printed, displays, result.status) == ("xt\n", ["1"], "ok")


class GuestLifecycleSuite:
    """Tests of a guest's sleep, wake, deadline and reconnection. Needs the fixtures ``harness`` and ``sandbox``. Each test leaves its guest awake."""

    async def test_info_reports_identity_and_number_of_tasks(self, sandbox: ConnectedSandbox) -> None:
        call = await sandbox.link.processes.start(ProcessSpec(("sleep", "1000")))
        info = await sandbox.link.info()
        assert info.identity == "sb-test"
        assert info.tasks >= 1
        await sandbox.link.processes.signal(call.id, int(signal.SIGKILL))
        await _result(call)

    async def test_quiesced_guest_serves_only_wake_and_keeps_results_for_the_same_identity(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        async with connect_sandbox(instance) as sandbox:
            await sandbox.link.files.write("/home/user/file", b"kept")
            call = await sandbox.link.processes.start(ProcessSpec(shell_argv("echo before")))
            await _result(call)
            await sandbox.link.quiesce()
            assert sandbox.link.asleep
        link = await Link.open(await instance.connect())
        assert link.asleep
        with pytest.raises(SandlotError):
            await link.info()
        await _wake(link, "sb-test", "same")
        assert (await link.processes.get(call.id)).exit_code == 0
        await link.quiesce()
        await _wake(link, "sb-other", "other")
        with pytest.raises(NotFoundError):
            await link.processes.get(call.id)
        assert await _read(link, "/home/user/file") == b"kept"
        with pytest.raises(SandlotError):
            await _wake(link, "sb-other", "again")
        await link.aclose()
        await instance.destroy()

    async def test_armed_guest_is_asleep_at_the_next_handshake(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        async with connect_sandbox(instance) as sandbox:
            await sandbox.link.checkpoint(armed=True)
        link = await Link.open(await instance.connect())
        assert link.asleep
        await _wake(link, "sb-test", "sandbox")
        await link.aclose()
        again = await Link.open(await instance.connect())
        assert not again.asleep
        await again.aclose()
        await instance.destroy()

    async def test_deadline_ends_the_guest_by_itself(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            await sandbox.link.set_deadline(1000)
            await sandbox.link.set_deadline(0.05)
            async with asyncio.timeout(30):
                assert (await sandbox.instance.wait()).reason == "exited"
            with pytest.raises(SandboxEndedError):
                await sandbox.link.info()

    async def test_reopened_link_attaches_to_a_running_process(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        async with connect_sandbox(instance) as sandbox:
            call = await sandbox.link.processes.start(ProcessSpec(shell_argv("echo one; cat"), stdin=True))
            assert await _next_output(call) == b"one\n"
        async with connect_sandbox(instance) as sandbox:
            attached = await sandbox.link.processes.attach(call.id, stdout_from=4)
            await attached.write(b"two")
            attached.close_stdin()
            assert await _text(attached) == "two"
        await instance.destroy()


class GuestSuite(GuestFilesSuite, GuestProcessesSuite, GuestKernelsSuite, GuestLifecycleSuite):
    """All tests for a guest. Name the subclass ``Test...``."""


async def _wake(link: Link, identity: str, hostname: str) -> None:
    await link.wake(identity=identity, hostname=hostname, env={}, pids=64, deadline_s=None)


async def _read(link: Link, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
    reader = await link.files.read(path, offset=offset, length=length)
    return b"".join([piece async for piece in reader])


async def _text(call: ProcessCall) -> str:
    async with call:
        return b"".join([item.data async for item in call if isinstance(item, Output)]).decode()


async def _writes(call: InputCall) -> bool:
    try:
        await call.write(b"late")
    except ConflictError:
        return False
    return True


async def _result(call: ProcessCall) -> ProcessResult:
    async with call:
        async for _ in call:
            pass
        return await call.result()


async def _next_output(call: ProcessCall | CellCall) -> bytes:
    async for item in call:
        if isinstance(item, Output):
            return item.data
    raise AssertionError("the process or cell ended before it wrote any output")


async def _cell(call: CellCall) -> tuple[str, list[str], list[str], CellResult]:
    """Wait until a cell has ended. Return all printed text (stdout and stderr), the displayed texts, the error names, and the result."""
    printed, displays, errors = bytearray(), list[str](), list[str]()
    async for item in call:
        if isinstance(item, Output):
            printed += item.data
        elif isinstance(item, Display):
            displays.append(str(item.data["text/plain"]))
        elif isinstance(item, CellError):
            errors.append(item.name)
    return printed.decode(), displays, errors, await call.result()

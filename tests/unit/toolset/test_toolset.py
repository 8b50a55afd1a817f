"""Tool calls in a sandbox of the in-memory service, through the SDK and on the node."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import UnavailableError
from sandlot.model.faults import Fault
from sandlot.testing.memory.guest import MemoryGuest
from sandlot.testing.memory.kernels import Cell
from sandlot.toolset.backend import ToolBackend
from sandlot.toolset.output import Image, Text, ToolResult
from sandlot.toolset.tools import READ_FILE, RUN_CODE
from sandlot.toolset.toolset import Toolset, without_large_images
from tests.support.cases import cases
from tests.support.service import Bench
from tests.support.until import until
from tests.unit.toolset.test_images import png


async def call(sandbox: ToolBackend, name: str, toolset: Toolset | None = None, **arguments: Any) -> ToolResult:  # noqa: ANN401 - JSON
    async def opened() -> ToolBackend:
        return sandbox

    return await (toolset or Toolset()).call(name, arguments, opened)


async def test_code_keeps_variables_and_returns_the_last_value(sandbox: ToolBackend) -> None:
    assert (await call(sandbox, "run_code", code="x = 6\nprint('set')")).text == "set"
    result = await call(sandbox, "run_code", code="x * 7")
    assert (result.text, result.is_error, result.fault) == ("42", False, None)
    assert {"status": "ok", "exit_code": 0, "stdout": "", "results": ["42"], "error": None}.items() <= result.structured.items()


async def test_exception_is_a_result_with_its_traceback(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "run_code", code="1 / 0")
    assert "ZeroDivisionError" in result.text
    assert (result.is_error, result.fault, result.structured["exit_code"]) == (False, Fault.CODE, 1)


async def test_command_has_output_and_exit_code(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "run_command", command="echo out; echo err >&2; exit 3")
    assert result.text == "out\n[stderr]\nerr\n[exit code 3]"
    assert (result.is_error, result.structured["exit_code"]) == (False, 3)


@pytest.mark.parametrize("tool, arguments", [("run_code", {"code": "1"}), ("run_command", {"command": "true"})])
async def test_result_names_its_execution(at: Bench, sandbox: ToolBackend, tool: str, arguments: dict[str, Any]) -> None:
    result = await call(sandbox, tool, **arguments)
    assert result.execution == result.structured["execution"]
    assert (await at.node.history.execution(OPERATOR, result.execution or "")).sandbox == sandbox.id
    assert (await call(sandbox, "read_file", path="/no-such-file")).execution is None


async def test_command_starts_in_the_given_directory(sandbox: ToolBackend) -> None:
    await call(sandbox, "run_command", command="mkdir -p /workspace/sub")
    assert (await call(sandbox, "run_command", command="pwd", cwd="/workspace/sub")).text == "/workspace/sub"


async def test_timeout_is_reported_with_its_length(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "run_command", command="sleep 60", timeout=1)
    assert "timed out after 1 s" in result.text
    assert result.structured["status"] == "timeout"


async def test_background_command_returns_its_process_and_the_file_of_its_output(at: Bench, sandbox: ToolBackend) -> None:
    result = await call(sandbox, "run_command", command="echo begun; sleep 1000", background=True)
    (process,) = await at.node.processes.list(OPERATOR, sandbox.id)
    assert result.structured["pid"] == process.pid
    file = result.structured["output_file"]
    assert file in result.text
    assert process.argv[-1].endswith(f"exec >{file} 2>&1 </dev/null\necho begun; sleep 1000")


async def test_failed_installation_is_a_result(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "install_packages", packages=["numpy"])
    assert result.structured["exit_code"] != 0
    assert result.fault is Fault.CODE
    refused = await call(sandbox, "install_packages", packages=["--evil"])
    assert (refused.is_error, refused.fault) == (True, Fault.REQUEST)
    assert "option" in refused.text


async def test_file_is_written_listed_read_and_edited(sandbox: ToolBackend) -> None:
    written = await call(sandbox, "write_file", path="/workspace/dir/a.txt", content="one\ntwö\nthree\n")
    assert written.text == "Wrote 15 bytes to /workspace/dir/a.txt."
    assert (await call(sandbox, "list_files", path="/workspace/dir")).text == "a.txt  15 bytes"
    assert (await call(sandbox, "read_file", path="/workspace/dir/a.txt")).text == "one\ntwö\nthree"
    part = await call(sandbox, "read_file", path="/workspace/dir/a.txt", offset=2, limit=1)
    assert part.text == "twö\n[These are lines 2 to 2. The file has more: read on with offset 3.]"
    edited = await call(sandbox, "edit_file", path="/workspace/dir/a.txt", old_text="twö", new_text="2")
    assert edited.text == "Replaced 1 occurrence in /workspace/dir/a.txt."
    assert (await call(sandbox, "read_file", path="/workspace/dir/a.txt")).text == "one\n2\nthree"


@cases(
    "old, new, everywhere, word",
    [("c", "d", False, "does not occur"), ("a", "b", False, "occurs 2 times"), ("a", "a", True, "equal")],
)
async def test_edit_that_is_not_clear_changes_nothing(
    sandbox: ToolBackend,
    old: str,
    new: str,
    everywhere: bool,  # noqa: FBT001 - a value of the table
    word: str,
) -> None:
    await call(sandbox, "write_file", path="f", content="a a")
    result = await call(sandbox, "edit_file", path="f", old_text=old, new_text=new, replace_all=everywhere)
    assert result.is_error
    assert word in result.text
    assert (await call(sandbox, "read_file", path="f")).text == "a a"


async def test_all_occurrences_are_replaced_on_demand(sandbox: ToolBackend) -> None:
    await call(sandbox, "write_file", path="f", content="a a")
    result = await call(sandbox, "edit_file", path="f", old_text="a", new_text="", replace_all=True)
    assert result.structured["replaced"] == 2
    assert (await call(sandbox, "read_file", path="f")).text == " "


async def test_files_that_are_no_text_are_explained(sandbox: ToolBackend) -> None:
    await sandbox.write_file("binary", b"\x7fELF\0")
    await sandbox.write_file("latin", b"caf\xe9")
    await sandbox.write_file("empty", b"")
    assert "not a text file" in (await call(sandbox, "read_file", path="binary")).text
    assert "not a text file" in (await call(sandbox, "edit_file", path="latin", old_text="c", new_text="d")).text
    assert (await call(sandbox, "read_file", path="empty")).text == "(the file is empty)"
    assert "has only 0 lines" in (await call(sandbox, "read_file", path="empty", offset=9)).text
    missing = await call(sandbox, "read_file", path="missing")
    assert missing.is_error
    assert "path_not_found" in missing.text


async def test_image_file_is_shown(sandbox: ToolBackend) -> None:
    content = png(3, 4)
    await sandbox.write_file("chart.png", content)
    result = await call(sandbox, "read_file", path="chart.png")
    (image,) = result.images
    assert (image.media_type, base64.b64decode(image.data)) == ("image/png", content)
    assert "images cannot be shown" in (await call(sandbox, "read_file", Toolset(images=False), path="chart.png")).text


async def test_charts_are_images_or_files_of_the_sandbox(sandbox: ToolBackend, guest: Callable[[], MemoryGuest]) -> None:
    content = png(3, 4)

    async def plot(cell: Cell) -> None:
        cell.display({"image/png": content, "text/plain": "<Figure>"})

    guest().kernels.scripts = {"plot()": plot}
    result = await call(sandbox, "run_code", code="plot()")
    assert [base64.b64decode(each.data) for each in result.images] == [content]
    saved = await call(sandbox, "run_code", Toolset(images=False), code="plot()")
    assert saved.images == ()
    path = saved.text.partition("image saved at ")[2].rstrip("]")
    stream = await sandbox.read_file(path)
    assert b"".join([chunk async for chunk in stream]) == content


async def test_images_beyond_a_size_are_files_of_the_sandbox(sandbox: ToolBackend) -> None:
    data = [base64.b64encode(png(size, size)).decode() for size in (2, 900, 3)]
    images = [Image("image/png", each) for each in data]
    fitted = await without_large_images(sandbox, ToolResult((Text("done"), *images), {"status": "ok"}), len(data[0]) + len(data[2]))
    assert fitted.images == (images[0], images[2])
    assert [type(each) for each in fitted.content] == [Text, Image, Text, Image]
    (path,) = fitted.structured["image_files"]
    assert f"image saved at {path}" in fitted.text
    stream = await sandbox.read_file(path)
    assert b"".join([chunk async for chunk in stream]) == png(900, 900)


async def test_long_output_is_cut_in_the_middle_and_kept_in_a_file(sandbox: ToolBackend) -> None:
    toolset = Toolset(max_output_chars=1000)
    result = await call(sandbox, "run_code", toolset, code="print('start'); print('\\n'.join(map(str, range(5000)))); print('end')")
    assert result.text.startswith("start\n0\n1\n")
    assert result.text.endswith("4999\nend")
    assert len(result.text) < 1400
    file = result.structured["output_file"]
    assert file in result.text
    assert (await call(sandbox, "read_file", path=file, offset=2502, limit=1)).text.startswith("2500\n")


async def test_url_of_a_port_opens_a_preview(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "get_url", port=8000)
    if result.is_error:  # the service of the SDK has no previews in this test
        assert "unsupported" in result.text
        assert "preview" in result.text
    else:
        assert f"8000-{sandbox.id}" in result.structured["url"]


@cases(
    "name, arguments, words",
    [
        ("run_python", "{}", ["no tool 'run_python'", "run_code"]),
        ("run_code", '{"code": "print(1)"', ["not valid JSON"]),
        ("run_code", {"code": 7}, ["`code` must be a text"]),
        ("run_code", "[]", ["JSON object"]),
        ("write_file", {"path": "a", "content": "x" * 2_097_152}, ["2,097,", "at most 1,048,576"]),
        ("run_code", {"code": "1", "language": "cobol"}, ["python, javascript, typescript, bash, r"]),
    ],
)
async def test_wrong_call_is_answered_without_opening_a_sandbox(name: str, arguments: object, words: list[str]) -> None:
    async def opened() -> ToolBackend:
        raise AssertionError

    result = await Toolset().call(name, arguments, opened)
    assert (result.is_error, result.fault, result.sandbox_ended) == (True, Fault.REQUEST, False)
    assert [word for word in words if word not in result.text] == []


async def test_sandbox_that_cannot_be_created_is_a_result() -> None:
    async def opened() -> ToolBackend:
        raise UnavailableError("There is no room.", hint="Try later.")

    result = await Toolset().call("run_code", {"code": "1"}, opened)
    assert result.is_error
    assert "There is no room. Try later." in result.text


async def test_tools_that_are_not_chosen_cannot_be_called(sandbox: ToolBackend) -> None:
    result = await call(sandbox, "run_command", Toolset([RUN_CODE, READ_FILE]), command="true")
    assert "The tools are run_code, read_file." in result.text


async def test_ended_sandbox_is_reported_by_each_tool(at: Bench, sandbox: ToolBackend) -> None:
    await at.node.sandboxes.kill(OPERATOR, sandbox.id)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("run_code", {"code": "1"}),
        ("run_command", {"command": "true"}),
        ("run_command", {"command": "true", "background": True}),
        ("install_packages", {"packages": ["a"]}),
        ("read_file", {"path": "a"}),
        ("write_file", {"path": "a", "content": ""}),
        ("edit_file", {"path": "a", "old_text": "a", "new_text": ""}),
        ("list_files", {}),
    ]
    for name, arguments in calls:
        result = await call(sandbox, name, **arguments)
        assert (result.is_error, result.sandbox_ended) == (True, True), name
        assert "The sandbox is gone" in result.text


async def test_output_is_passed_on_while_the_program_runs(sandbox: ToolBackend) -> None:
    seen: list[str] = []

    async def opened() -> ToolBackend:
        return sandbox

    running = asyncio.create_task(Toolset().call("run_command", {"command": "echo ä; sleep 1000"}, opened, on_output=seen.append))
    await until(lambda: "".join(seen) == "ä\n")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelled_call_ends_its_program_and_frees_the_context(sandbox: ToolBackend) -> None:
    seen: list[str] = []

    async def opened() -> ToolBackend:
        return sandbox

    code = {"code": "import time\nprint('begun')\ntime.sleep(1000)"}
    running = asyncio.create_task(Toolset().call("run_code", code, opened, on_output=seen.append))
    await until(lambda: "".join(seen) == "begun\n")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await call(sandbox, "run_code", code="'free'")).text == "'free'"

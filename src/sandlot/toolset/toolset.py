"""Run the tool calls of a model in a sandbox.

Invariants:
- Each call has a result: wrong arguments, an unknown tool and an error of the sandbox are results with ``is_error`` that say what to do.
- The sandbox is opened only for a call whose arguments are right.
- What a sandbox sends is only text and checked images. It is never executed, unpickled or rendered here.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final

from sandlot.model.errors import SandlotError
from sandlot.model.streams import Stream
from sandlot.toolset import output, text_files
from sandlot.toolset.backend import OnOutput, RunResult, ToolBackend
from sandlot.toolset.images import MAX_IMAGE_BYTES, decode_image, media_type
from sandlot.toolset.output import MAX_OUTPUT_CHARS, Content, Image, Text, ToolResult
from sandlot.toolset.parameters import ArgumentsError, parse_arguments
from sandlot.toolset.tools import (
    EDIT_FILE,
    GET_URL,
    INSTALL_PACKAGES,
    LIST_FILES,
    READ_FILE,
    RUN_CODE,
    RUN_COMMAND,
    TOOLS,
    WRITE_FILE,
    Tool,
)

OUTPUT_DIRECTORY: Final = "/tmp/tool-output"  # noqa: S108 - in the sandbox
"""Directory in the sandbox for output that is too long for a result, for images that cannot be shown, and for the output of background commands."""
MAX_EDITED_BYTES: Final = 4 * 1024 * 1024

Arguments = Mapping[str, Any]
OpenSandbox = Callable[[], Awaitable[ToolBackend]]
Handler = Callable[[ToolBackend, Arguments, OnOutput | None], Awaitable[ToolResult]]


class Toolset:
    """A set of tools, and the form of their results.

    Args:
        tools: Tools that may be called. Default: all.
        max_output_chars: Largest text of a result, in characters. Of longer output the middle is left out, and the note there names a file in the
            sandbox that has all of it.
        images: Return images. If False, images are saved in the sandbox, and the text names their paths.
    """

    def __init__(self, tools: Iterable[Tool] | None = None, *, max_output_chars: int = MAX_OUTPUT_CHARS, images: bool = True) -> None:
        self.tools: Mapping[str, Tool] = TOOLS if tools is None else {each.name: each for each in tools}
        self._max_chars = max_output_chars
        self._has_images = images
        self._handlers: Mapping[str, Handler] = {
            RUN_CODE.name: self._run_code,
            RUN_COMMAND.name: self._run_command,
            INSTALL_PACKAGES.name: self._install_packages,
            READ_FILE.name: self._read_file,
            WRITE_FILE.name: _write_file,
            EDIT_FILE.name: _edit_file,
            LIST_FILES.name: self._list_files,
            GET_URL.name: _get_url,
        }

    async def call(self, name: str, arguments: object, open_sandbox: OpenSandbox, *, on_output: OnOutput | None = None) -> ToolResult:
        """Run a tool call. If the caller is cancelled, the program of the call is ended.

        Args:
            name: Name of the tool, as the model sent it.
            arguments: Arguments, as JSON text or parsed.
            open_sandbox: Returns the sandbox, and may create it. Its errors become results.
            on_output: Called with each piece of output while a program runs.
        """
        tool = self.tools.get(name)
        if tool is None:
            return output.invalid_call(f"There is no tool {name[:60]!r}. The tools are {', '.join(self.tools)}.")
        try:
            parsed = parse_arguments(tool.parameters, arguments)
        except ArgumentsError as error:
            return output.invalid_call(str(error))
        try:
            return await self._handlers[name](await open_sandbox(), parsed, on_output)
        except SandlotError as error:
            return output.error_result(error)

    async def _run_code(self, sandbox: ToolBackend, arguments: Arguments, on_output: OnOutput | None) -> ToolResult:
        timeout_s = arguments["timeout"]
        run = await sandbox.run_code(arguments["code"], arguments["language"], timeout_s=timeout_s, on_output=on_output)
        return await self._run_result(sandbox, run, timeout_s)

    async def _run_command(self, sandbox: ToolBackend, arguments: Arguments, on_output: OnOutput | None) -> ToolResult:
        command, cwd, timeout_s = arguments["command"], arguments["cwd"], arguments["timeout"]
        if arguments["background"]:
            return await _start_command(sandbox, command, cwd)
        return await self._run_result(sandbox, await sandbox.run_command(command, cwd=cwd, timeout_s=timeout_s, on_output=on_output), timeout_s)

    async def _install_packages(self, sandbox: ToolBackend, arguments: Arguments, on_output: OnOutput | None) -> ToolResult:
        run = await sandbox.install_packages(arguments["packages"], arguments["manager"], on_output=on_output)
        return await self._run_result(sandbox, run, None)

    async def _run_result(self, sandbox: ToolBackend, run: RunResult, timeout_s: float | None) -> ToolResult:
        whole = output.run_text(run, timeout_s)
        images, problems = output.shown_images(run.results)
        if not self._has_images:
            problems, images = (*problems, *[_image_note(await _save_image(sandbox, each)) for each in images]), ()
        file = None if len(whole) <= self._max_chars else await _save(sandbox, f"{run.id or secrets.token_hex(4)}.txt", whole.encode())
        text = output.shorten(whole, self._max_chars, _rest_note(file))
        content: list[Content] = [Text("\n".join((text, *problems))), *images]
        structured = output.run_structure(run, self._max_chars, file)
        return ToolResult(tuple(content), structured, is_error=output.run_is_error(run), fault=run.fault, execution=run.id or None)

    async def _read_file(self, sandbox: ToolBackend, arguments: Arguments, _: OnOutput | None) -> ToolResult:
        path, first, limit = arguments["path"], arguments["offset"], arguments["limit"]
        async with aclosing(await sandbox.read_file(path)) as stream:
            head = await anext(stream, b"")
            if media_type(head) is not None:
                return await self._read_image(path, head, stream)
            try:
                lines = await text_files.read_lines(_chain(head, stream), first, limit, self._max_chars)
            except text_files.NotTextError:
                return output.invalid_call(f"{path} is not a text file. Use run_command or run_code to look into it.")
            except text_files.TooFarError:
                return output.invalid_call(f"Line {first} of {path} is too far from its beginning. Use run_command with `sed -n`.")
        if lines.total_lines is not None:
            return output.invalid_call(f"{path} has only {lines.total_lines} lines, so there is no line {first}.")
        last = first + lines.count - 1
        note = ""
        if lines.is_cut:
            note = f"\n[Line {last} is longer than {self._max_chars:,} characters, and its rest is left out. Use run_command with `cut -c`.]"
        if lines.more:
            note += f"\n[These are lines {first} to {last}. The file has more: read on with offset {last + 1}.]"
        structured = {"path": path, "content": lines.text, "first_line": first, "last_line": last, "more": lines.more}
        return output.text_result((lines.text or "(the file is empty)") + note, structured)

    async def _read_image(self, path: str, head: bytes, stream: Stream[bytes]) -> ToolResult:
        if not self._has_images:
            return output.invalid_call(f"{path} is an image, and images cannot be shown here. Use run_code to compute its properties.")
        content = bytearray(head)
        async for chunk in stream:
            content += chunk
            if len(content) > MAX_IMAGE_BYTES:
                break
        image = output.checked_image(bytes(content))
        if isinstance(image, str):
            return output.invalid_call(f"The image {path} cannot be shown: {image}. Use run_code to make a smaller copy.")
        return ToolResult((Text(f"Image {path} ({image.media_type})"), image), {"path": path, "media_type": image.media_type})

    async def _list_files(self, sandbox: ToolBackend, arguments: Arguments, _: OnOutput | None) -> ToolResult:
        path = arguments["path"]
        found = await sandbox.list_files(path)
        note = "Use run_command with `find` or `ls` to see them."
        text = output.shorten(output.list_text(found.files, more=found.more), self._max_chars, note)
        entries = [{"name": each.name, "kind": each.kind, "size_bytes": each.size_bytes} for each in found.files]
        return output.text_result(text, {"path": path, "entries": entries, "more": found.more})


async def without_large_images(sandbox: ToolBackend, result: ToolResult, max_chars: int) -> ToolResult:
    """Return a result whose images fit into a message. Each other image becomes a text that names its file in the sandbox.

    Args:
        sandbox: Sandbox of the result. Images that code has returned are saved there.
        result: Result of a call.
        max_chars: Largest size of all images together, in characters of base64.

    Returns:
        The result. Its structured form has the files of the replaced images as ``image_files``.
    """
    content: list[Content] = []
    files: list[str] = []
    left = max_chars
    for each in result.content:
        if isinstance(each, Text):
            content.append(each)
        elif len(each.data) <= left:
            left -= len(each.data)
            content.append(each)
        else:
            path = result.structured.get("path") or await _save_image(sandbox, each)
            files += [] if path is None else [path]
            reason = f"[an image of {len(each.data) * 3 // 4:,} bytes is not shown: at most {max(left, 0) * 3 // 4:,} bytes fit into this message]"
            advice = "" if path is None else "\n[to see it, make a smaller copy with run_code, and read the copy with read_file]"
            content.append(Text(f"{reason}\n{_image_note(path)}{advice}"))
    return replace(result, content=tuple(content), structured={**result.structured, **({"image_files": files} if files else {})})


async def _start_command(sandbox: ToolBackend, command: str, cwd: str | None) -> ToolResult:
    file = f"{OUTPUT_DIRECTORY}/command-{secrets.token_hex(4)}.log"
    # In a script, an error of syntax in the command appears only after the redirection.
    pid = await sandbox.start_command(f"mkdir -p {OUTPUT_DIRECTORY}; exec >{file} 2>&1 </dev/null\n{command}", cwd=cwd)
    stop = "" if pid is None else f" Stop it with run_command: kill -- -{pid}"
    started = "The command runs in the background." if pid is None else f"The command runs in the background as process {pid}."
    return output.text_result(f"{started} Its output goes to {file}.{stop}", {"pid": pid, "output_file": file})


async def _write_file(sandbox: ToolBackend, arguments: Arguments, _: OnOutput | None) -> ToolResult:
    path, data = arguments["path"], arguments["content"].encode()
    await sandbox.write_file(path, data)
    return output.text_result(f"Wrote {len(data):,} bytes to {path}.", {"path": path, "bytes": len(data)})


async def _get_url(sandbox: ToolBackend, arguments: Arguments, _: OnOutput | None) -> ToolResult:
    url = await sandbox.get_url(arguments["port"])
    return output.text_result(url, {"url": url, "port": arguments["port"]})


async def _edit_file(sandbox: ToolBackend, arguments: Arguments, _: OnOutput | None) -> ToolResult:
    path, old, new = arguments["path"], arguments["old_text"], arguments["new_text"]
    if old == new:
        return output.invalid_call("`old_text` and `new_text` are equal, so nothing would change.")
    content = bytearray()
    async with aclosing(await sandbox.read_file(path)) as stream:
        async for chunk in stream:
            content += chunk
            if len(content) > MAX_EDITED_BYTES:
                return output.invalid_call(f"{path} has more than {MAX_EDITED_BYTES:,} bytes. Use run_command with `sed`, or run_code.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return output.invalid_call(f"{path} is not a text file in UTF-8. Use run_code to change it.")
    count = text.count(old)
    if count == 0:
        return output.invalid_call(f"`old_text` does not occur in {path}. Read the file again; white space must be the same.")
    if count > 1 and not arguments["replace_all"]:
        return output.invalid_call(f"`old_text` occurs {count} times in {path}. Pass more lines around it, or set `replace_all`.")
    await sandbox.write_file(path, text.replace(old, new).encode())
    return output.text_result(f"Replaced {count} occurrence{'s' if count > 1 else ''} in {path}.", {"path": path, "replaced": count})


async def _save(sandbox: ToolBackend, name: str, content: bytes) -> str | None:
    path = f"{OUTPUT_DIRECTORY}/{name}"
    with suppress(SandlotError):  # the disk is full, or the sandbox has ended: the next call says so
        await sandbox.write_file(path, content)
        return path
    return None


async def _save_image(sandbox: ToolBackend, image: Image) -> str | None:
    extension = image.media_type.partition("/")[2]
    return await _save(sandbox, f"image-{secrets.token_hex(4)}.{extension}", decode_image(image.data))


def _image_note(path: str | None) -> str:
    return "[an image could not be saved]" if path is None else f"[image saved at {path}]"


def _rest_note(file: str | None) -> str:
    if file is None:
        return "The rest could not be saved in the sandbox: run it again with less output, or write the output to a file."
    return f"The whole output is in {file}: use read_file with offset and limit, or run_command with grep, head or tail."


async def _chain(head: bytes, stream: Stream[bytes]) -> AsyncGenerator[bytes]:
    yield head
    async for chunk in stream:
        yield chunk

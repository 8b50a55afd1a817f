"""Programs of every scripted guest: a small shell and the commands that tests use most.

The shell understands lists (``;``, newline, ``&&``, ``||``), pipes, redirections of the three standard streams, quotes, ``$NAME``,
``$$``, ``$?``, ``cd``, ``export``, ``exit``, ``exec``, ``trap '' SIGNAL`` and ``while true; do …; done``. All other
syntax is treated as commands and arguments. A string without a closing quote, or a redirection without a file, is a syntax error with
status 2. If a test needs other programs, it registers them.
"""

from __future__ import annotations

import ast
import hashlib
import io
import posixpath
import re
import signal as signals
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from sandlot.protocol.schema import STDERR, STDOUT
from sandlot.testing.memory.files import FileError, MemoryFiles
from sandlot.testing.memory.process import Killed, Program, ProgramContext

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n]*)|(?P<operator>&&|\|\||;|\n|\||&)|(?P<redirect>[012]?>>|2>&1|1?>&2|[012]?>|<)"""
    r"""|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|<>'"\\])+)"""
)
_PIECE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^'"\\]+)""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+|[$?]))")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "r": "\r", "\\": "\\"}
SAFE_MODULES = frozenset({"asyncio", "base64", "datetime", "functools", "hashlib", "itertools", "json", "math", "os", "random", "re", "sys", "time"})
"""Modules that scripted Python may import."""
_SEQUENCE_MAX = 100_000


class ShellExit(Exception):  # noqa: N818 - control flow of the shell
    """Raised when a script reaches ``exit``. ``code`` is the exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Command:
    """One simple command of a pipeline. Quotes and variables in its words are not replaced yet."""

    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Shell:
    """A shell, with the state that it keeps between commands.

    Attributes:
        context: Context of the program that runs the shell.
        status: Exit status of the last command, ``$?``.
    """

    context: ProgramContext
    status: int = 0

    async def run(self, source: str) -> int:
        """Run a script, and return its exit status."""
        try:
            await self.run_line(tokens(source))
        except ShellExit as over:
            return over.code
        except SyntaxError as error:
            await self.context.error(f"sh: 1: {error.msg}\n")
            return 2
        return self.status

    async def run_line(self, parts: list[tuple[str, str]]) -> None:
        """Run the commands of a script that was split into tokens, and set ``status`` to the exit status of the last command."""
        run_next, at = True, 0
        while at < len(parts):
            if parts[at] == ("word", "while"):
                at = await self._while(parts, at)
                continue
            pipeline: list[Command] = [Command()]
            text = ";"
            while at < len(parts):
                kind, text = parts[at]
                at += 1
                if kind == "word":
                    pipeline[-1].words.append(text)
                elif kind == "redirect":
                    target = ""
                    if "&" not in text:
                        if at >= len(parts) or parts[at][0] != "word":
                            raise SyntaxError("Syntax error: redirection without a file")
                        target, at = parts[at][1], at + 1
                    pipeline[-1].redirects.append((text, target))
                elif text == "|":
                    pipeline.append(Command())
                else:
                    break
            else:
                text = ";"
            if run_next and any(command.words or command.redirects for command in pipeline):
                self.status = await self._pipeline(pipeline)
            run_next = {"&&": self.status == 0, "||": self.status != 0}.get(text, True)

    async def _while(self, parts: list[tuple[str, str]], at: int) -> int:
        """Run a loop ``while CONDITION; do BODY; done``, and return the index of the first token after the loop.

        Args:
            parts: Tokens of the script.
            at: Index of the token ``while``.
        """
        do, done = parts.index(("word", "do"), at), parts.index(("word", "done"), at)
        while True:
            await self.run_line(parts[at + 1 : do])
            if self.status:
                self.status = 0
                return done + 1
            await self.run_line(parts[do + 1 : done])
            await self.context.sleep(0)

    async def _pipeline(self, commands: list[Command]) -> int:
        status, piped = 0, None
        for number, command in enumerate(commands):
            is_last = number == len(commands) - 1
            context = Piped(self.context, piped, capture=not is_last)
            status = await self._command(context, command)
            piped = bytes(context.captured)
        return status

    async def _command(self, context: Piped, command: Command) -> int:
        try:
            for operator, target in command.redirects:
                context.redirect(operator, self.expand(target))
        except FileError as error:
            await context.error(f"sh: 1: {error.message}\n")
            return 2
        words = [self.expand(word) for word in command.words]
        while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            (context if len(words) > 1 else self.context).env[assigned[1]] = assigned[2]
            words.pop(0)
        if words[:1] == ["exec"]:
            words.pop(0)
            if words:
                raise ShellExit(await self._execute(context, words))
        return await self._execute(context, words) if words else 0

    async def _execute(self, context: Piped, words: list[str]) -> int:
        name, arguments = words[0], words[1:]
        if name == "exit":
            raise ShellExit(int(arguments[0]) if arguments else self.status)
        if name == "cd":
            folder = posixpath.normpath(posixpath.join(self.context.cwd, arguments[0] if arguments else self.context.env["HOME"]))
            if not self.context.files.is_folder(folder):
                await context.error(f"sh: 1: cd: can't cd to {arguments[0]}\n")
                return 2
            self.context.cwd = folder
            return 0
        if name in {"export", "unset"}:
            for each in arguments:
                key, _, value = each.partition("=")
                self.context.env.update({key: value}) if name == "export" else self.context.env.pop(key, None)
            return 0
        if name == "trap":
            for each in arguments[1:]:
                self.context.traps[signals.Signals[each if each.startswith("SIG") else f"SIG{each}"]] = lambda: None
            return 0
        if name == "kill":
            return await _kill(context, arguments)
        context.argv = words
        return await self.context.run_program(context)

    def expand(self, word: str) -> str:
        """Return a word of a command without quotes, and with variables replaced by their values."""
        return "".join(self._piece(match) for match in _PIECE.finditer(word))

    def _piece(self, match: re.Match[str]) -> str:
        if match["single"] is not None:
            return match["single"]
        if match["escaped"] is not None:
            return match["escaped"]
        if match["double"] is not None:
            return _VARIABLE.sub(self._variable, re.sub(r"\\([\\\"`])", r"\1", match["double"])).replace("\\$", "$")
        return _VARIABLE.sub(self._variable, match["plain"])

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return {"$": str(self.context.pid), "?": str(self.status)}.get(name) or self.context.env.get(name, "")


class Piped(ProgramContext):
    """Context of one command of a shell, with the redirected standard streams of the command.

    Args:
        parent: Context of the program that runs the shell.
        piped: Output of the previous command of the pipeline; None: the command reads the standard input of the shell.
        capture: If True, collect standard output for the next command. If False, write it to the output of the shell.
    """

    def __init__(self, parent: ProgramContext, piped: bytes | None, *, capture: bool) -> None:
        self.__dict__.update(parent.__dict__)
        self.env = dict(parent.env)
        self._parent = parent
        self._piped = piped
        self.captured = bytearray()
        self._targets: dict[int, Callable[[bytes], object] | int] = {STDOUT: self.captured.extend if capture else STDOUT, STDERR: STDERR}

    def redirect(self, operator: str, path: str) -> None:
        """Redirect a standard stream of the command. ``operator`` is, for example, ``>>``; for ``2>&1``, ``path`` is empty."""
        if operator == "2>&1":
            self._targets[STDERR] = self._targets[STDOUT]
        elif operator in {">&2", "1>&2"}:
            self._targets[STDOUT] = self._targets[STDERR]
        elif operator == "<":
            self._piped = self.files.read(self.path(path), self.uid)
        else:
            channel = int(operator[0]) if operator[0].isdigit() else STDOUT
            full = self.path(path)
            if full == "/dev/null":
                self._targets[channel] = lambda _: None
                return
            self.files.write(full, b"", self.uid, append=operator.endswith(">>"), parents=False)
            self._targets[channel] = lambda data: self.files.write(full, data, self.uid, append=True, parents=False)

    def path(self, path: str) -> str:
        """Return the absolute path of a path that is relative to the working folder. An absolute path is returned normalized."""
        return posixpath.normpath(posixpath.join(self.cwd, path))

    async def write(self, data: bytes | str, channel: int = STDOUT) -> None:
        """Write output to where the channel was redirected: the shell's output, a file, or the next command."""
        raw, target = data.encode() if isinstance(data, str) else data, self._targets[channel]
        if isinstance(target, int):
            await self._parent.write(raw, target)
        else:
            target(raw)

    async def read_all(self) -> bytes:
        """Read standard input to its end, and return all bytes."""
        return await self._parent.read_all() if self._piped is None else self._piped

    async def read(self) -> bytes:
        """Wait for the next bytes of standard input and return them; return ``b""`` at the end."""
        if self._piped is None:
            return await self._parent.stdin.read() if self._parent.stdin is not None else b""
        data, self._piped = self._piped, b""
        return data


def tokens(source: str) -> list[tuple[str, str]]:
    """Split a script into tokens, each a pair of the token's kind (``word``, ``operator`` or ``redirect``) and its text.

    Raises:
        SyntaxError: A quoted string has no end.
    """
    found, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise SyntaxError("Syntax error: Unterminated quoted string")
        at = match.end()
        if match.lastgroup != "space":
            found.append((match.lastgroup or "", match[0]))
    return found


def programs() -> dict[str, Program]:
    """Return the programs of a new guest: name -> script."""
    table: dict[str, Program] = {name: _checked(program) for name, program in _COMMANDS.items()}
    table.update(dict.fromkeys(("sh", "bash", "dash"), _sh))
    return table


async def _sh(context: ProgramContext) -> int:
    """Run ``sh -c SCRIPT`` or ``sh FILE``. If there is no argument, run the lines of standard input, as an interactive shell does."""
    if context.argv[1:2] == ["-n"]:  # a syntax check, which every script passes
        return 0
    arguments = [each for each in context.argv[1:] if not re.fullmatch(r"-[a-z]+|--\w+", each)]
    shell = Shell(context)
    if any(re.fullmatch(r"-[a-z]*c[a-z]*", each) for each in context.argv[1:]):
        return await shell.run(arguments[0])
    if arguments:
        try:
            source = context.files.read(posixpath.join(context.cwd, arguments[0]), context.uid)
        except FileError:
            await context.error(f"sh: 0: cannot open {arguments[0]}: No such file\n")
            return 2
        return await shell.run(source.decode())
    return await _interactive(context, shell)


async def _interactive(context: ProgramContext, shell: Shell) -> int:
    is_terminal, rest = context.size != (0, 0), ""
    while context.stdin is not None:
        if is_terminal and not rest:
            await context.write("$ ")
        piece = await context.stdin.read()
        if not piece or piece == b"\x04":
            return shell.status
        if is_terminal:
            await context.write(piece.replace(b"\r", b"\n"))
        *lines, rest = (rest + piece.decode().replace("\r", "\n")).split("\n")
        for line in lines:
            try:
                await shell.run_line(tokens(line))
            except ShellExit as over:
                return over.code
            except SyntaxError as error:
                await context.error(f"sh: 1: {error.msg}\n")
    return shell.status


def _checked(program: Program) -> Program:
    """Wrap a program. If the program raises FileError, write the message to standard error and exit with status 1."""

    async def run(context: ProgramContext) -> int:
        try:
            return await program(context) or 0
        except FileError as error:
            await context.error(f"{context.argv[0]}: {error.message}\n")
            return 1

    return run


def _paths(context: ProgramContext) -> Iterator[str]:
    """Yield the arguments of a program that do not begin with ``-``, as absolute paths."""
    for each in context.argv[1:]:
        if not each.startswith("-"):
            yield posixpath.normpath(posixpath.join(context.cwd, each))


def _flags(context: ProgramContext) -> str:
    return "".join(each for each in context.argv[1:] if each.startswith("-"))


async def _echo(context: ProgramContext) -> int:
    words = context.argv[1:]
    newline = "" if words[:1] == ["-n"] else "\n"
    await context.write(" ".join(words[1:] if not newline else words) + newline)
    return 0


async def _printf(context: ProgramContext) -> int:
    form = re.sub(r"\\([nt0r\\])", lambda match: _ESCAPES[match[1]], context.argv[1])
    arguments = context.argv[2:]
    count = len(re.findall(r"%[sd]", form))
    while True:
        given, arguments = arguments[:count], arguments[count:]
        filled = re.sub(r"%[sd]", "\0", form).replace("%%", "%")
        for value in given:
            filled = filled.replace("\0", value, 1)
        await context.write(filled.replace("\0", ""))
        if not count or not arguments:
            return 0


async def _cat(context: ProgramContext) -> int:
    paths = list(_paths(context))
    for path in paths:
        await context.write(context.files.read(path, context.uid))
    if not paths:
        read = getattr(context, "read", None) or (context.stdin.read if context.stdin is not None else None)
        while read is not None and (piece := await read()):
            await context.write(piece)
    return 0


async def _sleep(context: ProgramContext) -> int:
    await context.sleep(float("inf") if context.argv[1] == "infinity" else float(context.argv[1]))
    return 0


async def _env(context: ProgramContext) -> int:
    names = context.argv[1:] if context.argv[0].endswith("printenv") else []
    if names:
        await context.write("".join(f"{context.env[name]}\n" for name in names if name in context.env))
        return 0 if all(name in context.env for name in names) else 1
    await context.write("".join(f"{name}={value}\n" for name, value in context.env.items()))
    return 0


async def _pwd(context: ProgramContext) -> int:
    await context.write(context.cwd + "\n")
    return 0


async def _id(context: ProgramContext) -> int:
    short = {"-u": str(context.uid), "-un": context.user}.get(_flags(context))
    await context.write(f"{short or f'uid={context.uid}({context.user})'}\n")
    return 0


async def _whoami(context: ProgramContext) -> int:
    await context.write(f"{context.user}\n")
    return 0


async def _hostname(context: ProgramContext) -> int:
    await context.write(context.files.read("/etc/hostname", 0) + b"\n")
    return 0


async def _mkdir(context: ProgramContext) -> int:
    for path in _paths(context):
        context.files.mkdir(path, context.uid, parents="p" in _flags(context))
    return 0


async def _rm(context: ProgramContext) -> int:
    for path in _paths(context):
        if context.files.exists(path) or "f" not in _flags(context):
            context.files.remove(path, context.uid, recursive="r" in _flags(context) or "R" in _flags(context))
    return 0


async def _rmdir(context: ProgramContext) -> int:
    for path in _paths(context):
        context.files.remove(path, context.uid)
    return 0


async def _mv(context: ProgramContext) -> int:
    source, target = _paths(context)
    if context.files.is_folder(target):
        target = posixpath.join(target, posixpath.basename(source))
    context.files.move(source, target, context.uid, overwrite=True)
    return 0


async def _cp(context: ProgramContext) -> int:
    source, target = _paths(context)
    if context.files.is_folder(target):
        target = posixpath.join(target, posixpath.basename(source))
    context.files.write(target, context.files.read(source, context.uid), context.uid, parents=False)
    return 0


async def _ln(context: ProgramContext) -> int:
    *_, source, target = _paths(context)
    if "s" in _flags(context):
        context.files.symlink(target, context.argv[-2], context.uid)
    else:
        context.files.link(source, target, context.uid)
    return 0


async def _touch(context: ProgramContext) -> int:
    for path in _paths(context):
        context.files.write(path, b"", context.uid, append=True, parents=False)
    return 0


async def _chmod(context: ProgramContext) -> int:
    for path in list(_paths(context))[1:]:
        context.files.chmod(path, int(context.argv[1], 8), context.uid)
    return 0


async def _truncate(context: ProgramContext) -> int:
    size, path = int(context.argv[2]), posixpath.join(context.cwd, context.argv[3])
    context.files.write(path, bytes(size), context.uid, parents=False)
    return 0


async def _ls(context: ProgramContext) -> int:
    paths = list(_paths(context)) or [context.cwd]
    for path in paths:
        names = [each["name"] for each in context.files.list(path, context.uid) if "a" in _flags(context) or not each["name"].startswith(".")]
        await context.write("".join(f"{name}\n" for name in names))
    return 0


async def _test(context: ProgramContext) -> int:
    words = [each for each in context.argv[1:] if each != "]"]
    if words[:1] == ["!"]:
        context.argv = ["test", *words[1:]]
        return int(not await _test(context))
    if len(words) > len(("-f", "path")):
        return int((words[0] == words[2]) != (words[1] in {"=", "==", "-eq"}))
    path = posixpath.normpath(posixpath.join(context.cwd, words[1]))
    checks = {"-e": context.files.exists, "-f": lambda each: context.files.exists(each) and not context.files.is_folder(each)}
    return int(not {**checks, "-d": context.files.is_folder}[words[0]](path))


async def _head(context: ProgramContext) -> int:
    size = int(context.argv[context.argv.index("-c") + 1])
    if "/dev/zero" in context.argv:
        for at in range(0, size, 1 << 16):
            await context.write(bytes(min(1 << 16, size - at)))
    else:
        await context.write((await context.read_all())[:size])
    return 0


async def _tr(context: ProgramContext) -> int:
    source, target = (re.sub(r"\\([nt0r\\])", lambda match: _ESCAPES[match[1]], each) for each in context.argv[1:3])
    await context.write((await context.read_all()).replace(source.encode(), target.encode()))
    return 0


async def _wc(context: ProgramContext) -> int:
    data = b"".join([context.files.read(path, context.uid) for path in _paths(context)]) or await context.read_all()
    await context.write(f"{len(data) if 'c' in _flags(context) else data.count(10)}\n")
    return 0


async def _sha256sum(context: ProgramContext) -> int:
    await context.write(f"{hashlib.sha256(await context.read_all()).hexdigest()}  -\n")
    return 0


async def _seq(context: ProgramContext) -> int:
    numbers = [int(each) for each in context.argv[1:] if not each.startswith("-")]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    width = len(str(last)) if "w" in _flags(context) else 0
    await context.write("".join(f"{number:0{width}d}\n" for number in range(first, min(last, _SEQUENCE_MAX) + 1)))
    return 0


async def _kill(context: ProgramContext, arguments: list[str]) -> int:
    """Run ``kill [-SIGNAL] PID``. PID must be the process of the shell itself."""
    number = signals.SIGTERM
    if arguments and arguments[0].startswith("-"):
        word = arguments[0][1:]
        number = signals.Signals(int(word)) if word.isdigit() else signals.Signals[f"SIG{word.removeprefix('SIG')}"]
    if arguments[-1:] != [str(context.pid)]:
        await context.error("sh: 1: kill: No such process\n")
        return 1
    if number == signals.SIGKILL or number not in context.traps:
        raise Killed(number)
    return 0


async def _python(context: ProgramContext) -> int:
    """Run ``python3 -c SOURCE``. SOURCE must not block. It can use ``print``, ``open``, ``argv`` and ``environ``."""
    if context.argv[1:3] == ["-m", "py_compile"]:  # a syntax check, which every program passes
        return 0
    if context.argv[1:2] != ["-c"] or not is_simple(context.argv[2]):
        await context.error("python3: the scripted guest runs only -c SOURCE, without while loops and with few imports\n")
        return 2
    written: list[tuple[int, str]] = []
    names = {"open": opener(context.files, context.cwd, context.uid), "argv": ["-c", *context.argv[3:]], "environ": dict(context.env)}
    status = run_python(context.argv[2], names, lambda channel, text: written.append((channel, text)))
    for channel, text in written:
        await context.write(text, channel)
    return status


class GuestFile(io.BytesIO):
    """A file of the guest that scripted Python has opened. Changes are written to the guest's file tree when the file is closed."""

    def __init__(self, files: MemoryFiles, path: str, mode: str, uid: int) -> None:
        try:
            super().__init__(b"" if "w" in mode else files.read(path, uid))
        except FileError as error:
            raise FileNotFoundError(error.message) from None
        if "a" in mode:
            self.seek(0, io.SEEK_END)
        self._target = None if mode.rstrip("bt") == "r" else (files, path, uid)

    def close(self) -> None:
        """Write the content back to the file tree, unless the file was opened for reading. Idempotent."""
        if self._target is not None and not self.closed:
            files, path, uid = self._target
            files.write(path, self.getvalue(), uid)
        super().close()


def opener(files: MemoryFiles, cwd: str, uid: int) -> Callable[..., IO[Any]]:
    """Return the function ``open`` for scripted Python. The function opens files of the guest, never files of the real machine.

    Args:
        files: File tree of the guest.
        cwd: Folder that relative paths are relative to.
        uid: User id of the program.
    """

    def open_file(path: str, mode: str = "r", **_options: object) -> IO[Any]:
        raw = GuestFile(files, posixpath.normpath(posixpath.join(cwd, path)), mode, uid)
        return raw if "b" in mode else io.TextIOWrapper(raw, "utf-8", write_through=True)

    return open_file


def is_simple(source: str) -> bool:
    """Return whether a Python program can run inside the test's process: it has no ``while`` loop and imports only ``SAFE_MODULES``.

    A program with a syntax error counts as simple, because it only reports the error.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return True
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return imported <= SAFE_MODULES and not any(isinstance(node, ast.While) for node in nodes)


def run_python(source: str, names: dict[str, Any], write: Callable[[int, str], object]) -> int:
    """Run a Python program, and return its exit status.

    Args:
        source: Source code.
        names: Global names of the program.
        write: Function that gets each printed text, and the text of an uncaught exception: ``write(channel, text)``.
    """

    def show(*values: object, sep: str = " ", end: str = "\n", file: object = None, flush: bool = False) -> None:
        del flush
        write(STDERR if file is not None else STDOUT, sep.join(map(str, values)) + end)

    namespace: dict[str, Any] = {"__name__": "__main__", "print": show, **names}
    try:
        exec(compile(source, "<string>", "exec"), namespace)  # noqa: S102 - a test's own code
    except SystemExit as over:
        return int(over.code or 0) if not isinstance(over.code, str) else 1
    except Exception as error:  # noqa: BLE001 - of the test's program
        write(STDERR, f"Traceback (most recent call last):\n{type(error).__name__}: {error}\n")
        return 1
    return 0


async def _true(_context: ProgramContext) -> int:
    return 0


async def _false(_context: ProgramContext) -> int:
    return 1


_COMMANDS: dict[str, Program] = {
    "[": _test,
    "cat": _cat,
    "chmod": _chmod,
    "cp": _cp,
    "echo": _echo,
    "env": _env,
    "false": _false,
    "head": _head,
    "hostname": _hostname,
    "id": _id,
    "ln": _ln,
    "ls": _ls,
    "mkdir": _mkdir,
    "mv": _mv,
    "printenv": _env,
    "printf": _printf,
    "pwd": _pwd,
    "python3": _python,
    "rm": _rm,
    "rmdir": _rmdir,
    "seq": _seq,
    "sha256sum": _sha256sum,
    "sleep": _sleep,
    "sync": _true,
    "test": _test,
    "touch": _touch,
    "tr": _tr,
    "true": _true,
    "truncate": _truncate,
    "wc": _wc,
    "whoami": _whoami,
}

"""Contexts of a scripted guest. The cells of a context run one after another in the process of the test, and share variables.

Python cells support ``print``, top-level ``await`` and the value of the last expression. ``time.sleep`` and ``while`` loops at the top level of a
cell can be interrupted. Bash cells run in the scripted shell. JavaScript and TypeScript cells can only call ``console.log`` with a literal.
For any other code, a test registers a script in :attr:`Kernels.scripts`. The image has no R.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import copy
import inspect
import itertools
import re
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from sandlot.model.languages import DEFAULT_CONTEXT_IDS
from sandlot.protocol.schema import STDERR, STDOUT
from sandlot.testing.memory.files import MemoryFiles
from sandlot.testing.memory.output import Follower, OutputLog
from sandlot.testing.memory.process import Processes, ProgramContext, find_uid
from sandlot.testing.memory.rpc import Call, RpcError
from sandlot.testing.memory.shell import SAFE_MODULES, Shell, opener
from sandlot.testing.memory.timers import Timer, Timers

DEFAULT_CONTEXTS = {context: language for language, context in DEFAULT_CONTEXT_IDS.items()}
CONTEXTS = 32
WAITING = 64
WAITING_BYTES = 16 * 1024 * 1024
KEPT = 64
NAME_CHARS = 64
_FIRST_PID = 50
_LOG = re.compile(r"""\s*console\.log\((?P<value>"[^"]*"|'[^']*'|-?[\d.]+)\);?\s*""")

CellScript = Callable[["Cell"], Awaitable[None]]
"""Function that runs instead of the code of a cell. An exception of the function becomes the error of the cell."""


class Cell:
    """One execution of code in a context.

    Attributes:
        id: Id of the execution in hexadecimal.
        code: Source code.
        output: Printed text, displayed values and errors of the cell.
        result: Result of the cell; None until the cell has ended.
    """

    def __init__(self, id_: str, args: Mapping[str, Any], timers: Timers) -> None:
        self.id = id_
        self.args = dict(args)
        self.kernel: str = args["kernel"]
        self.code: str = args["code"]
        self.output = OutputLog()
        self.result: dict[str, Any] | None = None
        self.count = 0
        self._timers = timers
        self._began_s: float | None = None
        self._followers: list[tuple[Call, Follower]] = []

    @property
    def is_followed(self) -> bool:
        """True if at least one call receives the output of the cell."""
        return bool(self._followers)

    def begin(self, count: int) -> None:
        """Record that the cell starts now.

        Args:
            count: Execution count of the kernel.
        """
        self.count = count
        self._began_s = self._timers.time_s()
        self.event("started", count=count)

    def write(self, text: str | bytes, channel: int = STDOUT) -> None:
        """Write to the output of the cell.

        Args:
            text: Text or bytes to write.
            channel: STDOUT or STDERR.
        """
        self.output.write(channel, text.encode() if isinstance(text, str) else text)
        self.pump()

    def event(self, event: str, /, **fields: Any) -> None:  # noqa: ANN401 - any value of the protocol
        """Append an event to the output of the cell, for example an event with the name ``display``."""
        self.output.add_event({"event": event, **fields})
        self.pump()

    def display(self, data: Mapping[str, Any], *, main: bool = False) -> None:
        """Append the event ``display`` to the output of the cell.

        Args:
            data: MIME type -> the value in this type, as text or bytes.
            main: True for the value of the cell's last expression.
        """
        self.event("display", data=dict(data), main=main, metadata={}, display_id=None, update=None)

    def fail(self, name: str, value: str, lines: list[str] | None = None) -> None:
        """Append the event ``error`` to the output of the cell.

        Args:
            name: Name of the exception.
            value: Message of the exception.
            lines: Lines of the traceback; None: no traceback.
        """
        self.event("error", name=name, value=value, traceback=lines or [])

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Time during which the guest is paused does not count."""
        await self._timers.sleep(seconds)

    def finish(self, status: str) -> None:
        """End the cell with a status of ``schema.CELL_STATUSES``. Does nothing if the cell has ended."""
        if self.result is None:
            self.result = self._state(status)
            self.pump()

    def follow(self, call: Call, stdout_from: int | None, stderr_from: int | None, *, events_from: int = 0, wait: bool = True) -> None:
        """Send the output and events of the cell to a call, and the result at the end.

        Args:
            call: Call ``kernel.execute`` or ``kernel.attach`` that receives the output, the events and the result.
            stdout_from: Byte offset in standard output to start at; None for the oldest byte that is kept.
            stderr_from: Byte offset in standard error to start at; None for the oldest byte that is kept.
            events_from: Number of events that the client has received already and that are skipped.
            wait: True to send everything until the cell ends; False to end the call after the output and events that exist now.

        Raises:
            RpcError: ``stdout_from`` or ``stderr_from`` is negative or beyond the end of the output.
        """
        follower = self.output.follow(call, stdout_from, stderr_from, events_from=events_from, wait=wait)
        if follower is None:
            message = f"`stdout_from` is {stdout_from} and `stderr_from` is {stderr_from}; one of them is not within the output."
            raise RpcError("invalid_request", message, "Pass offsets in bytes, from 0 to the end of the output.")
        entry = (call, follower)
        self._followers.append(entry)
        call.on_writable = self.pump
        call.on_gone = lambda: self._detached(entry)
        self.pump()

    def pump(self) -> None:
        """Send output to each call that receives it, until the call's send queue is full. A call that has got all output gets the result."""
        self.output.pump()
        for entry in list(self._followers):
            call, follower = entry
            has_all = self.output.has_all(follower)
            if (self.result is not None and has_all) or self.output.has_enough(follower):
                self._detached(entry)
                call.on_gone = None
                call.result(**((self.result if has_all else None) or self._state("running")))

    def _state(self, status: str) -> dict[str, Any]:
        passed_s = 0.0 if self._began_s is None else max(0.0, self._timers.time_s() - self._began_s)
        return {"status": status, "execution_count": self.count, "duration_s": passed_s}

    def _detached(self, entry: tuple[Call, Follower]) -> None:
        if entry in self._followers:
            self._followers.remove(entry)
        self.output.leave(entry[1])


class Context:
    """A context: a kernel of one language, which keeps variables and runs one cell at a time."""

    def __init__(self, kernels: Kernels, name: str, language: str, cwd: str, env: Mapping[str, str]) -> None:
        self._kernels = kernels
        self.name = name
        self.language = language
        self.cwd = cwd
        self.env = dict(env)
        self.namespace: dict[str, Any] = {}
        self.pid: int | None = None
        self.count = 0
        self.cell: Cell | None = None
        self.queue: deque[Cell] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._end_status = ""

    def describe(self) -> dict[str, Any]:
        """Return the properties of the context, as the guest's call ``kernel.list`` shows them."""
        state = "busy" if self.cell is not None else "idle" if self.pid is not None else "stopped"
        fields = {"kernel": self.name, "language": self.language, "cwd": self.cwd, "state": state}
        return {**fields, "execution_count": self.count, "pid": self.pid}

    def boot(self) -> None:
        """Start the kernel. Idempotent."""
        if self.pid is None:
            self.pid = next(self._kernels.pids)
            self.namespace = {"__name__": "__main__"}
            self.count = 0

    def submit(self, cell: Cell) -> None:
        """Put a cell at the end of the queue. Start the cell at once if no other cell is running or waiting."""
        self.queue.append(cell)
        self._next()

    def interrupt(self, status: str = "error") -> bool:
        """Interrupt the running cell. Return False if no cell is running or the cell was already interrupted.

        Args:
            status: Status that the interrupted cell ends with.
        """
        if self.cell is None or self._task is None or self._end_status:
            return False
        self._end_status = status
        self._task.cancel()
        return True

    def abort(self, cell: Cell, why: str) -> None:
        """End a waiting cell without running it.

        Args:
            cell: Waiting cell.
            why: Reason as a full sentence, for the error message of the cell.
        """
        if cell in self.queue:
            self.queue.remove(cell)
            cell.fail("Aborted", f"The cell was not run. {why}")
            cell.finish("aborted")

    def abort_all(self, why: str) -> None:
        """End all waiting cells without running them. ``why`` is the reason as a full sentence, for their error messages."""
        for cell in list(self.queue):
            self.abort(cell, why)

    def stop(self, why: str, status: str = "killed") -> None:
        """End the kernel and abort all waiting cells. The variables of the kernel are lost.

        Args:
            why: Reason as a full sentence, for the error messages of the waiting cells.
            status: Status that the running cell ends with.
        """
        self.abort_all(why)
        self.die(status)

    def die(self, status: str = "died") -> None:
        """End the process of the kernel. The running cell ends with ``status``; waiting cells then run in a new kernel."""
        self.pid = None
        cell, task = self.cell, self._task
        if cell is not None and task is not None:
            self._end_status = status
            text = "The kernel was killed because its context was restarted." if status == "killed" else "The kernel died. Its variables are lost."
            cell.fail("KernelDied", text)
            self._over(cell, status)
            task.cancel()

    def _next(self) -> None:
        if self.cell is not None or not self.queue:
            return
        self.boot()
        self.cell = cell = self.queue.popleft()
        self._end_status = ""
        self._task = asyncio.get_running_loop().create_task(self._run(cell))
        if (timeout_s := cell.args["timeout_s"]) is not None:
            self._timer = self._kernels.timers.after(timeout_s, lambda: self.interrupt("timeout"))

    async def _run(self, cell: Cell) -> None:
        status = "ok"
        try:
            self.count += 0 if cell.args["silent"] else 1
            cell.begin(self.count)
            await self._execute(cell)
        except asyncio.CancelledError:
            if self.cell is not cell:
                return
            status = self._end_status if self._end_status in {"timeout", "error"} else "killed"
            cell.fail("KeyboardInterrupt", "", ["KeyboardInterrupt"])
        except KernelExit:
            status, self.pid = "died", None
            cell.fail("KernelDied", "The kernel died. Its variables are lost.")
        except SystemExit as error:
            status = "error"
            cell.fail("SystemExit", str(error.code), [])
        except Exception as error:  # noqa: BLE001 - of the test's cell
            status = "error"
            cell.fail(type(error).__name__, str(error), traceback.format_exception_only(error))
        self._over(cell, status)

    async def _execute(self, cell: Cell) -> None:
        if (script := self._kernels.scripts.get(cell.code)) is not None:
            await script(cell)
        elif self.language == "python":
            env = {**self._kernels.environment(), **self.env, **cell.args["env"]}
            await run_python(cell, self.namespace, self._kernels.files, env, self.cwd, find_uid(self._kernels.user))
        elif self.language == "bash":
            await self._run_bash(cell)
        elif (match := _LOG.fullmatch(cell.code)) is not None:
            cell.write(match["value"].strip("\"'") + "\n")
        else:
            raise SyntaxError(f"In {self.language}, the scripted guest runs only console.log with one literal. Register a script for this code.")

    async def _run_bash(self, cell: Cell) -> None:
        if "shell" not in self.namespace:
            self.namespace["shell"] = self._kernels.new_cell_context(self.cwd, self.env)
        context: CellContext = self.namespace["shell"]
        context.env.update(cell.args["env"])
        context.cell = cell
        status = await Shell(context).run(cell.code)
        if status:
            raise ExitStatus(status)

    def _over(self, cell: Cell, status: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.cell = self._task = None
        cell.finish(status)
        if cell.args["stop_on_error"] and status != "ok":
            self.abort_all("An earlier cell failed.")
        self._kernels.trim()
        self._next()


class KernelExit(BaseException):
    """Raised when the code of a cell ends the process of its kernel, for example with ``os._exit``."""


class ExitStatus(Exception):  # noqa: N818 - the name that clients see
    """Raised when a bash cell ends with an exit status other than 0."""


class Kernels:
    """All contexts of a guest, and their cells, including finished cells that are still kept.

    Attributes:
        user: User that cells run as.

    Args:
        files: File tree of the guest.
        timers: Timers of the guest.
        processes: Processes of the guest; provides the programs that bash cells run.
        scripts: Source code of a cell -> script that runs instead of the code.
        environment: Function that returns the environment of the sandbox.
        workspace: Function that returns the default working folder.
        expire: Function that is called with an execution id when the execution is no longer kept. The guest then refuses the id.
    """

    def __init__(
        self,
        files: MemoryFiles,
        timers: Timers,
        processes: Processes,
        scripts: Mapping[str, CellScript],
        environment: Callable[[], Mapping[str, str]],
        workspace: Callable[[], str],
        expire: Callable[[str, str], None],
    ) -> None:
        self.files = files
        self.timers = timers
        self.scripts = scripts
        self.environment = environment
        self.user = "user"
        self.pids = itertools.count(_FIRST_PID)
        self.languages = {"python", "bash", "javascript", "typescript"}
        self.contexts: dict[str, Context] = {}
        self.cells: dict[str, Cell] = {}
        self._processes = processes
        self._workspace = workspace
        self._expire = expire
        self.handlers: dict[str, Callable[[Call], object]] = {
            "kernel.create": self._create,
            "kernel.list": lambda call: call.result(kernels=[context.describe() for context in self.contexts.values()]),
            "kernel.remove": self._remove,
            "kernel.execute": self._execute,
            "kernel.attach": self._attach,
            "kernel.interrupt": self._interrupt,
            "kernel.restart": self._restart,
        }

    def new_cell_context(self, cwd: str, env: Mapping[str, str]) -> CellContext:
        """Return the program context of a new bash kernel. The context keeps variables and the working folder between cells.

        Args:
            cwd: Working folder of the first cell.
            env: Variables in addition to the environment of the sandbox.
        """
        return CellContext(self._processes, self.files, {**self._processes.environment(self.user, {}), **env}, cwd, self.user)

    def forget_past(self) -> None:
        """Abort the waiting cells and forget all cells. Called when a restored guest gets a new sandbox id: the sandbox is then a copy."""
        for context in self.contexts.values():
            context.abort_all("This sandbox is a copy, and the cell belongs to the original.")
        self.cells.clear()

    def trim(self) -> None:
        """Delete the oldest finished cells, so that at most ``KEPT`` cells are kept. A cell whose output a call is still receiving is not deleted."""
        finished = [cell for cell in self.cells.values() if cell.result is not None and not cell.is_followed]
        for cell in finished[: max(0, len(self.cells) - KEPT)]:
            del self.cells[cell.id]
            self._expire(cell.id, "kernel.execute")

    def copy_state(self) -> dict[str, Any]:
        """Return a copy of the contexts and cells for a snapshot. Running and waiting cells are copied without output."""
        contexts = [
            {
                "name": each.name,
                "language": each.language,
                "cwd": each.cwd,
                "env": each.env,
                "count": each.count,
                "namespace": _copied_namespace(each.namespace),
            }
            for each in self.contexts.values()
        ]
        running = [(each.cell.id, each.cell.args) for each in self.contexts.values() if each.cell is not None]
        waiting = [(cell.id, cell.args) for each in self.contexts.values() for cell in each.queue]
        finished = [(cell.id, cell.args, cell.output.copy(), cell.result, cell.count) for cell in self.cells.values() if cell.result is not None]
        return {"contexts": contexts, "again": [*running, *waiting], "finished": finished}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the contexts and cells of a snapshot into a new guest. Running and waiting cells of the snapshot are started from the beginning."""
        for saved in state["contexts"]:
            context = self.contexts[saved["name"]] = Context(self, saved["name"], saved["language"], saved["cwd"], saved["env"])
            context.boot()
            context.count, context.namespace = saved["count"], _copied_namespace(saved["namespace"])
        for id_, args, output, result, count in state["finished"]:
            cell = Cell(id_, args, self.timers)
            cell.output, cell.result, cell.count = output.copy(), result, count
            self.cells[id_] = cell
        for id_, args in state["again"]:
            cell = self.cells[id_] = Cell(id_, args, self.timers)
            self.contexts[cell.kernel].submit(cell)

    def _create(self, call: Call) -> None:
        args = call.args
        context = self.contexts.get(args["kernel"])
        if context is None:
            context = self._make(args["kernel"], args["language"], args["cwd"], args["env"])
            context.boot()
        elif context.language != args["language"]:
            raise _other_language(context)
        call.result(**context.describe())

    def _remove(self, call: Call) -> None:
        name = call.args["kernel"]
        context = self.contexts.pop(name, None)
        if context is not None:
            context.stop("The context was removed.")
        elif name not in DEFAULT_CONTEXTS:
            raise _unknown(name)
        call.result()

    def _restart(self, call: Call) -> None:
        name = call.args["kernel"]
        if name in self.contexts:
            self.contexts[name].stop("The context was restarted.")
        elif name not in DEFAULT_CONTEXTS:
            raise _unknown(name)
        call.result()

    def _execute(self, call: Call) -> None:
        if (cell := self.cells.get(call.id)) is not None:
            cell.follow(call, 0, 0)
            return
        context = self._context(call.args["kernel"], call.args["language"])
        waiting = [each for other in self.contexts.values() for each in other.queue]
        size = sum(len(each.code) for each in waiting) + len(call.args["code"])
        hint = "Retry when some cells have ended."
        if len(context.queue) >= WAITING:
            raise RpcError("busy", f"The context {context.name!r} already has {WAITING} waiting cells, the maximum.", hint)
        if waiting and size > WAITING_BYTES:
            text = f"With this cell, the waiting cells of all contexts would have {size} bytes, but the maximum is {WAITING_BYTES}."
            raise RpcError("busy", text, hint)
        cell = self.cells[call.id] = Cell(call.id, call.args, self.timers)
        cell.follow(call, 0, 0)
        context.submit(cell)

    def _attach(self, call: Call) -> None:
        args = call.args
        cell = self._cell(args["execution"])
        cell.follow(call, args["stdout_from"], args["stderr_from"], events_from=args["events_from"], wait=args["wait"] is not False)

    def _interrupt(self, call: Call) -> None:
        execution = call.args["execution"]
        if execution is None:
            name = call.args["kernel"]
            context = self.contexts.get(name)
            if context is None and name not in DEFAULT_CONTEXTS:
                raise _unknown(name)
            call.result(running=context is not None and context.interrupt())
            return
        cell = self._cell(execution)
        context = self.contexts.get(cell.kernel)
        running = cell.result is None and context is not None
        if running and context is not None:
            if context.cell is cell:
                running = context.interrupt()
            else:
                context.abort(cell, "It was interrupted while it waited.")
        call.result(running=running)

    def _cell(self, id_: str) -> Cell:
        if id_ not in self.cells:
            raise RpcError("process_not_found", f"Execution {id_[:64]!r} does not exist or is no longer kept.", "Check the execution id.")
        return self.cells[id_]

    def _context(self, name: str, language: str | None) -> Context:
        context = self.contexts.get(name)
        if context is None:
            if name not in DEFAULT_CONTEXTS:
                raise _unknown(name)
            return self._make(name, language or DEFAULT_CONTEXTS[name], None, {})
        if language is not None and context.language != language:
            raise _other_language(context)
        return context

    def _make(self, name: str, language: str, cwd: str | None, env: Mapping[str, str]) -> Context:
        if not 0 < len(name) <= NAME_CHARS:
            message = f"The context id {name[:64]!r} has {len(name)} characters."
            raise RpcError("invalid_request", message, f"Use an id of 1 to {NAME_CHARS} characters.")
        if name in DEFAULT_CONTEXTS and language != DEFAULT_CONTEXTS[name]:
            message = f"The language of the default context {name!r} is {DEFAULT_CONTEXTS[name]}, not {language[:50]}."
            raise RpcError("conflict", message, "Use another id for the context.")
        if sum(known not in DEFAULT_CONTEXTS for known in self.contexts) >= CONTEXTS and name not in DEFAULT_CONTEXTS:
            message = f"The sandbox has {CONTEXTS} contexts besides the default contexts, the maximum."
            raise RpcError("limit_exceeded", message, "Delete a context that is no longer needed.")
        if language not in DEFAULT_CONTEXTS.values():
            raise RpcError("invalid_request", f"The language {language[:50]!r} is unknown.", "Use one of: bash, javascript, python, r, typescript.")
        if language not in self.languages:
            raise RpcError("unsupported", f"The image has no {language} interpreter.", "Use the template `languages`.")
        if cwd is not None and not (cwd.startswith("/") and self.files.is_folder(cwd)):
            code, reason = ("path_not_directory", "is not a folder") if self.files.exists(cwd) else ("working_directory_not_found", "does not exist")
            raise RpcError(code, f"The working directory {cwd[:200]!r} {reason}.", "Pass the absolute path of an existing folder.")
        context = self.contexts[name] = Context(self, name, language, cwd or self._workspace(), env)
        return context


class CellContext(ProgramContext):
    """Program context of the shell that runs the cells of a bash context. The guest does not list this shell as a process.

    Attributes:
        cell: Cell that receives the output; None before the first cell.
    """

    def __init__(self, processes: Processes, files: MemoryFiles, env: dict[str, str], cwd: str, user: str) -> None:
        self.cell: Cell | None = None
        self.files = files
        self.env = env
        self.cwd = cwd
        self.argv = ["bash"]
        self.user, self.uid, self.pid = user, find_uid(user), _FIRST_PID
        self.traps: dict[int, Callable[[], object]] = {}
        self.size = (0, 0)
        self.run_program = processes.run_nested

    @property
    def stdin(self) -> None:
        """Standard input: always None, because a cell has no standard input."""
        return

    async def write(self, data: bytes | str, channel: int = STDOUT) -> None:
        """Write to the output of the cell that is running."""
        if self.cell is not None:
            self.cell.write(data, channel)

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Time during which the guest is paused does not count."""
        if self.cell is not None:
            await self.cell.sleep(seconds)


class _Interruptible(ast.NodeTransformer):
    """Rewrites the code of a cell so that ``time.sleep`` and each iteration of a ``while`` loop can be interrupted, outside functions and classes."""

    def visit(self, node: ast.AST) -> ast.AST:
        """Return functions, lambdas and classes unchanged; rewrite every other node."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return node
        return super().visit(node)  # type: ignore[no-any-return]

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_awaited("__sleep__", [ast.Constant(0)])))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "sleep"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "time"
        ):
            return _awaited("__sleep__", node.args)
        return node


def _awaited(name: str, arguments: list[ast.expr]) -> ast.Await:
    return ast.Await(ast.Call(ast.Name(name, ast.Load()), arguments, []))


async def run_python(cell: Cell, namespace: dict[str, Any], files: MemoryFiles, env: Mapping[str, str], cwd: str, uid: int) -> None:
    """Execute a Python cell.

    Args:
        cell: Cell to execute; receives the output.
        namespace: Variables of the kernel. The cell changes them.
        files: File tree of the guest, for ``open``.
        env: Environment that the cell sees in ``os.environ``.
        cwd: Working folder of the kernel.
        uid: User id of the kernel.
    """

    def show(*values: object, sep: str = " ", end: str = "\n", file: object = None, flush: bool = False) -> None:
        del flush
        cell.write(sep.join(map(str, values)) + end, STDERR if file is sys.stderr else STDOUT)

    def load(name: str, *rest: Any) -> object:  # noqa: ANN401 - as __import__ takes them
        if name.partition(".")[0] not in SAFE_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return _guest_os(env, cwd) if name == "os" else builtins.__import__(name, *rest)

    namespace["__builtins__"] = {**vars(builtins), "print": show, "open": opener(files, cwd, uid), "__import__": load}
    namespace["__sleep__"] = cell.sleep
    tree = ast.parse(cell.code)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr) and not cell.code.rstrip().endswith(";"):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("__value__", ast.Store())], last.value), last)
    namespace.pop("__value__", None)
    _Interruptible().visit(tree)
    compiled = compile(ast.fix_missing_locations(tree), "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        await eval(compiled, namespace)  # noqa: S307 - a test's own code
    else:
        exec(compiled, namespace)  # noqa: S102 - a test's own code
    value = namespace.pop("__value__", None)
    if value is not None and not cell.args["silent"]:
        cell.display({"text/plain": repr(value)}, main=True)


def _guest_os(env: Mapping[str, str], cwd: str) -> ModuleType:
    """Return a replacement for the module ``os`` that has only the names that cells of tests use."""
    module = ModuleType("os")

    def leave(_status: int) -> None:
        raise KernelExit

    vars(module).update(environ=dict(env), getcwd=lambda: cwd, getpid=lambda: _FIRST_PID, getenv=dict(env).get, _exit=leave)
    module.kill = lambda _pid, _signal: leave(0)  # type: ignore[attr-defined]
    return module


def _copied_namespace(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a kernel's variables. Values that cannot be copied, such as modules, are shared."""
    result = {}
    for name, value in namespace.items():
        if name in {"__builtins__", "__sleep__", "shell"}:
            continue
        try:
            result[name] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - of any value
            result[name] = value
    return result


def _unknown(name: str) -> RpcError:
    return RpcError("not_found", f"The context {name[:64]!r} does not exist.", "List the contexts, or create this context.")


def _other_language(context: Context) -> RpcError:
    return RpcError("conflict", f"Context {context.name!r} runs {context.language} only.", "Use another context, or omit the language.")

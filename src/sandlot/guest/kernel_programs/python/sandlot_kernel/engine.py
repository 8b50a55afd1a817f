"""The engine of the Python kernel: handles messages of the guest, runs cells one after another, and reports their results.

Invariants:
- An exception in a cell, even SystemExit or KeyboardInterrupt, ends the cell, but not the kernel, which keeps its variables.
- Every message about a cell contains the id of the cell, even after the end of the cell.
- A cell that fails reports exactly one ``error`` message, even if the cell is interrupted. Further errors of the cell, and errors of its threads
  and tasks after its end, are written as text to the standard error of the cell.
- Environment variables of a cell's request are set only while the cell runs.
- The guest sets the working directory before the first cell. After that, only cells change the working directory.
- Cells have no standard input: ``input``, ``getpass`` and debuggers fail at once with an error that says so.
"""

from __future__ import annotations

import builtins
import getpass
import os
import sys
import time

from . import attribution, tracebacks
from .display_data import display_bundle
from .event_loop import EventLoop
from .forking import ForkHooks
from .interrupts import Interrupts
from .kernel_guard import KernelGuard
from .output import STDERR, STDOUT, Output
from .randomness import reseed
from .text_streams import Stream
from .wake_callbacks import callbacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

NO_INPUT = "Standard input is not available to cells, so input() cannot be used. Pass values in the code, in files or in environment variables."
NO_DEBUGGER = "A debugger cannot be used, because standard input is not available to cells. Print the values, or inspect them in the next cell."


class StdinNotImplementedError(EOFError):
    """Error of ``input()``, ``getpass()`` and debuggers in a cell.

    Jupyter kernels use the same name. The base class is EOFError, because programs expect EOFError if there is no input.
    """

    __module__ = "builtins"  # tracebacks show the name without a module


class KernelFacade:
    """The part of the kernel that a shell uses: methods to report results and errors, and to mark where code of a cell begins and ends.

    Args:
        output: Queue of the kernel's output.
        interrupts: Handler of SIGINT.
        guard: Repairs what cells have broken, and switches between the builtins of cells and those of the kernel.
        forks: Knows whether this process is a child that a cell has forked.

    Attributes:
        failed: True if the running cell has reported an error.
    """

    def __init__(self, output: Output, interrupts: Interrupts, guard: KernelGuard, forks: ForkHooks) -> None:
        self.guard = guard
        self.failed = False
        self._cell: str | None = None
        self._output = output
        self._interrupts = interrupts
        self._forks = forks
        self._levels = 0

    def reset(self, cell: str | None = None) -> None:
        """Reset the state of the last cell.

        Args:
            cell: Id of the cell that begins; None if a cell has ended.
        """
        self.failed = False
        self._cell = cell
        self._levels = 0
        self._interrupts.leave()
        self._interrupts.depth = 0

    def enter(self) -> None:
        """Record that the code of a cell starts to run. The caller must call :meth:`leave` afterwards, even if this method raises KeyboardInterrupt.

        Raises:
            KeyboardInterrupt: An interrupt was pending.
        """
        self._levels += 1
        if self._levels == 1:
            self.guard.builtins.enter()
            self._interrupts.enter()

    def leave(self) -> None:
        """Record that the code of a cell has ended. Pairs of :meth:`enter` and ``leave`` may be nested; only the outermost pair has an effect."""
        if self._levels == 1:
            self._interrupts.in_user_code = False  # must come first and call no method: KeyboardInterrupt could still be raised in a method
            self.guard.builtins.leave()
        self._levels -= 1

    def leave_all(self) -> None:
        """Record that all code of a cell has ended, even if an interrupt has prevented a call of :meth:`leave`."""
        if self._levels > 0:
            self._levels = 1
            self.leave()

    def report_end(self, error: BaseException | None) -> None:
        """Report the exception that has ended the code of a cell, if there is one. In a forked child, always end the process instead.

        Args:
            error: The exception; None if the code has ended normally.
        """
        if self._forks.is_child():
            self._forks.end_child(error)
        if error is not None:
            self.error(type(error), error, error.__traceback__)

    def display(self, data: Any, metadata: Any, *, main: bool, display_id: str | None = None, update: bool = False) -> None:
        """Send a result of a cell to the guest. Does nothing if none of the representations is valid.

        Args:
            data: Representations of the result: MIME type -> data.
            metadata: Metadata of the representations; None if there is none.
            main: True for the value of the last expression of the cell; False for a call of ``display()``.
            display_id: Id under which the result can be updated; None for no id.
            update: True to replace the results that have this ``display_id``.
        """
        bundle, about = display_bundle(data, metadata)
        if not bundle:
            return
        message = {"event": "display", "cell": attribution.current_cell(), "data": bundle, "main": main}
        if about:
            message["metadata"] = about
        if display_id is not None:
            message.update(display_id=display_id, update=update)
        self._output.send(message)

    def clear(self, *, wait: bool) -> None:
        """Tell the guest to remove the results of the current cell.

        Args:
            wait: True to remove the results only when the cell displays the next result.
        """
        self._output.send({"event": "clear", "cell": attribution.current_cell(), "wait": wait})

    def error(self, kind: Any, raised: Any, trace: Any, lines: list[str] | None = None, cell: str | None = None) -> None:
        """Report an exception as the error of a cell. If the cell has an error already or has ended, write the exception to the cell's stderr.

        In a forked child, end the process instead.

        Args:
            kind: Class of the exception.
            raised: The exception.
            trace: Traceback of the exception; None if there is none.
            lines: Lines to send as the traceback; None to format the traceback in the default way.
            cell: Id of the cell; None for the cell to which the calling thread or task belongs.
        """
        if self._forks.is_child():
            self._forks.end_child(raised)
        kind, raised = _translate_error(kind, raised, interrupted=self._interrupts)
        message = tracebacks.error_message(kind, raised, trace)
        if lines is not None:
            message["traceback"] = lines
        message["cell"] = attribution.current_cell() if cell is None else cell
        self._interrupts.depth += 1
        try:  # KeyboardInterrupt must not be raised after self.failed is set and before the message is queued
            if self.failed or message["cell"] != self._cell:
                text = "".join(f"{line}\n" for line in message["traceback"])
                self._output.parts.append((message["cell"], STDERR, text))
            else:
                self.failed = True
                self._output.parts.append((None, 0, message))
        finally:
            self._interrupts.depth -= 1
        self._output.flush()


class Engine:
    """The kernel of this process. A fork server also has an engine, which the kernels that are forked from it inherit.

    Args:
        shell: Shell that runs the cells: ``ipython_shell.IPythonShell`` or ``plain_shell.PlainShell``.

    Attributes:
        warning: Text that the next cell writes to standard error first; empty if there is none.
        has_ipython: True if ``shell`` is an ``IPythonShell``.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._interrupts = Interrupts()
        self._output = Output(self._interrupts)
        self._guard = KernelGuard(Stream(self._output, STDOUT, "<stdout>"), Stream(self._output, STDERR, "<stderr>"))
        self._forks = ForkHooks(self._output)
        self._loop = EventLoop(self._interrupts)
        self._facade = KernelFacade(self._output, self._interrupts, self._guard, self._forks)
        self._cell_count = 0
        self._was_flush_requested = False
        self._is_forked = False
        """True if this process was forked from a fork server. The kernel then has time to rehearse (``_rehearse_cell``) before the first cell."""
        self.warning = ""
        self.has_ipython = True

    def prepare(self) -> None:
        """Patch ``input``, ``getpass``, the debugger hook and threads, and connect the shell. Kernels that are forked later inherit the patches."""
        builtins.input = _raise_no_input
        getpass.getpass = _raise_no_input  # type: ignore[assignment]
        sys.breakpointhook = _raise_no_debugger
        attribution.install()
        self._shell.connect(self._facade)

    def rehearse_shell(self) -> None:
        """Run two short pieces of code in the shell and drop their output, so that the code and data that cells need are in memory."""
        self._output.is_muted = True
        for code in ("6 * 7", "1 / 0"):
            coroutine, _needs_loop = self._shell.begin(code, "<cell 0>", silent=False, stored=False)
            try:
                coroutine.send(None)
            except StopIteration:
                pass
            self._shell.after(silent=False)
            self._facade.reset()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        self._output.is_muted = False

    def _rehearse_cell(self) -> None:
        """Run a cell without output or lasting effect, so that all memory pages that cells need are loaded before the first real cell."""
        warning, self.warning = self.warning, ""
        self._output.is_muted = True
        self._run_cell({"cell": "", "code": "print(1)\n1", "silent": False, "store_history": False})
        self._output.is_muted = False
        self._cell_count, self.warning = 0, warning

    def on_forked(self, entropy: bytes) -> None:
        """Make this process an independent kernel, after a fork by the fork server.

        Args:
            entropy: 64 random bytes that no other kernel receives.
        """
        self._forks.become_kernel()
        reseed(entropy)
        self._is_forked = True

    def serve(self, channel: Channel, flush_fd: int = -1) -> None:
        """Handle messages of the guest until the guest or a cell closes the socket.

        Args:
            channel: Connection to the guest.
            flush_fd: Descriptor of the pipe on which the guest requests delayed output; -1 if there is none.
        """
        self._output.connect(channel, flush_fd)
        self._guard.install()
        self._forks.install()
        self._interrupts.install()
        self._loop.install()
        try:
            if self._is_forked:
                self._rehearse_cell()
            self._output.send({"event": "ready"})
            while True:
                self._loop.run_until_message(channel)
                self._handle(channel.receive())
        except (EOFError, OSError):
            return

    def _handle(self, message: dict[str, Any]) -> None:
        if message["op"] == "execute":
            self._run_cell(message)
        elif message["op"] == "rehearse":
            if not self._cell_count:
                reseed(os.urandom(64))
                self._rehearse_cell()
            self._output.send({"event": "ready"})
        elif message["op"] == "wake":
            _change_environment(message.get("env") or {}, message.get("gone") or ())
            if message.get("cwd") and not self._cell_count:
                _change_directory(message["cwd"])
            reseed(message["entropy"])
            self.warning += callbacks.call(message["entropy"], self._interrupts)

    def _run_cell(self, message: dict[str, Any]) -> None:
        env = message.get("env") or {}
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        count = self._shell.execution_count
        try:
            ok, count = self._execute(message)
        except (EOFError, OSError):
            raise
        except BaseException as error:  # noqa: BLE001 - a cell has broken a part of Python that the kernel needs
            self._facade.leave_all()
            self._facade.error(type(error), error, error.__traceback__, cell=message.get("cell", ""))
            ok = False
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._was_flush_requested = self._output.was_flush_requested
        self._interrupts.in_cell = self._output.was_flush_requested = False
        self._facade.reset()
        self._output.send({"event": "done", "cell": message.get("cell", ""), "ok": ok, "count": count})

    def _execute(self, message: dict[str, Any]) -> tuple[bool, int]:
        cell, silent = message.get("cell", ""), bool(message.get("silent"))
        stored = bool(message.get("store_history", True)) and not silent
        interrupts, shell, facade = self._interrupts, self._shell, self._facade
        facade.reset(cell)
        interrupts.pending = interrupts.cancelled = False
        interrupts.in_cell = True
        interrupts.install(anew=self._was_flush_requested)
        self._guard.restore()
        self._loop.call(attribution.begin_cell, cell)
        count = shell.execution_count if stored else shell.execution_count - 1
        self._output.begin_cell()
        self._output.send_start({"event": "started", "cell": cell, "count": count})
        if self.warning:
            self._guard.stderr.write(self.warning)
            self.warning = ""
        self._cell_count += 1
        name = f"<cell {count}>" if stored else f"<cell {count}.{self._cell_count}>"
        try:
            coroutine, needs_loop = shell.begin(message["code"], name, silent=silent, stored=stored)
            (self._loop.run if needs_loop else self._loop.step)(coroutine)
            facade.leave_all()
            facade.report_end(None)
        except BaseException as error:  # noqa: BLE001 - a cell has broken the shell, or the shell was interrupted
            facade.leave_all()
            facade.report_end(error)
        try:
            try:
                facade.enter()
                self._loop.call(lambda: shell.after(silent=silent))
            finally:
                facade.leave()
        except BaseException as error:  # noqa: BLE001 - an error while figures are shown is an error of the cell
            facade.report_end(error)
        self._flush_others()
        return not facade.failed, count

    def _flush_others(self) -> None:
        """Flush ``sys.stdout`` and ``sys.stderr`` if a cell has replaced these streams by other streams."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if type(stream) is not Stream:
                try:
                    stream.flush()
                except Exception:  # noqa: BLE001, S110 - an object of a cell may raise any exception
                    pass


def _translate_error(kind: Any, raised: Any, *, interrupted: Interrupts) -> tuple[Any, Any]:
    """Return the class and the exception to report. An exception that users would not understand is replaced by a clearer exception.

    The CancelledError of a cell that was cancelled by an interrupt becomes KeyboardInterrupt. The error of a debugger that finds no standard input
    gets a message. All other exceptions are returned unchanged.

    Args:
        kind: Class of the exception.
        raised: The exception.
        interrupted: Handler of SIGINT. Its attribute ``cancelled`` is True if an interrupt has cancelled the cell.
    """
    name = tracebacks.name_of(kind)
    if name == "CancelledError" and interrupted.cancelled:
        return KeyboardInterrupt, KeyboardInterrupt().with_traceback(raised.__traceback__)
    if name == "BdbQuit" and not str(raised):
        return kind, kind(NO_DEBUGGER).with_traceback(raised.__traceback__)
    return kind, raised


def _raise_no_input(prompt: object = "", *_more: object) -> str:
    raise StdinNotImplementedError(f"{NO_INPUT} The prompt was {str(prompt)[:200]!r}." if prompt else NO_INPUT)


def _raise_no_debugger(*_args: object, **_named: object) -> None:
    raise StdinNotImplementedError(NO_DEBUGGER)


def _change_environment(changed: dict[str, str], gone: Any) -> None:
    os.environ.update(changed)
    for name in gone:
        os.environ.pop(name, None)
    if "TZ" in changed or "TZ" in gone:
        time.tzset()  # the C library does not notice that TZ has changed


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError:
        return  # the folder was removed: keep the present working directory
    os.environ["PWD"] = path

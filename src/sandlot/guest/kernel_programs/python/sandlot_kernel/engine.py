"""The kernel: handles messages of the guest, runs cells one after another, and reports their results.

Invariants:
- An exception, even SystemExit and KeyboardInterrupt, ends the cell, but not the kernel, which keeps its variables.
- Every message about a cell contains its id, even after the end of the cell.
- A cell that fails reports exactly one error, even if it is interrupted. Its further errors, and errors after its end, are written to its
  stderr.
- The environment of a cell is set only while the cell runs.
- The guest sets the working directory before the first cell. After that, only cells change it.
- Standard input has no data: ``input``, ``getpass`` and debuggers fail at once with a hint.
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
    """The error for missing input, with the name that notebooks use. An EOFError, which programs expect at the end of input."""

    __module__ = "builtins"  # tracebacks show the name without a module


class KernelFacade:
    """The part of the kernel that a shell uses.

    Args:
        output: Output of the kernel.
        interrupts: The handler of SIGINT.
        guard: Restores the state of the process.
        forks: Detects forked children.

    Attributes:
        failed: True if the running cell has reported its error.
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
        """Prepare for a cell, or for the time between cells if ``cell`` is None."""
        self.failed = False
        self._cell = cell
        self._levels = 0
        self._interrupts.leave()
        self._interrupts.depth = 0

    def enter(self) -> None:
        """Begin code of a cell. ``leave`` must follow, even if this method raises KeyboardInterrupt."""
        self._levels += 1
        if self._levels == 1:
            self.guard.builtins.enter()
            self._interrupts.enter()

    def leave(self) -> None:
        """End code of a cell."""
        if self._levels == 1:
            self._interrupts.in_user_code = False  # first and without a call, because an interrupt could be raised in a call
            self.guard.builtins.leave()
        self._levels -= 1

    def leave_all(self) -> None:
        """End code of a cell on all levels, even if an interrupt has prevented a ``leave``."""
        if self._levels > 0:
            self._levels = 1
            self.leave()

    def report_end(self, error: BaseException | None) -> None:
        """Report the exception that has ended a cell, if there is one. In a forked child, end the process."""
        if self._forks.is_child():
            self._forks.end_child(error)
        if error is not None:
            self.error(type(error), error, error.__traceback__)

    def display(self, data: Any, metadata: Any, *, main: bool, display_id: str | None = None, update: bool = False) -> None:
        """Report a result."""
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
        """Report that the cell removes its results."""
        self._output.send({"event": "clear", "cell": attribution.current_cell(), "wait": wait})

    def error(self, kind: Any, raised: Any, trace: Any, lines: list[str] | None = None, cell: str | None = None) -> None:
        """Report an error of a cell. In a forked child, end the process."""
        if self._forks.is_child():
            self._forks.end_child(raised)
        kind, raised = _translate_error(kind, raised, interrupted=self._interrupts)
        message = tracebacks.error_message(kind, raised, trace)
        if lines is not None:
            message["traceback"] = lines
        message["cell"] = attribution.current_cell() if cell is None else cell
        self._interrupts.depth += 1
        try:  # no interrupt may be raised between the flag and the message
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
    """The kernel of this process.

    Args:
        shell: Runs the cells: ``ipython_shell.IPythonShell`` or ``plain_shell.PlainShell``.

    Attributes:
        warning: Text for the stderr of the next cell.
        has_ipython: True if the shell is IPython.
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
        """True if a fork server has forked this process, so that no context waits for it yet."""
        self.warning = ""
        self.has_ipython = True

    def prepare(self) -> None:
        """Do the set-up that kernels inherit when they are forked from this process."""
        builtins.input = _raise_no_input
        getpass.getpass = _raise_no_input  # type: ignore[assignment]
        sys.breakpointhook = _raise_no_debugger
        attribution.install()
        self._shell.connect(self._facade)

    def rehearse_shell(self) -> None:
        """Let the shell run code without output, so that forked kernels inherit the loaded code and data."""
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
        """Run a cell without output or lasting effect, so that the memory pages that a cell needs are copied before the first real cell."""
        warning, self.warning = self.warning, ""
        self._output.is_muted = True
        self._run_cell({"cell": "", "code": "print(1)\n1", "silent": False, "store_history": False})
        self._output.is_muted = False
        self._cell_count, self.warning = 0, warning

    def on_forked(self, entropy: bytes) -> None:
        """Become a separate kernel after a fork by the fork server.

        Args:
            entropy: 64 bytes that no other kernel receives.
        """
        self._forks.become_kernel()
        reseed(entropy)
        self._is_forked = True

    def serve(self, channel: Channel, flush_fd: int = -1) -> None:
        """Handle messages until the guest closes the socket.

        Args:
            channel: Messages to and from the guest.
            flush_fd: As in ``Output.connect``.
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
        except BaseException as error:  # noqa: BLE001 - a cell has broken the shell, or it was interrupted
            facade.leave_all()
            facade.report_end(error)
        try:
            try:
                facade.enter()
                self._loop.call(lambda: shell.after(silent=silent))
            finally:
                facade.leave()
        except BaseException as error:  # noqa: BLE001 - figures are rendered as part of the cell
            facade.report_end(error)
        self._flush_others()
        return not facade.failed, count

    def _flush_others(self) -> None:
        """Flush streams that a cell has installed as ``sys.stdout`` or ``sys.stderr``."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if type(stream) is not Stream:
                try:
                    stream.flush()
                except Exception:  # noqa: BLE001, S110 - the cell's own stream
                    pass


def _translate_error(kind: Any, raised: Any, *, interrupted: Interrupts) -> tuple[Any, Any]:
    """Return the error to report. A cancelled cell becomes KeyboardInterrupt; the error of a debugger without input gets a message."""
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
        time.tzset()  # otherwise, TZ is read only once, at the start of the process


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError:
        return  # the folder does not exist any more
    os.environ["PWD"] = path

"""The kernel: takes messages, runs cells one after another, reports their results.

Invariants:
- An exception, also SystemExit and KeyboardInterrupt, ends the cell and leaves the kernel and its variables.
- Every message about a cell names the cell, also after its end.
- A cell that fails reports exactly one error, whenever an interrupt strikes. Further errors in it, and errors of cells that are over, are
  text on their stderr.
- The environment of a cell is set for the cell only.
- The guest chooses the working directory before the first cell; after that, cells do.
- Standard input has no data: ``input``, ``getpass`` and debuggers fail at once and say what to do.
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

NO_INPUT = "There is nobody to ask here: input() and the like cannot be answered. Pass the values in the code, or as files or environment variables."
NO_DEBUGGER = "There is nobody at the debugger's prompt. Print what you want to see, or look at the variables in the next cell."


class StdinNotImplementedError(EOFError):
    """The error of notebooks without input; an EOFError, which programs expect at the end of input."""

    __module__ = "builtins"  # tracebacks show the name without a module


class KernelFacade:
    """The part of the kernel that a shell uses.

    Args:
        output: Everything that is sent.
        interrupts: The handler of SIGINT.
        guard: Restores the state of the process.
        forks: Tells whether this process is a forked child.

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
        """Prepare for a cell, or for none: no code of a cell runs."""
        self.failed = False
        self._cell = cell
        self._levels = 0
        self._interrupts.leave()
        self._interrupts.depth = 0

    def enter(self) -> None:
        """Begin code of a cell. ``leave`` must follow, also if this raises KeyboardInterrupt."""
        self._levels += 1
        if self._levels == 1:
            self.guard.builtins.enter()
            self._interrupts.enter()

    def leave(self) -> None:
        """End code of a cell."""
        if self._levels == 1:
            self._interrupts.in_user_code = False  # first and without a call, in which an interrupt could strike
            self.guard.builtins.leave()
        self._levels -= 1

    def leave_all(self) -> None:
        """End code of a cell on all levels, also if an interrupt has prevented a ``leave``."""
        if self._levels > 0:
            self._levels = 1
            self.leave()

    def report_end(self, error: BaseException | None) -> None:
        """Report the exception that has ended a cell, if there is one. A child that the cell has forked ends here."""
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
        """Report that results so far are to be removed."""
        self._output.send({"event": "clear", "cell": attribution.current_cell(), "wait": wait})

    def error(self, kind: Any, raised: Any, trace: Any, lines: list[str] | None = None, cell: str | None = None) -> None:
        """Report an error of a cell. A child that the cell has forked ends with it."""
        if self._forks.is_child():
            self._forks.end_child(raised)
        kind, raised = _translate_error(kind, raised, interrupted=self._interrupts)
        message = tracebacks.error_message(kind, raised, trace)
        if lines is not None:
            message["traceback"] = lines
        message["cell"] = attribution.current_cell() if cell is None else cell
        self._interrupts.depth += 1
        try:  # an interrupt must not strike between the flag and the message
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
        warning: Text on the stderr of the first cell.
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
        """True if a fork server has forked this process: no context waits for it yet."""
        self.warning = ""
        self.has_ipython = True

    def prepare(self) -> None:
        """Do everything that is needed once and that kernels inherit which are forked from this process."""
        builtins.input = _raise_no_input
        getpass.getpass = _raise_no_input  # type: ignore[assignment]
        sys.breakpointhook = _raise_no_debugger
        attribution.install()
        self._shell.connect(self._facade)

    def rehearse_shell(self) -> None:
        """Let the shell run code without output, so that kernels which are forked from this process inherit what that has loaded."""
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
        """Run a cell like the first one, without output or a trace: the process gets its own copies of all pages that this touches."""
        warning, self.warning = self.warning, ""
        self._output.is_muted = True
        self._run_cell({"cell": "", "code": "print(1)\n1", "silent": False, "store_history": False})
        self._output.is_muted = False
        self._cell_count, self.warning = 0, warning

    def on_forked(self, entropy: bytes) -> None:
        """Become a kernel of its own after a fork by the fork server.

        Args:
            entropy: 64 bytes that no other kernel receives.
        """
        self._forks.become_kernel()
        reseed(entropy)
        self._is_forked = True

    def serve(self, channel: Channel, flush_fd: int = -1) -> None:
        """Handle messages until the guest is gone.

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
        except BaseException as error:  # noqa: BLE001 - a cell has broken what the kernel itself needs
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
        except BaseException as error:  # noqa: BLE001 - the shell is broken by a cell, or was interrupted
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
        """Flush streams that a cell has put in the place of ours."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if type(stream) is not Stream:
                try:
                    stream.flush()
                except Exception:  # noqa: BLE001, S110 - the cell's own stream
                    pass


def _translate_error(kind: Any, raised: Any, *, interrupted: Interrupts) -> tuple[Any, Any]:
    """Return an error as it is reported: a cancelled cell was interrupted, and a debugger has found no input."""
    name = tracebacks.name_of(kind)
    if name == "CancelledError" and interrupted.cancelled:
        return KeyboardInterrupt, KeyboardInterrupt().with_traceback(raised.__traceback__)
    if name == "BdbQuit" and not str(raised):
        return kind, kind(NO_DEBUGGER).with_traceback(raised.__traceback__)
    return kind, raised


def _raise_no_input(prompt: object = "", *_more: object) -> str:
    raise StdinNotImplementedError(f"{NO_INPUT} (It was asked: {str(prompt)[:200]!r})" if prompt else NO_INPUT)


def _raise_no_debugger(*_args: object, **_named: object) -> None:
    raise StdinNotImplementedError(NO_DEBUGGER)


def _change_environment(changed: dict[str, str], gone: Any) -> None:
    os.environ.update(changed)
    for name in gone:
        os.environ.pop(name, None)
    if "TZ" in changed or "TZ" in gone:
        time.tzset()  # otherwise it is read once, at the start of the process


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError:
        return  # it does not exist any more
    os.environ["PWD"] = path

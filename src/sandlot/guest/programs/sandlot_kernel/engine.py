"""The kernel: takes messages, runs cells one after another, tells what comes of them.

Laws:
- An exception, also SystemExit and KeyboardInterrupt, ends the cell and leaves the kernel and its variables.
- Every message about a cell names it, also after it is done.
- A cell that is not ok has told one error, whatever moment an interrupt strikes at. What else goes wrong in it, and what goes wrong in
  the name of a cell that is over, is text on its stderr.
- A cell's environment is lent to it: what was there before comes back.
- The folder is the guest's to choose before the first cell; from then on it is the cells'.
- There is nobody to ask: ``input``, ``getpass`` and debuggers fail at once and say what to do.
"""

from __future__ import annotations

import builtins
import getpass
import os
import sys
import time

from . import hooks, origins, reseed, telling
from .children import Children
from .guard import Guard
from .running import Interrupts, Loop
from .streams import STDERR, STDOUT, Output, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .wire import Wire

NOBODY = "There is nobody to ask here: input() and the like cannot be answered. Pass the values in the code, or as files or environment variables."
NO_DEBUGGER = "There is nobody at the debugger's prompt. Print what you want to see, or look at the variables in the next cell."


class StdinNotImplementedError(EOFError):
    """The name that notebooks give it; an EOFError, because that is what programs expect of an input that ends."""

    __module__ = "builtins"  # so that a traceback calls it by its name alone


class Host:
    """What a shell has of the kernel around it."""

    def __init__(self, output: Output, interrupts: Interrupts, guard: Guard, children: Children) -> None:
        self.guard = guard
        self.failed = False
        """Whether the running cell has told its error."""
        self._cell: str | None = None
        self._output = output
        self._interrupts = interrupts
        self._children = children
        self._levels = 0

    def reset(self, cell: str | None = None) -> None:
        """A new cell, or none: no code of a cell runs."""
        self.failed = False
        self._cell = cell
        self._levels = 0
        self._interrupts.leave()
        self._interrupts.depth = 0

    def enter(self) -> None:
        """A cell's own code begins; its ``leave`` follows also where this raises KeyboardInterrupt."""
        self._levels += 1
        if self._levels == 1:
            self.guard.builtins.enter()
            self._interrupts.enter()

    def leave(self) -> None:
        """A cell's own code is over."""
        if self._levels == 1:
            self._interrupts.in_user_code = False  # first and without a call: an interrupt would strike in that
            self.guard.builtins.leave()
        self._levels -= 1

    def settle(self) -> None:
        """A cell's own code is over, also where an interrupt struck on its way out."""
        if self._levels > 0:
            self._levels = 1
            self.leave()

    def ended(self, error: BaseException | None) -> None:
        """What a cell came to; a child that it forked does not come back from here."""
        if self._children.is_child():
            self._children.end(error)
        if error is not None:
            self.error(type(error), error, error.__traceback__)

    def display(self, data: Any, metadata: Any, *, main: bool, display_id: str | None = None, update: bool = False) -> None:
        """Tell a result."""
        told, about = telling.bundle(data, metadata)
        if not told:
            return
        message = {"event": "display", "cell": origins.current(), "data": told, "main": main}
        if about:
            message["metadata"] = about
        if display_id is not None:
            message.update(display_id=display_id, update=update)
        self._output.send(message)

    def clear(self, *, wait: bool) -> None:
        """Tell that what was shown so far is to go."""
        self._output.send({"event": "clear", "cell": origins.current(), "wait": wait})

    def error(self, kind: Any, raised: Any, trace: Any, lines: list[str] | None = None, cell: str | None = None) -> None:
        """Tell an error of the cell; a child that it forked ends with it."""
        if self._children.is_child():
            self._children.end(raised)
        kind, raised = _translated(kind, raised, interrupted=self._interrupts)
        message = telling.error(kind, raised, trace)
        if lines is not None:
            message["traceback"] = lines
        message["cell"] = origins.current() if cell is None else cell
        self._interrupts.depth += 1
        try:  # not told and failed, or failed and not told, where an interrupt strikes between the two
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
    """A kernel's process."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._interrupts = Interrupts()
        self._output = Output(self._interrupts)
        self._guard = Guard(Stream(self._output, STDOUT, "<stdout>"), Stream(self._output, STDERR, "<stderr>"))
        self._children = Children(self._output)
        self._loop = Loop(self._interrupts)
        self._host = Host(self._output, self._interrupts, self._guard, self._children)
        self._wire: Wire | None = None
        self._number = 0
        self._was_long = False
        self._has_time = False
        """Whether nobody waits for it yet."""
        self.warning = ""
        """Told on stderr of the first cell."""
        self.is_whole = True
        """Whether the shell is IPython."""

    def prepare(self) -> None:
        """All that can be done before there is a guest to serve, once; a zygote's children inherit it."""
        builtins.input = _nothing_to_read
        getpass.getpass = _nothing_to_read  # type: ignore[assignment]
        sys.breakpointhook = _no_debugger
        origins.install()
        self._shell.connect(self._host)

    def rehearse(self) -> None:
        """Do once, unheard, what every first cell does, so that forked kernels have done it."""
        self._output.is_muted = True
        for code in ("6 * 7", "1 / 0"):
            coroutine, _needs_loop = self._shell.begin(code, "<cell 0>", silent=False, stored=False)
            try:
                coroutine.send(None)
            except StopIteration:
                pass
            self._shell.after(silent=False)
            self._host.reset()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        self._output.is_muted = False

    def _rehearse_all(self) -> None:
        """Run a cell as the first one will be run, unheard and without a trace: all that it touches is this process's own then."""
        warning, self.warning = self.warning, ""
        self._output.is_muted = True
        self._lend({"cell": "", "code": "print(1)\n1", "silent": False, "store_history": False})
        self._output.is_muted = False
        self._number, self.warning = 0, warning

    def part(self, entropy: bytes) -> None:
        """This process was forked from a zygote: its randomness is its own."""
        self._children.settle()
        reseed(entropy)
        self._has_time = True

    def serve(self, wire: Wire, bell: int = -1) -> None:
        """Answer until the guest is gone.

        Args:
            wire: To the guest.
            bell: As ``Output.connect`` has it.
        """
        self._wire = wire
        self._output.connect(wire, bell)
        self._guard.install()
        self._children.install()
        self._interrupts.install()
        self._loop.install()
        try:
            if self._has_time:
                self._rehearse_all()
            self._output.send({"event": "ready"})
            while True:
                self._loop.wait(wire)
                self._take(wire.receive())
        except (EOFError, OSError):
            return

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "execute":
            self._lend(message)
        elif message["op"] == "rehearse":
            if not self._number:
                reseed(os.urandom(64))
                self._rehearse_all()
            self._output.send({"event": "ready"})
        elif message["op"] == "wake":
            _change_environment(message.get("env") or {}, message.get("gone") or ())
            if message.get("cwd") and not self._number:
                _change_folder(message["cwd"])
            reseed(message["entropy"])
            self.warning += hooks.call(message["entropy"], self._interrupts)

    def _lend(self, message: dict[str, Any]) -> None:
        env = message.get("env") or {}
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        count = self._shell.execution_count
        try:
            ok, count = self._execute(message)
        except (EOFError, OSError):
            raise
        except BaseException as error:  # noqa: BLE001 - a cell broke what the kernel itself needs
            self._host.settle()
            self._host.error(type(error), error, error.__traceback__, cell=message.get("cell", ""))
            ok = False
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._was_long = self._output.was_rung
        self._interrupts.in_cell = self._output.was_rung = False
        self._host.reset()
        self._output.send({"event": "done", "cell": message.get("cell", ""), "ok": ok, "count": count})

    def _execute(self, message: dict[str, Any]) -> tuple[bool, int]:
        cell, silent = message.get("cell", ""), bool(message.get("silent"))
        stored = bool(message.get("store_history", True)) and not silent
        interrupts, shell, host = self._interrupts, self._shell, self._host
        host.reset(cell)
        interrupts.pending = interrupts.cancelled = False
        interrupts.in_cell = True
        interrupts.install(anew=self._was_long)
        self._guard.restore()
        self._loop.call(origins.begin, cell)
        count = shell.execution_count if stored else shell.execution_count - 1
        self._output.fresh()
        self._output.begin({"event": "started", "cell": cell, "count": count})
        if self.warning:
            self._guard.stderr.write(self.warning)
            self.warning = ""
        self._number += 1
        name = f"<cell {count}>" if stored else f"<cell {count}.{self._number}>"
        try:
            coroutine, needs_loop = shell.begin(message["code"], name, silent=silent, stored=stored)
            (self._loop.run if needs_loop else self._loop.step)(coroutine)
            host.settle()
            host.ended(None)
        except BaseException as error:  # noqa: BLE001 - a shell that a cell has broken, or an interrupt in its middle
            host.settle()
            host.ended(error)
        try:
            try:
                host.enter()
                self._loop.call(lambda: shell.after(silent=silent))
            finally:
                host.leave()
        except BaseException as error:  # noqa: BLE001 - rendering figures is the cell's work as well
            host.ended(error)
        self._flush_others()
        return not host.failed, count

    def _flush_others(self) -> None:
        """Push out what a replacement of a stream still keeps."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if type(stream) is not Stream:
                try:
                    stream.flush()
                except Exception:  # noqa: BLE001, S110 - the cell's own doing
                    pass


def _translated(kind: Any, raised: Any, *, interrupted: Interrupts) -> tuple[Any, Any]:
    """An error as it is told: an interrupt while the cell awaited cancels it, a debugger finds the end of its input."""
    name = telling.name_of(kind)
    if name == "CancelledError" and interrupted.cancelled:
        return KeyboardInterrupt, KeyboardInterrupt().with_traceback(raised.__traceback__)
    if name == "BdbQuit" and not str(raised):
        return kind, kind(NO_DEBUGGER).with_traceback(raised.__traceback__)
    return kind, raised


def _nothing_to_read(prompt: object = "", *_more: object) -> str:
    raise StdinNotImplementedError(f"{NOBODY} (It was asked: {str(prompt)[:200]!r})" if prompt else NOBODY)


def _no_debugger(*_args: object, **_named: object) -> None:
    raise StdinNotImplementedError(NO_DEBUGGER)


def _change_environment(changed: dict[str, str], gone: Any) -> None:
    os.environ.update(changed)
    for name in gone:
        os.environ.pop(name, None)
    if "TZ" in changed or "TZ" in gone:
        time.tzset()  # otherwise read once, when the process begins


def _change_folder(path: str) -> None:
    try:
        os.chdir(path)
    except OSError:
        return  # it is gone: the kernel stays where it is
    os.environ["PWD"] = path

"""Kernels: a Python process that keeps variables between cells, driven over a socket pair.

Laws:
- A kernel runs on the image's python as ``user``; its socket is as hostile as everything else that users reach: messages
  are bounded and checked, a kernel that breaks the wire is killed.
- One cell at a time; others wait in order. An exception leaves the kernel usable.
- A timeout interrupts first (SIGINT to the group) and kills only after ``GRACE_S``; a kernel that died is started
  anew by the next cell, and the cell that it died in says so.
- A cell is known by the id of its call: asked again, or attached to, it is the same cell.
"""

from __future__ import annotations

import os
import struct
import time

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.lean import signal, socket
from sandlot.guest.flow.loop import READ, WRITE
from sandlot.guest.flow.outputs import Outputs
from sandlot.guest.flow.pipes import OutputPipe, open_pipe
from sandlot.guest.kernels.cells import Cell, epitaph
from sandlot.guest.spawn import account, candidates, environment, start
from sandlot.guest.tasks import kill_tree
from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.lean import OrderedDict, deque
from sandlot.protocol.schema import LIMITS, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.main import Guest

PROGRAM = "/.sandlot/programs/kernel.py"
GRACE_S = 2.0
KEPT = 32
KEPT_BYTES = 16 * 1024 * 1024
MIME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.+_-")
MIME_PART = 100
LINE_CHARS = 8000
"""Of an error's text and a traceback's line; schema.LIMITS allows 64 KiB, and a character has up to 4 bytes."""
HEAD = struct.Struct(">I")


def find_python(env: dict[str, str]) -> str | None:
    """The image's python, or None."""
    for name in ("python3", "python"):
        for path in candidates(name, env):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return os.fsdecode(path)
    return None


def is_mime_type(text: str) -> bool:
    """Whether a text is type/subtype, RFC 2045, section 5.1."""
    kind, _, subtype = text.partition("/")
    return all(0 < len(part) <= MIME_PART and MIME_CHARS.issuperset(part) for part in (kind, subtype))


class Kernel:
    """One kernel process and the cells that wait for it."""

    __slots__ = ("_buffer", "_guest", "_out", "_settling", "_socket", "_timed_out", "_timer", "_up", "cell", "count", "name", "pid", "pipes", "queue")

    def __init__(self, guest: Guest, name: str) -> None:
        self._guest = guest
        self.name = name
        self.pid = 0
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._out = bytearray()
        self._timer: Any = None
        self._timed_out = False
        self._settling = False
        self._up = False
        self.cell: Cell | None = None
        self.queue: deque[Cell] = deque()
        self.pipes: list[OutputPipe] = []
        self.count = 0

    def boot(self) -> None:
        """Start the process where there is none.

        Raises:
            Refusal: The image has no python, or it does not start.
        """
        if self.pid:
            return
        guest = self._guest
        who = account("user")
        env = environment(who, guest.env)
        python = find_python(env)
        if python is None:
            raise Refusal("unsupported", "This image has no python, so it has no kernel.", "Run commands instead, or use a template with python.")
        ours, theirs = socket.socketpair()
        out_read, out_write = open_pipe(roomy=True)
        err_read, err_write = open_pipe(roomy=True)
        try:
            argv = [python, PROGRAM, str(theirs.fileno())]
            self.pid = start(argv, env, guest.workspace, who, (guest.dev_null, out_write, err_write), keep=theirs.fileno())
        except BaseException:
            for fd in (out_read, err_read):
                os.close(fd)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        ours.setblocking(False)
        self._socket = ours
        self._buffer.clear()
        self._out.clear()
        self._up = False
        self.count = 0
        idle = Outputs((STDOUT, STDERR))  # what background threads print before the first cell is nobody's
        self.pipes = [OutputPipe(guest.loop, fd, channel, idle, self._piped) for fd, channel in ((out_read, STDOUT), (err_read, STDERR))]
        guest.loop.watch(ours.fileno(), READ, self._ready)
        guest.pids.watch()
        self.woken()

    def woken(self) -> None:
        """The sandbox begins a life: a kernel that lived before parts from its clones in randomness and environment."""
        if self.pid:
            self._send({"op": "wake", "entropy": self._guest.entropy, "env": self._guest.env})

    def submit(self, cell: Cell) -> None:
        """Run a cell after those before it."""
        self.queue.append(cell)
        self._next()

    def interrupt(self) -> bool:
        """KeyboardInterrupt for the running cell; whether there was one."""
        if self.cell is None or not self.pid:
            return False
        try:
            os.killpg(self.pid, signal.SIGINT)
        except OSError:
            return False
        return True

    def restart(self) -> None:
        """Kill the process; the next cell starts a new one."""
        if self.pid:
            kill_tree(self.pid, signal.SIGKILL)
            self._lost("killed")

    def reaped(self) -> None:
        """The process ended by itself or was killed by somebody else; its children end with it."""
        kill_tree(self.pid, signal.SIGKILL)
        self._lost("died")

    def _next(self) -> None:
        while self.cell is None and self.queue:
            cell = self.queue.popleft()
            try:
                self.boot()
            except Refusal as refusal:
                cell.tell({"event": "error", "name": "KernelError", "value": refusal.message, "traceback": []}, 0)
                cell.finish("died", 0)
                continue
            self.cell = cell
            self._timed_out = False
            cell.started_s = time.monotonic()
            for pipe in self.pipes:
                pipe.redirect(cell.outputs)
            cell.on_sent = self._read_on
            if cell.timeout_s is not None:
                self._timer = self._guest.loop.after(cell.timeout_s, self._too_long)
            self._send({"op": "execute", "code": cell.code, "env": cell.env})

    def _too_long(self) -> None:
        self.interrupt()
        self._timer = self._guest.loop.after(GRACE_S, self._much_too_long)
        self._timed_out = True

    def _much_too_long(self) -> None:
        if self.pid:
            kill_tree(self.pid, signal.SIGKILL)
            self._lost("killed")

    def _send(self, message: dict[str, Any]) -> None:
        raw = values.encode(message)
        self._out += HEAD.pack(len(raw)) + raw
        self._write()

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            while self._out:
                sent = self._socket.send(memoryview(self._out)[:65536])
                del self._out[:sent]
        except BlockingIOError:
            self._guest.loop.watch(self._socket.fileno(), READ | WRITE, self._ready)
            return
        except OSError:
            return  # the end of file follows
        self._guest.loop.watch(self._socket.fileno(), READ, self._ready)

    def _ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if mask & ~WRITE:
            self._read()

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The socket was closed on purpose, or the process is about to be reaped; it is no kernel any more.
            self._break()
            return
        self._buffer += data
        try:
            self._parse()
        except (values.BadValue, KeyError, TypeError, ValueError):
            self._break()

    def _break(self) -> None:
        if self.pid:
            kill_tree(self.pid, signal.SIGKILL)
            self._lost("died")

    def _parse(self) -> None:
        while len(self._buffer) >= HEAD.size:
            (size,) = HEAD.unpack_from(self._buffer)
            if size > MESSAGE_MAX_BYTES:
                raise ValueError(size)
            if len(self._buffer) < HEAD.size + size:
                return
            raw = bytes(self._buffer[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size]
            self._take(values.decode(raw), size)

    def _take(self, message: Any, size: int) -> None:
        cell = self.cell
        kind = message["event"]
        self._up = True
        if cell is None or self._settling:
            return
        if kind == "display":
            items = list(message["data"].items())[: LIMITS["mime_types"]]
            data = {mime: item for mime, item in items if type(item) in {str, bytes} and is_mime_type(mime)}
            cell.tell({"event": "display", "data": data, "main": bool(message["main"])}, size)
        elif kind == "error":
            trace = [str(line)[:LINE_CHARS] for line in message["traceback"]][-LIMITS["traceback"] :]
            name, value = str(message["name"])[:LINE_CHARS], str(message["value"])[:LINE_CHARS]
            cell.tell({"event": "error", "name": name, "value": value, "traceback": trace}, size)
        elif kind == "done":
            status = "ok" if message["ok"] else "error"
            self._finish("timeout" if self._timed_out else status, int(message["count"]))

    def _finish(self, status: str, count: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.count = count
        if self.cell is not None:
            self._settling = True
            self._settle(self.cell, status, count)

    def _settle(self, cell: Cell, status: str, count: int) -> None:
        """All that the cell wrote before it was done is in the pipes: read it before the cell is finished."""
        dry = all([pipe.drain() for pipe in self.pipes if pipe.is_open])  # noqa: C419 - every pipe is drained, also after a full one
        cell.pump()
        if not dry:
            self._guest.loop.after(0.02, lambda: self._settle(cell, status, count))
            return
        self._settling = False
        self.cell = None
        cell.on_sent = None
        if not self.pid:
            self._close_pipes()
        cell.finish(status, count)
        self._next()

    def _lost(self, status: str) -> None:
        if not self.pid:
            return
        if self._timed_out and self.cell is not None:
            status = "killed"  # the interrupt can come before the kernel is so far that it takes one
        self.pid = 0
        if self._socket is not None:
            self._guest.loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self.cell is None:
            self._close_pipes()
        elif not self._settling:
            text = epitaph(status, began=self._up, late=self._timed_out)
            self.cell.tell({"event": "error", "name": "KernelDied", "value": text, "traceback": []}, 0)
            self._finish(status, self.count)

    def _close_pipes(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        self.pipes = []

    def _read_on(self) -> None:
        for pipe in self.pipes:
            pipe.refresh()

    def _piped(self) -> None:
        if self.cell is not None:
            self.cell.pump()


class Kernels:
    """All kernels of the sandbox, and the cells that are remembered."""

    __slots__ = ("_cells", "_guest", "_kernels")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._kernels: dict[str, Kernel] = {}
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        guest.calls.handlers.update(
            {
                "kernel.execute": self.execute,
                "kernel.attach": self.attach,
                "kernel.interrupt": self.interrupt,
                "kernel.restart": self.restart,
            }
        )

    def woken(self) -> None:
        """Tell every kernel, and start the default one ahead of its first cell, where the image has a python."""
        for kernel in self._kernels.values():
            kernel.woken()
        try:
            self._kernel("default").boot()
        except Refusal:
            return

    def execute(self, call: Call) -> None:
        """``kernel.execute``."""
        cell = self._cells.get(call.id)
        if cell is None:
            kernel = self._kernel(call.args["kernel"])
            if not kernel.pid and find_python(environment(account("user"), self._guest.env)) is None:
                raise Refusal("unsupported", "This image has no python, so it has no kernel.", "Run commands instead, or use a template with python.")
            cell = Cell(call.id, call.args)
            self._cells[call.id] = cell
            cell.attach(call, 0, 0, 0)
            kernel.submit(cell)
            self._trim()
        else:
            cell.attach(call, 0, 0, 0)

    def attach(self, call: Call) -> None:
        """``kernel.attach``."""
        cell = self._cells.get(call.args["execution"])
        if cell is None:
            raise Refusal("process_not_found", "There is no such execution.", "It may have been forgotten.")
        cell.attach(call, call.args["events_from"], call.args["stdout_from"], call.args["stderr_from"])

    def interrupt(self, call: Call) -> None:
        """``kernel.interrupt``."""
        call.result(running=self._kernel(call.args["kernel"]).interrupt())

    def restart(self, call: Call) -> None:
        """``kernel.restart``."""
        self._kernel(call.args["kernel"]).restart()
        call.result()

    def reaped(self, pid: int) -> bool:
        """A child ended; whether it was a kernel."""
        for kernel in self._kernels.values():
            if kernel.pid == pid:
                kernel.reaped()
                return True
        return False

    def _kernel(self, name: str) -> Kernel:
        if name != "default":
            raise Refusal("unsupported", f"There is no kernel {name[:50]!r}.", "Use 'default'.")
        return self._kernels.setdefault(name, Kernel(self._guest, name))

    def _trim(self) -> None:
        done = [cell for cell in self._cells.values() if cell.result is not None and not cell.readers]
        kept = sum(cell.outputs.kept_bytes for cell in self._cells.values())
        count = len(self._cells)
        for cell in done:
            if count <= KEPT and kept <= KEPT_BYTES:
                return
            kept -= cell.outputs.kept_bytes
            count -= 1
            del self._cells[cell.id]
            self._guest.calls.past(cell.id, "kernel.execute")

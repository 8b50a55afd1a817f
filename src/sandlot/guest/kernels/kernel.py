"""One kernel process: its descriptors, its messages and output, and its end.

Invariants:
- Messages of a kernel are limited in size and validated. A kernel that sends anything else is killed.
- C code and children of the kernel write to pipes. Before a message is handled, the pipes are read, so that earlier output comes first.
- If the buffer of a cell is full because its client does not read, its kernel is not read any more; other kernels continue.
- All output of a kernel is delivered before the end of the kernel is reported.
- At most ``MESSAGES_PER_TURN`` messages are handled in one turn of the loop, so that a busy kernel does not delay other work.
- The kernel has no descriptor with which it could make a write of the guest block: the ends of the flush pipe are separate open files.
"""

from __future__ import annotations

import os
import select

from sandlot.guest.kernels.kernel_events import parse_event
from sandlot.guest.loop import READ, READ_BYTES, WRITE
from sandlot.guest.output import OutputLog
from sandlot.guest.pipes import DRAIN_READS, OutputPipe, open_pipe
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.fast_imports import socket
from sandlot.protocol.schema import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.kernels.cell import Cell
    from sandlot.guest.kernels.process_group import ProcessGroup
    from sandlot.guest.loop import Loop

MESSAGES_PER_TURN = 64
"""Maximum number of messages of one kernel that are handled in one turn of the loop."""
EXIT_S = 0.2
"""Seconds from the end of a kernel's socket until the kernel is killed, if its process has not ended by then."""
MAX_STARTUP_TEXT_BYTES = 4096
"""Maximum length of :attr:`KernelProcess.startup_text`."""


class KernelPipes:
    """The descriptors of a kernel: a socket, two output pipes, and for kernels that delay output a pipe that requests a flush.

    Args:
        has_flush_pipe: True if the kernel delays output.

    Attributes:
        socket: The guest's end of the socket.
        out: The guest's end of standard output.
        err: The guest's end of standard error.
        flush: The guest's end of the flush pipe; -1 without one.
    """

    __slots__ = ("_kernel_err", "_kernel_flush", "_kernel_out", "_kernel_socket", "err", "flush", "out", "socket")

    def __init__(self, *, has_flush_pipe: bool = False) -> None:
        self.socket, self._kernel_socket = socket.socketpair()
        self._kernel_flush, self.flush = open_pipe() if has_flush_pipe else (-1, -1)
        self.out, self._kernel_out = open_pipe(roomy=True)
        self.err, self._kernel_err = open_pipe(roomy=True)

    @property
    def kernel_output(self) -> tuple[int, int]:
        """Descriptors of the kernel's standard output and standard error."""
        return self._kernel_out, self._kernel_err

    @property
    def kernel_channel(self) -> list[int]:
        """The kernel's end of the socket and, if there is one, of the flush pipe."""
        return [self._kernel_socket.fileno(), *([self._kernel_flush] if self._kernel_flush >= 0 else [])]

    def close_kernel_ends(self) -> None:
        """Close the kernel's ends after its process has inherited or received them."""
        self._kernel_socket.close()
        os.close(self._kernel_out)
        os.close(self._kernel_err)
        if self._kernel_flush >= 0:
            os.close(self._kernel_flush)

    def close(self) -> None:
        """Close the guest's ends, because there will be no kernel."""
        self.socket.close()
        os.close(self.out)
        os.close(self.err)
        if self.flush >= 0:
            os.close(self.flush)


class KernelChannel:
    """The guest's end of a kernel's socket: bounded messages in both directions, without blocking.

    Args:
        loop: The guest's loop.
        connection: The guest's end of the socket; ownership passes to this object.
    """

    __slots__ = ("_has_input", "_is_reading", "_is_stopped", "_loop", "_on_readable", "_outgoing", "_reader", "_socket")

    def __init__(self, loop: Loop, connection: socket.socket) -> None:
        self._loop = loop
        self._socket = connection
        self._socket.setblocking(False)
        self._reader = values.MessageReader(MESSAGE_MAX_BYTES)
        self._outgoing = bytearray()
        self._on_readable: Callable[[], object] | None = None
        self._is_reading = True
        self._has_input = True
        """False if the socket has ended, or is not read any more because the kernel violated the protocol."""
        self._is_stopped = False

    @property
    def received_bytes(self) -> int:
        """Number of bytes that were received and not yet taken."""
        return self._reader.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the kernel has not taken yet."""
        return len(self._outgoing)

    def serve(self, on_readable: Callable[[], object]) -> None:
        """Call ``on_readable`` whenever there is something to receive, from now on."""
        self._on_readable = on_readable
        self._watch()

    def when_readable(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when there is something to receive. Used before :meth:`serve`."""
        fd = self._socket.fileno()

        def on_ready(_mask: int) -> None:
            self._loop.unwatch(fd)
            callback()

        self._loop.watch(fd, READ, on_ready)

    def set_reading(self, reading: bool) -> None:  # noqa: FBT001 - the name says what the value is
        """Pause or resume the calls of ``on_readable``."""
        self._is_reading = reading
        self._watch()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message as soon as the kernel takes it."""
        self._outgoing += values.encode_message(message)
        self._write()

    def receive(self) -> int | None:
        """Receive with one read, and return the number of bytes: None if there are none now, 0 at the end of the socket."""
        if not self._has_input:
            return 0
        try:
            data = self._loop.read_buffer.read(self._socket.fileno())
        except BlockingIOError:
            return None
        except OSError:
            return 0
        self._reader.feed(data)
        return len(data)

    def take(self) -> tuple[dict[str, Any], int] | None:
        """Remove the next complete message and return its event with its size in bytes; None if there is none.

        Raises:
            EncodingError: The message is too long, or is not exactly one value.
            ValueError, TypeError, LookupError, AttributeError: The value is not an event; see :func:`parse_event`.
        """
        raw = self._reader.take()
        return None if raw is None else (parse_event(values.decode(raw)), len(raw))

    def end_input(self) -> None:
        """Receive nothing more. Messages that were received can still be taken."""
        self._has_input = False
        self._watch()

    def drop_input(self) -> None:
        """Receive nothing more, and drop the messages that were received and not taken."""
        self._reader.clear()
        self.end_input()

    def stop(self) -> None:
        """Send nothing more, and make no further callbacks. :meth:`receive` and :meth:`take` still work."""
        self._is_stopped = True
        self._loop.unwatch(self._socket.fileno())

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.stop()
        self._socket.close()

    def _on_ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if mask & ~WRITE and not self._is_stopped and self._on_readable is not None:
            self._on_readable()

    def _write(self) -> None:
        try:
            while self._outgoing and not self._is_stopped:
                sent = self._socket.send(memoryview(self._outgoing)[:65536])
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return  # the end of file follows
        self._watch()

    def _watch(self) -> None:
        if self._on_readable is None or self._is_stopped:
            return
        mask = (READ if self._is_reading else 0) | (WRITE if self._outgoing else 0)
        if mask and self._has_input:
            self._loop.watch(self._socket.fileno(), mask, self._on_ready)
        else:
            self._loop.unwatch(self._socket.fileno())


class KernelEventHandler:
    """Receives the events of one kernel."""

    __slots__ = ()

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """Handle a message other than output.

        Args:
            message: The validated message.
            size: Its encoded size in bytes.
        """
        raise NotImplementedError

    def cell_of(self, id_: str | None) -> Cell | None:
        """Return the cell of a message: the running cell for None, otherwise a remembered cell of this kernel, or None."""
        raise NotImplementedError

    def on_output(self) -> None:
        """Handle new output of a pipe."""
        raise NotImplementedError

    def on_violation(self) -> None:
        """Handle a kernel that has violated the protocol, or has closed its socket and still runs. The handler must end it."""
        raise NotImplementedError

    def on_exit(self, status: int, peak_bytes: int) -> None:
        """Handle the end of the process, unless :meth:`KernelProcess.end` has caused it. The handler must call ``end``.

        Args:
            status: Wait status.
            peak_bytes: Largest resident memory of the process.
        """
        raise NotImplementedError

    def on_killed(self, reason: str) -> None:
        """Handle a kill by another part of the guest: ``oom`` or ``pids``."""
        raise NotImplementedError

    def on_gone(self) -> None:
        """Handle the end of a kernel after :meth:`KernelProcess.end`: all its output was delivered."""
        raise NotImplementedError


class KernelProcess:
    """One kernel process.

    Args:
        loop: The guest's loop.
        pid: Pid of the kernel, which leads its session.
        pipes: The guest's ends of the kernel's descriptors.
        group: The kernel and all processes that it starts.
        env: Variables of the kernel that come from the sandbox or the context, not from the account of its user.

    Attributes:
        pid: Pid of the kernel.
        end_reason: Reason of the end: ``killed``, ``died``, ``oom`` or ``late``; empty while the kernel runs.
        handler: Receiver of the events; None if no context uses the kernel.
        on_unused_exit: Called if the process ends without a handler.
    """

    __slots__ = (
        "_channel",
        "_env",
        "_flush_fd",
        "_group",
        "_is_done",
        "_is_paused",
        "_loop",
        "_next_event",
        "_output_pipes",
        "_output_poll",
        "_startup_output",
        "_undelivered",
        "end_reason",
        "handler",
        "on_unused_exit",
        "pid",
    )

    def __init__(self, loop: Loop, pid: int, pipes: KernelPipes, group: ProcessGroup, env: dict[str, str]) -> None:
        self.pid = pid
        self.end_reason = ""
        self.handler: KernelEventHandler | None = None
        self.on_unused_exit: Callable[[], object] | None = None
        self._loop = loop
        self._env = env
        self._group = group
        self._channel = KernelChannel(loop, pipes.socket)
        self._flush_fd = pipes.flush
        if self._flush_fd >= 0:
            os.set_blocking(self._flush_fd, False)
        self._next_event: tuple[dict[str, Any], int] | None = None
        self._undelivered: tuple[Cell, int, memoryview] | None = None
        """Output that did not fit into the buffer of its cell."""
        self._is_paused = False
        """True if reading is paused: the buffer of a cell is full, or ``MESSAGES_PER_TURN`` is reached."""
        self._is_done = False
        self._startup_output = OutputLog((STDOUT, STDERR))
        self._output_pipes = [
            OutputPipe(loop, fd, channel, self._startup_output, self._on_output) for fd, channel in ((pipes.out, STDOUT), (pipes.err, STDERR))
        ]
        self._output_poll = select.poll()
        for pipe in self._output_pipes:
            self._output_poll.register(pipe.fd, select.POLLIN)

    @property
    def startup_text(self) -> str:
        """Text that the kernel has written to standard error before its first cell, for the error of a failed start."""
        buffer = self._startup_output.buffers[STDERR]
        return buffer.read(buffer.start, MAX_STARTUP_TEXT_BYTES).decode("utf-8", "replace")

    # -- before it is used ---------------------------------------------------------------------------------------------

    def serve(self, handler: KernelEventHandler) -> None:
        """Read the messages of the kernel from now on, and pass its events to ``handler``."""
        self.handler = handler
        self._channel.serve(self._read)
        if self._channel.received_bytes:
            self._loop.call_soon(self._deliver)

    def read_ahead(self) -> int:
        """Receive messages before there is a handler, and return the number of bytes that wait for the handler."""
        if not self.end_reason:
            self._channel.receive()
        return self._channel.received_bytes

    def when_heard(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the first message or the end of the socket can be read. The message stays for :meth:`serve`."""
        if self._channel.received_bytes:
            self._loop.call_soon(callback)
        else:
            self._channel.when_readable(callback)

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._channel.send(message)

    def execute(self, cell: Cell) -> None:
        """Send a cell. From now on, output of the pipes belongs to this cell."""
        for pipe in self._output_pipes:
            pipe.redirect(cell.outputs)
        self.send({"op": "execute", "cell": cell.id, "code": cell.code, "env": cell.env, "silent": cell.silent, "store_history": cell.store_history})

    def wake(self, env: dict[str, str], entropy: bytes, cwd: str) -> None:
        """Send the changes of a wake, or of the assignment to a context. They take effect before the next cell.

        Args:
            env: As in the constructor. An unchanged variable keeps the value that cells have set.
            entropy: 64 bytes that no other kernel receives.
            cwd: New working directory; empty for no change.
        """
        changed, removed = difference(self._env, env)
        if removed:
            of_account = build_environment(lookup_account("user"))
            changed.update({name: of_account[name] for name in removed if name in of_account})
            removed = [name for name in removed if name not in of_account]
        self._env = env
        self.send({"op": "wake", "entropy": entropy, "env": changed, "gone": removed, "cwd": cwd})

    def request_flush(self) -> None:
        """Request the delayed messages of the kernel."""
        if self._flush_fd >= 0:
            try:
                os.write(self._flush_fd, b"\0")
            except OSError:  # the pipe is full, or the kernel has ended
                return

    def interrupt(self, cell: Cell, *, by_message: bool) -> None:
        """Send SIGINT to the process group of the kernel.

        Args:
            cell: The running cell.
            by_message: True to send a message as well.
        """
        if by_message:
            self.send({"op": "interrupt", "cell": cell.id})
        self._group.interrupt()

    def resume_reading(self) -> None:
        """Continue reading, because there may be room for output again."""
        for pipe in self._output_pipes:
            pipe.refresh()
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver)

    def end(self, reason: str) -> None:
        """Kill the kernel and all processes that it started. ``on_gone`` follows after its output was delivered. Idempotent."""
        if self.end_reason:
            return
        self.end_reason = reason
        self._group.kill()
        self._channel.stop()
        for _ in range(DRAIN_READS):
            if not self._channel.receive():
                break
        self._loop.call_soon(self._deliver)

    def discard(self) -> None:
        """Kill the kernel without any further report."""
        self.handler = None
        self.end("killed")
        self._close()

    # -- as a child of the guest ---------------------------------------------------------------------------------------

    def on_exit(self, status: int, usage: struct_rusage) -> None:
        """Handle the end of the process."""
        if self.end_reason:
            return
        if self.handler is not None:
            self.handler.on_exit(status, usage.ru_maxrss * 1024)
        elif self.on_unused_exit is not None:
            self.on_unused_exit()

    def on_killed(self, reason: str) -> None:
        """Handle a kill of the process by another part of the guest."""
        if self.handler is not None and not self.end_reason:
            self.handler.on_killed(reason)

    # -- messages and output of the kernel -----------------------------------------------------------------------------

    def _on_output(self) -> None:
        if self.handler is not None:
            self.handler.on_output()

    def _read(self) -> None:
        received = self._channel.receive()
        if received:
            self._deliver()
        elif received == 0:
            # Normally the process has ended and is about to be reaped. If it has only closed its socket, it is killed after EXIT_S.
            self._channel.end_input()
            self._loop.call_later(EXIT_S, self._report_violation)

    def _report_violation(self) -> None:
        if self.handler is not None and not self.end_reason:
            self.handler.on_violation()

    def _deliver(self) -> None:
        """Deliver received messages and output, as far as buffers have room."""
        if self._is_done or self._is_paused or self.handler is None:
            return
        try:
            is_complete = self._deliver_buffered()
        except (values.EncodingError, LookupError, TypeError, ValueError, AttributeError):
            self._channel.drop_input()
            if self.end_reason:
                self._loop.call_soon(self._deliver)
            else:
                self._report_violation()
            return
        self._is_paused = not is_complete
        if is_complete and self.end_reason:
            self._is_done = True
            self._close()
            self.handler.on_gone()
        else:
            self._channel.set_reading(is_complete)

    def _deliver_buffered(self) -> bool:
        """Deliver received messages and output. Return True if nothing is left."""
        drained = False
        for number in range(MESSAGES_PER_TURN + 1):
            if self.handler is None:
                break
            if number == MESSAGES_PER_TURN:
                self._loop.call_soon(self._continue_turn)
                return False
            if not self._deliver_output():
                return False
            self._next_event = self._next_event or self._channel.take()
            if self._next_event is None:
                return not self.end_reason or self._drain_pipes()
            message, size = self._next_event
            # Output of a cell comes after its start. Draining the pipes once is enough for all messages that have arrived by now.
            if message["event"] != "started" and not (drained := drained or self._drain_pipes()):
                return False
            self._next_event = None
            if message["event"] == "output":
                cell = self.handler.cell_of(message["cell"])
                if cell is not None:
                    self._undelivered = (cell, message["channel"], memoryview(message["data"]))
            elif message["event"] == "sync":
                self._confirm(message["number"])
            else:
                self.handler.on_message(message, size)
        return True

    def _confirm(self, number: int) -> None:
        """Confirm that all output before a ``sync`` was read, unless the kernel has not read the last confirmation."""
        if not self._channel.unsent_bytes:
            self.send({"op": "synced", "number": number})

    def _continue_turn(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._deliver()

    def _drain_pipes(self) -> bool:
        """Read the content of the pipes. Return True if they are empty now. One poll(2) is enough if they are empty already, which is usual."""
        return not self._output_poll.poll(0) or all([pipe.drain() for pipe in self._output_pipes if pipe.is_open])  # noqa: C419 - each, also after a full one

    def _deliver_output(self) -> bool:
        """Append output to the buffer of its cell, as far as it has room. Return True if nothing is left."""
        while self._undelivered is not None:
            cell, channel, data = self._undelivered
            if not cell.outputs.may_read(channel):
                return False
            cell.outputs.buffers[channel].append(bytes(data[:READ_BYTES]))
            self._undelivered = (cell, channel, data[READ_BYTES:]) if len(data) > READ_BYTES else None
            cell.pump()
        return True

    def _close(self) -> None:
        self._channel.close()
        if self._flush_fd >= 0:
            os.close(self._flush_fd)
            self._flush_fd = -1
        for pipe in self._output_pipes:
            pipe.close()


def difference(before: dict[str, str], after: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the new and changed variables of an environment, and the names of the removed variables."""
    return {name: text for name, text in after.items() if before.get(name) != text}, [name for name in before if name not in after]

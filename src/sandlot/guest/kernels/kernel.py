"""One kernel process, as the guest sees it: its descriptors, its messages and output, and its end.

Invariants:
- The guest limits the size of a kernel's messages and validates them. A kernel that sends an invalid message is killed.
- C code and child processes of the kernel write to two pipes. Before the guest handles a message other than ``started``, the guest reads
  both pipes, so that output that was written before the message is delivered before the message.
- If the buffer of a cell is full because a client does not read, the guest stops reading from this cell's kernel, but not from other kernels.
- The guest delivers all output of a kernel before it reports the end of the kernel.
- The guest handles at most ``MESSAGES_PER_TURN`` messages of a kernel in one iteration of its event loop, so that a busy kernel does
  not delay other kernels and calls.
- A kernel cannot make the guest block in a write to the flush pipe. O_NONBLOCK is a flag of an open file, and the two ends of a pipe are
  separate open files, so the kernel cannot change the flag of the guest's end.
"""

from __future__ import annotations

import os
import select

from sandlot.guest.kernels.kernel_events import parse_event
from sandlot.guest.loop import READ, READ_BYTES, WRITE
from sandlot.guest.output import OutputLog
from sandlot.guest.pipes import DRAIN_READS, OutputPipe, open_pipe
from sandlot.guest.process.accounts import build_environment
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
"""Maximum number of messages of one kernel that the guest handles in one iteration of its event loop."""
EXIT_S = 0.2
"""Seconds after which the guest kills a kernel that has closed its socket and whose process has not ended."""
MAX_STARTUP_TEXT_BYTES = 4096
"""Maximum length of :attr:`KernelProcess.startup_text` in bytes, before decoding."""


class KernelPipes:
    """Both ends of the socket and the pipes between the guest and one kernel.

    There is one socket for messages and one pipe each for standard output and standard error. A kernel that delays output also has a flush
    pipe: the guest writes to this pipe to request the delayed output.

    Args:
        has_flush_pipe: True to create a flush pipe.

    Attributes:
        socket: The guest's end of the socket.
        out: Descriptor of the guest's end of the pipe for standard output.
        err: Descriptor of the guest's end of the pipe for standard error.
        flush: Descriptor of the guest's end of the flush pipe; -1 if there is no flush pipe.
    """

    __slots__ = ("_kernel_err", "_kernel_flush", "_kernel_out", "_kernel_socket", "err", "flush", "out", "socket")

    def __init__(self, *, has_flush_pipe: bool = False) -> None:
        self.socket, self._kernel_socket = socket.socketpair()
        self._kernel_flush, self.flush = open_pipe() if has_flush_pipe else (-1, -1)
        self.out, self._kernel_out = open_pipe(roomy=True)
        self.err, self._kernel_err = open_pipe(roomy=True)

    @property
    def kernel_output(self) -> tuple[int, int]:
        """Descriptors that become the kernel's standard output and standard error."""
        return self._kernel_out, self._kernel_err

    @property
    def kernel_channel(self) -> list[int]:
        """Descriptors of the kernel's end of the socket and, if there is a flush pipe, of the kernel's end of the flush pipe."""
        return [self._kernel_socket.fileno(), *([self._kernel_flush] if self._kernel_flush >= 0 else [])]

    def close_kernel_ends(self) -> None:
        """Close the guest's copies of the descriptors for the kernel. Call this after the kernel's process has inherited or received them."""
        self._kernel_socket.close()
        os.close(self._kernel_out)
        os.close(self._kernel_err)
        if self._kernel_flush >= 0:
            os.close(self._kernel_flush)

    def close(self) -> None:
        """Close the guest's ends of the socket and the pipes, because the kernel could not be started."""
        self.socket.close()
        os.close(self.out)
        os.close(self.err)
        if self.flush >= 0:
            os.close(self.flush)


class KernelChannel:
    """The guest's end of a kernel's socket, which sends and receives messages without blocking the guest.

    Args:
        loop: The guest's loop.
        connection: The guest's end of the socket. Ownership passes to this object.
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
        """False after :meth:`end_input`: the kernel has closed the socket or sent an invalid message, and nothing more is received."""
        self._is_stopped = False

    @property
    def received_bytes(self) -> int:
        """Number of received bytes whose messages :meth:`take` has not returned yet."""
        return self._reader.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes of outgoing messages that the socket has not accepted yet."""
        return len(self._outgoing)

    def serve(self, on_readable: Callable[[], object]) -> None:
        """Call ``on_readable`` from now on whenever the socket has bytes to receive or was closed by the kernel."""
        self._on_readable = on_readable
        self._watch()

    def when_readable(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the socket has bytes to receive or was closed by the kernel. May be called only before :meth:`serve`."""
        fd = self._socket.fileno()

        def on_ready(_mask: int) -> None:
            self._loop.unwatch(fd)
            callback()

        self._loop.watch(fd, READ, on_ready)

    def set_reading(self, reading: bool) -> None:  # noqa: FBT001 - the name says what the value is
        """Set whether ``on_readable`` is called.

        Args:
            reading: False to pause the calls, True to resume them.
        """
        self._is_reading = reading
        self._watch()

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message to the kernel, and send as much of the queue as the socket accepts now. The rest is sent when the socket is writable."""
        self._outgoing += values.encode_message(message)
        self._write()

    def receive(self) -> int | None:
        """Receive bytes with one read(2).

        Returns:
            Number of bytes received; 0 if the kernel has closed the socket or :meth:`end_input` was called. None if no bytes are available
            now.
        """
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
        """Remove the next received message from the queue, and return its event and its size in bytes.

        Return None if no complete message was received.

        Raises:
            EncodingError: The message is too long, or does not contain exactly one value.
            ValueError, TypeError, LookupError, AttributeError: The message is not a valid event; see :func:`parse_event`.
        """
        raw = self._reader.take()
        return None if raw is None else (parse_event(values.decode(raw)), len(raw))

    def end_input(self) -> None:
        """Receive nothing more from the socket. :meth:`take` still returns the messages that were received earlier."""
        self._has_input = False
        self._watch()

    def drop_input(self) -> None:
        """Receive nothing more from the socket, and drop the received messages that :meth:`take` has not returned yet."""
        self._reader.clear()
        self.end_input()

    def stop(self) -> None:
        """Send nothing more to the kernel, and no longer call ``on_readable``. :meth:`receive` and :meth:`take` still work."""
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
            return  # the kernel has closed the socket, which the next read reports
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
    """Interface of the object that receives the events of one kernel: a code context."""

    __slots__ = ()

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """Handle an event that the kernel has sent. Not called for the events ``output`` and ``sync``.

        Args:
            message: Event as :func:`parse_event` returns it.
            size: Encoded size of the message in bytes.
        """
        raise NotImplementedError

    def cell_of(self, id_: str | None) -> Cell | None:
        """Return the cell whose id a message of the kernel contains. Return None if the context has no such cell.

        Args:
            id_: Id of the cell; None for the running cell.
        """
        raise NotImplementedError

    def on_output(self) -> None:
        """Handle output that was read from the kernel's output pipes into the buffers of the cell."""
        raise NotImplementedError

    def on_violation(self) -> None:
        """Handle a kernel that has sent an invalid message, or has closed its socket without ending. The handler must end the kernel."""
        raise NotImplementedError

    def on_exit(self, status: int, peak_bytes: int) -> None:
        """Handle the end of the kernel's process. The handler must call :meth:`KernelProcess.end` to kill the processes that the kernel started.

        Not called if :meth:`KernelProcess.end` has killed the process.

        Args:
            status: Wait status of the process, as waitpid(2) reports it.
            peak_bytes: Largest resident memory of the process in bytes.
        """
        raise NotImplementedError

    def on_killed(self, reason: str) -> None:
        """Handle a kernel that another part of the guest has killed.

        Args:
            reason: ``oom`` for lack of memory, ``pids`` for too many processes.
        """
        raise NotImplementedError

    def on_gone(self) -> None:
        """Release the kernel after :meth:`KernelProcess.end`, when all output of the kernel was delivered. This is the last event of a kernel."""
        raise NotImplementedError


class KernelProcess:
    """One kernel process.

    Args:
        loop: The guest's loop.
        pid: Pid of the kernel, which is the leader of its session.
        pipes: Socket and pipes to the kernel. Ownership of the guest's ends passes to this object.
        group: Process group of the kernel, to interrupt and kill the kernel with all processes that it starts.
        env: Environment variables of the sandbox and the context with which the kernel was started. Variables of the user account, such as
            HOME, are not included.

    Attributes:
        pid: Pid of the kernel.
        end_reason: Reason why the kernel ends: ``killed``, ``died``, ``oom`` or ``late``; empty until :meth:`end` is called.
        handler: Context that receives the events of the kernel; None until a context gets the kernel.
        on_unused_exit: Called if the process ends while ``handler`` is None.
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
        """Output that waits until the buffer of its cell accepts more: the cell, the channel (1 or 2) and the bytes."""
        self._is_paused = False
        """True if delivery is paused, because the buffer of a cell is full or ``MESSAGES_PER_TURN`` messages were handled in this iteration."""
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
        """Text that the kernel has written to standard error before its first cell. The client receives this text if the start fails."""
        buffer = self._startup_output.buffers[STDERR]
        return buffer.read(buffer.start, MAX_STARTUP_TEXT_BYTES).decode("utf-8", "replace")

    # -- before the first cell -----------------------------------------------------------------------------------------

    def serve(self, handler: KernelEventHandler) -> None:
        """Start to read the messages of the kernel, and pass its events to ``handler``, beginning with messages that were received earlier."""
        self.handler = handler
        self._channel.serve(self._read)
        if self._channel.received_bytes:
            self._loop.call_soon(self._deliver)

    def read_ahead(self) -> int:
        """Receive messages of a spare kernel, and return the number of received bytes that are kept for a later handler."""
        if not self.end_reason:
            self._channel.receive()
        return self._channel.received_bytes

    def when_heard(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the kernel has sent a message or closed its socket. The message is kept for :meth:`serve`."""
        if self._channel.received_bytes:
            self._loop.call_soon(callback)
        else:
            self._channel.when_readable(callback)

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the kernel without waiting: see :meth:`KernelChannel.send`."""
        self._channel.send(message)

    def execute(self, cell: Cell) -> None:
        """Send a cell to the kernel. From now on, output that is read from the kernel's output pipes belongs to this cell."""
        for pipe in self._output_pipes:
            pipe.redirect(cell.outputs)
        self.send({"op": "execute", "cell": cell.id, "code": cell.code, "env": cell.env, "silent": cell.silent, "store_history": cell.store_history})

    def wake(self, env: dict[str, str], entropy: bytes, cwd: str) -> None:
        """Send the kernel new environment variables, entropy and a working directory. The kernel applies them before its next cell.

        Called after a wake of the sandbox, and when a context gets the kernel.

        Args:
            env: New variables of the sandbox and the context. A variable is sent only if its value differs from the value in the previous
                call (in the first call: at the start of the kernel). Otherwise the kernel keeps its value, which cells may have changed.
            entropy: 64 random bytes that no other kernel receives.
            cwd: New working directory; empty to keep the present directory.
        """
        changed, removed = difference(self._env, env)
        if removed:
            of_account = build_environment(self._group.account)
            changed.update({name: of_account[name] for name in removed if name in of_account})
            removed = [name for name in removed if name not in of_account]
        self._env = env
        self.send({"op": "wake", "entropy": entropy, "env": changed, "gone": removed, "cwd": cwd})

    def request_flush(self) -> None:
        """Ask the kernel to send the messages that it has delayed. Does nothing if the kernel has no flush pipe."""
        if self._flush_fd >= 0:
            try:
                os.write(self._flush_fd, b"\0")
            except OSError:  # the pipe is full, or the kernel has ended
                return

    def interrupt(self, cell: Cell, *, by_message: bool) -> None:
        """Interrupt the running cell: send SIGINT to the process group of the kernel.

        Args:
            cell: The running cell.
            by_message: True to also send the kernel an ``interrupt`` message with the id of the cell.
        """
        if by_message:
            self.send({"op": "interrupt", "cell": cell.id})
        self._group.interrupt()

    def resume_reading(self) -> None:
        """Continue to read from the kernel, because the buffers of its cell may accept more output again."""
        for pipe in self._output_pipes:
            pipe.refresh()
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver)

    def end(self, reason: str) -> None:
        """Kill the kernel and all processes that it started. ``handler.on_gone`` is called after all output was delivered. Idempotent.

        Args:
            reason: Value for :attr:`end_reason`: ``killed``, ``died``, ``oom`` or ``late``.
        """
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
        """Kill the kernel and close its descriptors. The handler gets no further event."""
        self.handler = None
        self.end("killed")
        self._close()

    # -- as a child of the guest ---------------------------------------------------------------------------------------

    def on_exit(self, status: int, usage: struct_rusage) -> None:
        """Report the end of the process to the handler, or to ``on_unused_exit`` if there is no handler. Called by the table of child processes.

        Args:
            status: Wait status of the process.
            usage: Resources that the process has used.
        """
        if self.end_reason:
            return
        if self.handler is not None:
            self.handler.on_exit(status, usage.ru_maxrss * 1024)
        elif self.on_unused_exit is not None:
            self.on_unused_exit()

    def on_killed(self, reason: str) -> None:
        """Tell the handler that another part of the guest has killed the process. Called by the guest's table of child processes.

        Args:
            reason: ``oom`` for lack of memory, ``pids`` for too many processes.
        """
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
            # The socket is closed, usually because the kernel's process has ended. A kernel whose process still runs after EXIT_S is killed.
            self._channel.end_input()
            self._loop.call_later(EXIT_S, self._report_violation)

    def _report_violation(self) -> None:
        if self.handler is not None and not self.end_reason:
            self.handler.on_violation()

    def _deliver(self) -> None:
        """Pass received messages to the handler and output to the cells, until nothing is left or the buffer of a cell is full."""
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
        """Pass received messages to the handler and output to the cells. Return True if all received messages and output were delivered."""
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
            # Handle "started" before reading the pipes: they may contain output of the new cell, which would be added to the previous cell. Read the
            # pipes once, before handling any other message.
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
        """Tell the kernel that all output before its message ``sync`` was read. Does nothing if an earlier message to the kernel is still unsent.

        Args:
            number: Number in the message ``sync``.
        """
        if not self._channel.unsent_bytes:
            self.send({"op": "synced", "number": number})

    def _continue_turn(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._deliver()

    def _drain_pipes(self) -> bool:
        """Read both output pipes, unless poll(2) shows that they are empty already, which is the usual case. Return True if both are empty now."""
        return not self._output_poll.poll(0) or all([pipe.drain() for pipe in self._output_pipes if pipe.is_open])  # noqa: C419 - drain both pipes

    def _deliver_output(self) -> bool:
        """Append the undelivered output to the buffer of its cell until the buffer is full. Return True if all of the output was appended."""
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
    """Return the variables that ``after`` adds or changes compared with ``before``, and the names of the variables that ``after`` lacks."""
    return {name: text for name, text in after.items() if before.get(name) != text}, [name for name in before if name not in after]

"""The plain Python kernel: runs cells in one namespace, on the image's python (3.8 or newer), standard library only.

Started as ``python3 kernel.py FD``; FD is a socket to the guest. Messages are ``values`` with a 4-byte length before each.
To the kernel: ``wake`` (entropy, env), ``execute`` (code, env). From it: ``ready``, then ``display``, ``error``, and ``done`` for each cell.
Standard output and error are ordinary pipes, so that what C code and child processes print arrives as well.

Laws:
- An exception, also SystemExit and KeyboardInterrupt, ends the cell and leaves the kernel and its variables.
- The value of a last expression is displayed as a bundle of MIME types and kept as ``_``.
- SIGINT interrupts a cell and nothing else: between cells it is ignored.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import random
import signal
import socket
import struct
import sys
import traceback
import types

sys.path[0] = os.path.dirname(os.path.abspath(__file__))
import values  # type: ignore[import-not-found]  # noqa: E402 - lies beside this file, not in any package

sys.path[0] = ""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">I")
TEXT_LIMIT = 1024 * 1024
"""Characters of one textual representation that are sent."""
TRACEBACK_LINES = 500
"""Lines of a traceback that are sent, the last ones."""

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
)


class Wire:
    """The socket to the guest."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)

    def close(self) -> None:
        """The kernel is about to end."""
        self._socket.close()

    def send(self, message: dict[str, Any]) -> None:
        """One message out."""
        raw = values.encode(message)
        self._socket.sendall(HEAD.pack(len(raw)) + raw)

    def receive(self) -> Any:
        """One message in; EOFError once the guest is gone."""
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        return values.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Kernel:
    """One namespace and the cells that run in it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._count = 0
        # The cells' own module, so that pickle, dataclasses and friends find what cells define in __main__.
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(__builtins__=builtins, display=self.display)
        sys.modules["__sandlot_kernel__"] = sys.modules["__main__"]
        sys.modules["__main__"] = self._module

    def serve(self) -> None:
        """Answer until the guest is gone."""
        self._wire.send({"event": "ready"})
        while True:
            try:
                message = self._wire.receive()
            except EOFError:
                return
            if message["op"] == "execute":
                self._execute_with(message["env"], message["code"])
            elif message["op"] == "wake":
                os.environ.update(message["env"])
                reseed(message["entropy"])

    def display(self, *objects: object) -> None:
        """Show objects as rich results of the cell."""
        for shown in objects:
            self._show(shown, main=False)

    def _execute_with(self, env: dict[str, str], code: str) -> None:
        """Run a cell; its environment is lent to it, and what was there before comes back."""
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        self._execute(code)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _execute(self, code: str) -> None:
        self._count += 1
        done = True
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._run(code, f"<cell {self._count}>")
                flush()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is the cell's result
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            done = False
            self._report(error)
        flush()
        self._wire.send({"event": "done", "ok": done, "count": self._count})

    def _run(self, code: str, filename: str) -> None:
        linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
        namespace = self._module.__dict__
        tree = ast.parse(code, filename)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        if tree.body:
            exec(compile(tree, filename, "exec"), namespace)  # noqa: S102 - running code is what a kernel is for
        if last is not None:
            value = eval(compile(last, filename, "eval"), namespace)  # noqa: S307 - likewise
            if value is not None:
                namespace["_"] = value
                self._show(value, main=True)

    def _show(self, shown: object, *, main: bool) -> None:
        self._wire.send({"event": "display", "data": bundle(shown), "main": main})

    def _report(self, error: BaseException) -> None:
        kind = type(error)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        try:
            lines = traceback.format_exception(kind, error, trace)
            value = str(error)
        except Exception as broken:  # noqa: BLE001 - an exception may fail at being printed
            lines = [f"{kind.__name__}: (cannot be printed: {type(broken).__name__})\n"]
            value = "(cannot be printed)"
        text = "".join(lines)[-TEXT_LIMIT:]
        self._wire.send({"event": "error", "name": kind.__name__, "value": value[:TEXT_LIMIT], "traceback": text.splitlines()[-TRACEBACK_LINES:]})


def bundle(shown: object) -> dict[str, Any]:
    """The representations that an object offers, by MIME type; text/plain always."""
    try:
        text = repr(shown)
    except Exception as broken:  # noqa: BLE001 - repr is the user's code
        text = f"<{type(shown).__name__}: repr failed: {broken}>"
    data: dict[str, Any] = {"text/plain": text[:TEXT_LIMIT]}
    for method, mime in REPRESENTATIONS:
        represent = None if isinstance(shown, type) else getattr(shown, method, None)
        if represent is None:
            continue
        try:
            made = represent()
        except Exception:  # noqa: BLE001, S112 - likewise; text/plain is there
            continue
        if isinstance(made, tuple):
            made = made[0]
        if isinstance(made, str):
            data[mime] = made[:TEXT_LIMIT]
        elif isinstance(made, bytes):
            data[mime] = made
    return data


def flush() -> None:
    """Push out what Python itself still buffers; a cell may have closed or replaced its streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S110 - the cell's own doing
            pass


def reseed(entropy: bytes) -> None:
    """Randomness of this life, not of the snapshot that it may come from."""
    random.seed(entropy)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(entropy[:4], "big"))


def main() -> None:
    """Serve the socket named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fd = int(sys.argv[1])
    sys.argv = [""]
    wire = Wire(fd)
    try:
        Kernel(wire).serve()
    finally:
        wire.close()


if __name__ == "__main__":
    main()

"""The fork server: a process that has imported the packages that kernels use. Kernels are forked from it, which is faster than starting them.

Messages of the guest, and the responses of the fork server:

- ``{"op": "fork"}`` forks a kernel. The message carries four descriptors: the kernel's socket, its standard output, its standard error, and
  the pipe on which the guest asks the kernel to send delayed output. The response is ``{"event": "forked", "pid": ...}``.
- ``{"op": "check"}`` asks whether the imported packages are unchanged on the disk. The response is ``{"event": "fresh", "fresh": ...}``, with
  true if they are unchanged.

In addition, the fork server sends ``{"event": "ready"}`` when it can fork, and ``{"event": "warm"}`` when it has imported all modules of its
command line.

A forked kernel is a child of PID 1 and leads a session. It uses only the modules that the fork server has imported, and the engine that the fork
server has created.
"""

from __future__ import annotations

import gc
import os
import select
import site
import socket
import sys

from . import values  # type: ignore[attr-defined]  # protocol/values.py is shipped beside this module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .engine import Engine

MAX_DESCRIPTORS = 4
"""Maximum number of descriptors that the guest sends with a message."""


class ForkServer:
    """The fork server of this process.

    Args:
        fd: Descriptor of the socket to the guest.
        modules: Names of modules to import after the fork server has sent ``ready``. Modules that are not installed are skipped.
        create_engine: Function that creates the engine, which forked kernels inherit.

    Attributes:
        engine: Engine that runs the cells in a forked kernel.
    """

    def __init__(self, fd: int, modules: list[str], create_engine: Callable[[], Engine]) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._modules = modules
        # The versions of the package folders are recorded before any package is imported. If a broken package cannot be imported now and is repaired
        # later, the version of its folder then differs from the recorded version.
        self._folders = {path: _file_version(path) for path in _package_folders()}
        self.engine = create_engine()
        self.engine.rehearse_shell()
        self._record_imports()

    def serve(self) -> list[int] | None:
        """Handle messages until the guest closes the socket. This method returns in the fork server, and also in each forked kernel.

        Returns:
            In a forked kernel, the descriptors of the kernel's socket and of the pipe on which the guest requests delayed output. In the fork
            server, None.
        """
        self._send({"event": "ready", "warm": not self._modules})
        while True:
            if self._modules and not select.select([self._socket], [], [], 0)[0]:
                self._import(self._modules.pop(0))
                continue
            message, fds = self._receive()
            if message is None:
                return None
            if message["op"] == "check":
                self._send({"event": "fresh", "fresh": self._is_fresh()})
            elif message["op"] == "fork":
                kernel_fds = self._fork(fds)
                if kernel_fds is not None:
                    return kernel_fds

    def _import(self, name: str) -> None:
        try:
            __import__(name)
        except Exception:  # noqa: BLE001, S110 - the module is missing or broken; cells that import it get the error
            pass
        if not self._modules:
            self._record_imports()
            self._send({"event": "warm"})

    def _record_imports(self) -> None:
        """Record the versions of the imported files and their folders for :meth:`_is_fresh`, and hide all objects from garbage collection.

        The garbage collector writes to each object that it examines. A forked kernel would then no longer share the memory page of this object with
        the fork server. If the version of a folder was recorded earlier, the earlier version is kept, because it was recorded before the imports.
        """
        self._folders = {path: _file_version(path) for path in _package_folders()} | self._folders
        self._files = {path: _file_version(path) for path in _imported_files()}
        gc.collect()
        gc.freeze()

    def _fork(self, fds: list[int]) -> list[int] | None:
        """Fork a kernel and report its pid to the guest. This method returns twice: in the kernel and in the fork server.

        Args:
            fds: Descriptors that came with the message ``fork``.

        Returns:
            In the kernel, the descriptors of its socket and of the pipe on which the guest requests delayed output. In the fork server, None.
        """
        pid_read, pid_write = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(pid_read)
            os.setsid()
            second = os.fork()
            if second:
                os.write(pid_write, str(second).encode())
                os._exit(0)
            os.close(pid_write)
            return self._become_kernel(fds)
        os.close(pid_write)
        for fd in fds:
            os.close(fd)
        os.waitpid(first, 0)
        pid = int(os.read(pid_read, 32) or b"0")
        os.close(pid_read)
        self._send({"event": "forked", "pid": pid})
        return None

    def _become_kernel(self, fds: list[int]) -> list[int]:
        self._socket.close()
        os.setsid()
        channel, out, err, flush = fds
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        self.engine.on_forked(os.urandom(64))
        self.engine.rehearse_shell()  # writes to the memory pages that a cell needs, so that they are copied now and not in the first cell
        return [channel, flush]

    def _is_fresh(self) -> bool:
        """Return True if the imported packages are unchanged on the disk.

        Files are examined only if a folder of packages has changed. If IPython could not be imported, any changed folder makes the result False,
        because IPython may have been installed.
        """
        if all(_file_version(path) == version for path, version in self._folders.items()):
            return True
        if not self.engine.has_ipython or any(_file_version(path) != version for path, version in self._files.items()):
            return False
        self._folders = {path: _file_version(path) for path in self._folders}
        return True

    def _receive(self) -> tuple[Any, list[int]]:
        """Return the next message of the guest and the descriptors that came with it. The message is None if the guest has closed the socket."""
        data = b""
        fds: list[int] = []
        head_bytes = values.HEAD_BYTES
        while len(data) < head_bytes or len(data) < head_bytes + values.message_length(data):
            part, ancillary, _flags, _address = self._socket.recvmsg(4096, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.extend(int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) - 3, 4))
            if not part:
                return None, fds
            data += part
        return values.decode(data[head_bytes:]), fds

    def _send(self, message: Any) -> None:
        self._socket.sendall(values.encode_message(message))


def _imported_files() -> list[str]:
    """Return the paths of all imported modules that belong to installed packages."""
    found = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and "-packages" + os.sep in path:
            found.append(path)
    return found


def _package_folders() -> list[str]:
    """Return the folders that change when a package is installed or updated: ``site-packages`` folders and the folder of each imported package."""
    files = _imported_files()
    tops = {path.split("-packages" + os.sep)[0] + "-packages" for path in files}
    packages = {os.path.join(top, path[len(top) + 1 :].split(os.sep)[0]) for top in tops for path in files if path.startswith(top + os.sep)}
    tops.update(site.getsitepackages(), (path for path in sys.path if path.endswith("-packages")))
    return sorted(tops | {path for path in packages if os.path.isdir(path)})


def _file_version(path: str) -> tuple[int, int]:
    """Return modification time in nanoseconds and size in bytes of a file or folder; (0, 0) if the path does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size

"""The python kernel's program, on the image's python (3.8 or newer): starts a kernel, or a zygote that kernels are forked from.

``kernel.py [--plain | --instead] FD [BELL]`` serves the socket FD, and hears the guest ring by the pipe BELL; with the plain shell where
that is said, by the second, which also tells the first cell, where the usual one did not start. ``kernel.py --zygote FD [--warm a,b]``
imports IPython and says ``ready``, then imports the modules a and b where they are installed and says ``warm``. Meanwhile it answers:
``fork`` comes with four descriptors (the kernel's socket, stdout, stderr, and the pipe by which the guest rings) and is answered by
``forked`` with the kernel's pid; ``check`` by ``fresh``, whether what was imported is still what lies on the disk.

Laws:
- What lies in the working folder is imported by cells, never by the kernel itself.
- The kernel's modules have builtins of their own, which a cell does not get at by changing Python's.
- A kernel that a zygote forked is init's child and leads a session; nothing of the zygote is left in it but what it imported.
- An IPython that does not work is no reason to have no kernel: the plain shell takes its place, and says so.
"""

from __future__ import annotations

import builtins
import gc
import os
import select
import signal
import site
import socket
import sys
from importlib.machinery import FileFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "sandlot_kernel"
WARM = "numpy,pandas,matplotlib"
BUILTINS = dict(vars(builtins))
INSTEAD = "The usual kernel did not start, so this is a plain one: cells have no magics, and figures are not shown.\n"


class Loader(SourceFileLoader):
    """Loads the kernel's own modules, with builtins of their own; byte code is neither looked for nor left behind."""

    def exec_module(self, module: Any) -> None:
        """Run a module's code."""
        module.__dict__["__builtins__"] = BUILTINS
        super().exec_module(module)

    def get_code(self, fullname: str) -> Any:
        """Compile the source."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Finder:
    """Finds the kernel's own modules, beside this file, whatever ``sys.path`` says."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """The finder's one method."""
        if name != NAME and not name.startswith(NAME + "."):
            return None
        return FileFinder(HERE if path is None else path[0], (Loader, [".py"])).find_spec(name)


def engine(*, plain: bool) -> Any:
    """A kernel without a guest yet."""
    from sandlot_kernel.engine import Engine  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder knows it

    made, warning = (None, "") if plain else ipython()
    whole = made is not None
    if made is None:
        from sandlot_kernel.plain import Plain  # type: ignore[import-not-found]  # noqa: PLC0415 - the same

        made = Plain()
    kernel = Engine(made)
    kernel.warning = warning
    kernel.is_whole = whole
    kernel.prepare()
    return kernel


def ipython() -> tuple[Any, str]:
    """IPython's shell, or None and what to say about that."""
    try:
        from sandlot_kernel.shell import Shell  # type: ignore[import-not-found]  # noqa: PLC0415 - the same

        return Shell(), ""
    except ModuleNotFoundError as error:
        if error.name == "IPython":
            return None, ""  # the image has none: that is as it should be
        said = error
    except BaseException as error:  # noqa: BLE001 - what is installed as IPython may do anything
        said = error  # type: ignore[assignment]
    return None, f"IPython does not work here ({type(said).__name__}: {str(said)[:500]}), so cells have no magics and figures are not shown.\n"


def serve(kernel: Any, fd: int, bell: int = -1) -> None:
    """Serve a guest until it is gone, which is the end of this process."""
    from sandlot_kernel.wire import Wire, high  # type: ignore[import-not-found]  # noqa: PLC0415 - the same

    wire = Wire(fd)
    if bell >= 0:
        low, bell = bell, high(bell)
        os.close(low)
    sys.path.insert(0, "")
    try:
        kernel.serve(wire, bell)
    finally:
        os._exit(0)  # threads that cells started may never end


class Zygote:
    """A process that has imported what kernels need, and is forked for each."""

    def __init__(self, fd: int, warm: list[str]) -> None:
        from sandlot_kernel import values  # type: ignore[import-not-found]  # noqa: PLC0415 - the same

        self._values = values
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._cold = warm
        # Before anything is imported: a package that is repaired after its import failed has then changed since.
        self._folders = {path: _look(path) for path in _folders()}
        self.kernel = engine(plain=False)
        self.kernel.rehearse()
        self._learn()

    def serve(self) -> list[int] | None:
        """Answer the guest until it is gone; in a forked kernel, the socket to serve and the bell."""
        self._send({"event": "ready", "warm": not self._cold})
        while True:
            if self._cold and not select.select([self._socket], [], [], 0)[0]:
                self._warm(self._cold.pop(0))
                continue
            message, fds = self._receive()
            if message is None:
                return None
            if message["op"] == "check":
                self._send({"event": "fresh", "fresh": self._fresh()})
            elif message["op"] == "fork":
                ends = self._fork(fds)
                if ends is not None:
                    return ends

    def _warm(self, name: str) -> None:
        """Import a module, if the image has it."""
        try:
            __import__(name)
        except Exception:  # noqa: BLE001, S110 - it has none, or it is broken: cells will see
            pass
        if not self._cold:
            self._learn()
            self._send({"event": "warm"})

    def _learn(self) -> None:
        """Record the imported files, and hide all objects from the garbage collector, so that kernels share their pages.

        A folder keeps its first record, which is older than the imports from it.
        """
        self._folders = {path: _look(path) for path in _folders()} | self._folders
        self._files = {path: _look(path) for path in _sources()}
        gc.collect()
        gc.freeze()

    def _fork(self, fds: list[int]) -> list[int] | None:
        told, tell = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(told)
            os.setsid()
            second = os.fork()
            if second:
                os.write(tell, str(second).encode())
                os._exit(0)
            os.close(tell)
            return self._become_kernel(fds)
        os.close(tell)
        for fd in fds:
            os.close(fd)
        os.waitpid(first, 0)
        pid = int(os.read(told, 32) or b"0")
        os.close(told)
        self._send({"event": "forked", "pid": pid})
        return None

    def _become_kernel(self, fds: list[int]) -> list[int]:
        self._socket.close()
        os.setsid()
        link, out, err, bell = fds
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        self.kernel.part(os.urandom(64))
        self.kernel.rehearse()  # its pages become its own now, not in its first cell: nobody waits for a spare
        return [link, bell]

    def _fresh(self) -> bool:
        """Whether what was imported is still there: looks closer only where a folder of packages has changed.

        Without IPython any change will do: it may have come.
        """
        if all(_look(path) == seen for path, seen in self._folders.items()):
            return True
        if not self.kernel.is_whole or any(_look(path) != seen for path, seen in self._files.items()):
            return False
        self._folders = {path: _look(path) for path in self._folders}
        return True

    def _receive(self) -> tuple[Any, list[int]]:
        data = b""
        fds: list[int] = []
        head_bytes = self._values.HEAD_BYTES
        while len(data) < head_bytes or len(data) < head_bytes + self._values.message_length(data):
            part, ancillary, _flags, _address = self._socket.recvmsg(4096, socket.CMSG_SPACE(4 * 4))
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.extend(int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) - 3, 4))
            if not part:
                return None, fds
            data += part
        return self._values.decode(data[head_bytes:]), fds

    def _send(self, message: Any) -> None:
        self._socket.sendall(self._values.encode_message(message))


def _sources() -> list[str]:
    """The files of everything that is imported and can be installed anew."""
    found = []
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and "-packages" + os.sep in path:
            found.append(path)
    return found


def _folders() -> list[str]:
    """Where an installation shows: the folders of packages, and of each package that was imported."""
    tops = {path.split("-packages" + os.sep)[0] + "-packages" for path in _sources()}
    packages = {os.path.join(top, path[len(top) + 1 :].split(os.sep)[0]) for top in tops for path in _sources() if path.startswith(top + os.sep)}
    tops.update(site.getsitepackages(), (path for path in sys.path if path.endswith("-packages")))
    return sorted(tops | {path for path in packages if os.path.isdir(path)})


def _look(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def main() -> None:
    """Do what the command line says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    argv = sys.argv[1:]
    sys.argv = [""]
    sys.path[:] = [path for path in sys.path if path not in {"", HERE}]
    sys.meta_path.insert(0, Finder())
    if argv[0] != "--zygote":
        ends = [int(word) for word in argv if not word.startswith("--")]
        kernel = engine(plain=len(argv) > len(ends))
        kernel.warning = kernel.warning or (INSTEAD if argv[0] == "--instead" else "")
        serve(kernel, *ends)
        return
    warm = argv[argv.index("--warm") + 1] if "--warm" in argv else WARM
    zygote = Zygote(int(argv[1]), [name for name in warm.split(",") if name])
    forked = zygote.serve()
    if forked is not None:
        serve(zygote.kernel, *forked)


if __name__ == "__main__":
    main()

"""Program that runs a Python kernel or a fork server. It runs on the Python of the image, 3.8 or newer.

``kernel.py [--plain | --instead] FD [FLUSH_FD]`` runs a kernel. FD is the socket to the guest. FLUSH_FD is the pipe on which the guest requests
delayed output. ``--plain`` and ``--instead`` select the shell without IPython. With ``--instead``, the first cell also prints that the IPython
kernel did not start.

``kernel.py --fork-server FD [--warm a,b]`` runs a fork server (``sandlot_kernel/fork_server.py``), which imports the modules a and b.

Invariants:
- Only cells import files from the working directory. The kernel itself never does.
- The modules of the kernel use a copy of Python's builtins, so that a cell that changes a builtin does not affect the kernel.
- If IPython is missing or broken, cells run in the plain shell. If IPython is broken, the first cell prints a warning.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
from importlib.machinery import FileFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "sandlot_kernel"
MODULES = "numpy,pandas,matplotlib"
BUILTINS = dict(vars(builtins))
INSTEAD = "The IPython kernel did not start. Cells run in a plain kernel, without magics and without figures.\n"


class Loader(SourceFileLoader):
    """Loads modules of the kernel and gives them a copy of Python's builtins. Byte code files are neither read nor written."""

    def exec_module(self, module: Any) -> None:
        """Run the code of a module. It uses a copy of Python's builtins, so a cell that changes a builtin does not affect it."""
        module.__dict__["__builtins__"] = BUILTINS
        super().exec_module(module)

    def get_code(self, fullname: str) -> Any:
        """Return the compiled source of a module, without reading or writing a byte code file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Finder:
    """Finder for ``sys.meta_path`` that finds the kernel's own modules in the folder of this file, whatever ``sys.path`` contains."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """Return the spec of ``sandlot_kernel`` or one of its modules; None for any other module."""
        if name != NAME and not name.startswith(NAME + "."):
            return None
        return FileFinder(HERE if path is None else path[0], (Loader, [".py"])).find_spec(name)


def create_engine(*, plain: bool) -> Any:
    """Return an ``Engine`` that is not connected to the guest yet.

    Args:
        plain: True to use the plain shell even if IPython works.
    """
    from sandlot_kernel.engine import Engine  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder must be installed before

    shell, warning = (None, "") if plain else create_ipython_shell()
    has_ipython = shell is not None
    if shell is None:
        from sandlot_kernel.plain_shell import PlainShell  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder must be installed before

        shell = PlainShell()
    engine = Engine(shell)
    engine.warning = warning
    engine.has_ipython = has_ipython
    engine.prepare()
    return engine


def create_ipython_shell() -> tuple[Any, str]:
    """Return an ``IPythonShell`` and an empty text. If IPython cannot be used, return None and a warning for the first cell.

    The warning is empty if the image has no IPython.
    """
    try:
        from sandlot_kernel.ipython_shell import IPythonShell  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder must be installed before

        return IPythonShell(), ""
    except ModuleNotFoundError as error:
        if error.name == "IPython":
            return None, ""  # the image has no IPython
        failure = error
    except BaseException as error:  # noqa: BLE001 - a broken IPython may raise any exception
        failure = error  # type: ignore[assignment]
    return None, f"IPython does not work here ({type(failure).__name__}: {str(failure)[:500]}). Cells run without magics and without figures.\n"


def serve(engine: Any, fd: int, flush_fd: int = -1) -> None:
    """Run a kernel until the guest closes the socket, and then end this process.

    Args:
        engine: The kernel, from :func:`create_engine`.
        fd: Descriptor of the socket to the guest.
        flush_fd: Descriptor of the pipe on which the guest requests delayed output; -1 if there is none.
    """
    from sandlot_kernel.channel import Channel, duplicate_high  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder must be installed before

    channel = Channel(fd)
    if flush_fd >= 0:
        low_fd, flush_fd = flush_fd, duplicate_high(flush_fd)
        os.close(low_fd)
    sys.path.insert(0, "")
    try:
        engine.serve(channel, flush_fd)
    finally:
        os._exit(0)  # not sys.exit(), which waits for threads that cells have started


def main() -> None:
    """Run the kernel or the fork server that the command line selects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    argv = sys.argv[1:]
    sys.argv = [""]
    sys.path[:] = [path for path in sys.path if path not in {"", HERE}]
    sys.meta_path.insert(0, Finder())
    if argv[0] != "--fork-server":
        fds = [int(word) for word in argv if not word.startswith("--")]
        engine = create_engine(plain=len(argv) > len(fds))
        engine.warning = engine.warning or (INSTEAD if argv[0] == "--instead" else "")
        serve(engine, *fds)
        return
    from sandlot_kernel.fork_server import ForkServer  # type: ignore[import-not-found]  # noqa: PLC0415 - Finder must be installed before

    modules = argv[argv.index("--warm") + 1] if "--warm" in argv else MODULES
    server = ForkServer(int(argv[1]), [name for name in modules.split(",") if name], lambda: create_engine(plain=False))
    forked = server.serve()
    if forked is not None:
        serve(server.engine, *forked)


if __name__ == "__main__":
    main()

"""Guard against cells that break the kernel. Before each cell, it repairs builtins, modules, streams, descriptors and the recursion limit.

- If a cell changes Python's builtins, the changes apply to later cells, but never to code of the kernel. A builtin function that a cell has
  deleted, or replaced by an object that cannot be called, is restored before the next cell.
- If a cell replaces ``sys.stdout`` or ``sys.stderr`` by another stream, the replacement stays. If the replacement is None or a closed stream,
  the stream of the kernel is restored before the next cell.
- If a cell closes descriptor 0, 1 or 2, the descriptor is restored before the next cell.
- A cell can import packages that were installed after the kernel has started, even from folders that did not exist then. The kernel looks for
  new ``.pth`` files when an import fails, but at most once in each cell, because this takes longer than most cells.
"""

from __future__ import annotations

import builtins
import os
import select
import site
import sys
import types
from importlib.machinery import PathFinder

from .channel import duplicate_high

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .text_streams import Stream

MIN_RECURSION_LIMIT = 500
"""Lowest recursion limit with which the kernel itself works. If a cell sets a lower limit, it is raised to this number before the next cell."""


class Builtins:
    """Python's original builtins, and the changes that cells have made to them. The changes are applied only while the code of a cell runs."""

    def __init__(self) -> None:
        self._here = vars(builtins)
        self._own: dict[str, Any] = {}
        self._changed: dict[str, Any] = {}
        self._gone: list[str] = []

    def learn(self) -> None:
        """Remember the present builtins as the originals. ``exit`` and ``quit`` are left out, because IPython replaces them for cells."""
        self._own = {name: value for name, value in self._here.items() if name not in {"exit", "quit"}}

    def restore(self) -> None:
        """Discard the changes that would break all later cells: deleted builtins, and functions replaced by an object that is not callable.

        Called before each cell.
        """
        own = self._own
        self._gone = []
        self._changed = {
            name: value
            for name, value in self._changed.items()
            if callable(value) or not (callable(own[name]) or own[name] is NotImplemented or own[name] is Ellipsis)
        }

    def enter(self) -> None:
        """Apply the changes that earlier cells have made to Python's builtins. Called before code of a cell runs."""
        if self._changed or self._gone:
            self._here.update(self._changed)
            for name in self._gone:
                self._here.pop(name, None)

    def leave(self) -> None:
        """Remember the changes that cells have made to Python's builtins, and restore the builtins. Called after code of a cell has run."""
        here, own = self._here, self._own
        changed = {name: value for name, value in own.items() if here.get(name, own) is not value}
        self._changed = {name: here[name] for name in changed if name in here}
        self._gone = [name for name in changed if name not in here]
        if changed:
            here.update(changed)


class KernelGuard:
    """Repairs the state of the kernel's process before each cell.

    Args:
        stdout: Stream that is installed as ``sys.stdout``.
        stderr: Stream that is installed as ``sys.stderr``.
    """

    def __init__(self, stdout: Stream, stderr: Stream) -> None:
        self.builtins = Builtins()
        self.stdout = stdout
        self.stderr = stderr
        self._kept: dict[int, int] = {}
        self._modules: dict[str, Any] = {}
        self._seen: dict[str, tuple[int, set[str]]] = {}
        self._standard = select.poll()
        self._is_looking = True

    def install(self) -> None:
        """Record the present builtins, modules and descriptors as the state to restore, and replace ``sys.stdout`` and ``sys.stderr``."""
        self.builtins.learn()
        self._kept = {fd: duplicate_high(fd) for fd in (0, 1, 2) if _is_open(fd)}
        for fd in self._kept:
            self._standard.register(fd, 0)
        sys.meta_path.append(self)
        self._modules = dict(sys.modules)
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc,assignment]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc,assignment]
        user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
        if user and user not in sys.path:
            sys.path.append(user)
        for folder in _sites():
            self._seen[folder] = (_mtime(folder), _path_files(folder))

    def restore(self) -> None:
        """Repair builtins, streams, descriptors, recursion limit and modules that earlier cells have broken. Called before each cell."""
        self.builtins.restore()
        self.stdout.reopen()
        self.stderr.reopen()
        for name, own in (("stdout", self.stdout), ("stderr", self.stderr)):
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False) is True:
                setattr(sys, name, own)
        for fd, mask in self._standard.poll(0):
            if mask & select.POLLNVAL:
                try:
                    os.dup2(self._kept[fd], fd)
                except OSError:
                    pass  # a cell has closed the duplicate too: output of child processes is lost, output of cells is not
        if sys.getrecursionlimit() < MIN_RECURSION_LIMIT:
            sys.setrecursionlimit(MIN_RECURSION_LIMIT)
        self._restore_modules()
        self._is_looking = False
        self._forget_folders()

    def _restore_modules(self) -> None:
        modules = self._modules
        if any(sys.modules.get(name) is not modules[name] for name in ("sys", "builtins", "importlib._bootstrap", "traceback", __name__)):
            for name, module in modules.items():
                if sys.modules.get(name) is None:
                    sys.modules[name] = module
            sys.modules.update({name: modules[name] for name in ("sys", "builtins")})

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a module in a folder that a new .pth file has added to ``sys.path``; None if there is no such module.

        Python calls this method as a finder of ``sys.meta_path``, after all other finders.
        """
        if self._is_looking or path is not None:
            return None
        self._is_looking = True  # also during the search: imports in a .pth file do not start another search
        before = list(sys.path)
        self._add_path_files()
        return None if sys.path == before else PathFinder.find_spec(name)

    def _add_path_files(self) -> None:
        """Process .pth files that were added to the folders of installed packages since the last call."""
        try:
            for folder, (mtime, seen) in list(self._seen.items()):
                now = _mtime(folder)
                if now == mtime:
                    continue
                there = _path_files(folder)
                for name in sorted(there - seen):
                    site.addpackage(folder, name, None)
                self._seen[folder] = (now, there)
        except Exception:  # noqa: BLE001, S110 - .pth files may contain any code
            pass

    def _forget_folders(self) -> None:
        """Make Python read the folders of ``sys.path`` again. Does the work of importlib.invalidate_caches(), but imports nothing."""
        try:
            for finder in list(sys.path_importer_cache.values()):
                invalidate = getattr(finder, "invalidate_caches", None)
                if invalidate is not None:
                    invalidate()
            for folder, finder in list(sys.path_importer_cache.items()):
                if finder is None:
                    del sys.path_importer_cache[folder]
            metadata = sys.modules.get("importlib.metadata")
            if metadata is not None:
                metadata.MetadataPathFinder.invalidate_caches()
        except Exception:  # noqa: BLE001, S110 - a cell may have installed any object as a finder
            pass


def give_builtins(names: dict[str, Any]) -> None:
    """Put Python's builtins into a namespace that has none. Otherwise, exec() would insert the kernel's own copy of the builtins.

    Args:
        names: Namespace of cells.
    """
    if type(names.get("__builtins__")) not in {dict, types.ModuleType}:
        names["__builtins__"] = builtins


def _sites() -> list[str]:
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return folders


def _path_files(folder: str) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if name.endswith(".pth") and not name.startswith(".")}
    except OSError:
        return set()


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

"""Restoring parts of Python that cells have broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.kernels import Process, errors_of, values_of


def test_changed_builtin_applies_to_cells_and_not_to_the_kernel(kernel: Process) -> None:
    kernel.run(
        "import builtins\n"
        "kept = builtins.len, builtins.isinstance, builtins.repr\nbuiltins.len = builtins.isinstance = builtins.repr = lambda *a: 1 / 0"
    )
    assert errors_of(kernel.run("len([])")) == ["ZeroDivisionError"]
    assert kernel.value("[1, 'two']") == "[1, 'two']", "results are shown"
    outcome = kernel.run("undefined_name")
    assert errors_of(outcome) == ["NameError"]
    assert outcome[0]["traceback"][-1] == "NameError: name 'undefined_name' is not defined"
    kernel.run("builtins.len, builtins.isinstance, builtins.repr = kept")
    assert kernel.value("len([1])") == "1"


def test_deleted_builtins_are_restored_for_the_next_cell(kernel: Process) -> None:
    kernel.run("import builtins\nfor name in dir(builtins):\n    if not name.startswith('_') and name != 'setattr': setattr(builtins, name, None)")
    assert kernel.value("len([1]), callable(print), issubclass(KeyError, Exception)") == "(1, True, True)"
    kernel.run("import collections.abc")
    assert kernel.value("NotImplemented, Ellipsis is ..., isinstance(1, collections.abc.Sized)") == "(NotImplemented, True, False)"
    kernel.run("import builtins\ndel builtins.print, builtins.open, builtins.Exception")
    assert kernel.text("print('back')") == "back\n"
    for broken in ("del __builtins__", "__builtins__ = None"):
        kernel.run(broken)
        assert kernel.value("len([1]), vars(__builtins__)['len'] is len") == "(1, True)"


def test_added_builtin_is_kept(kernel: Process) -> None:
    kernel.run("import builtins\nbuiltins.mine = 5\nold = builtins.print\nbuiltins.print = lambda *a: old('mine:', *a)")
    assert kernel.text("print(mine)") == "mine: 5\n"
    kernel.run("builtins.print = old\ndel builtins.mine")
    assert errors_of(kernel.run("mine")) == ["NameError"]


def test_manipulated_modules_do_not_affect_the_kernel(tmp_path: Path) -> None:
    for flags in ((), ("--plain",)):
        kernel = Process(tmp_path, *flags)
        kernel.run("import sys\nfor name in list(sys.modules): sys.modules[name] = None")
        assert kernel.value("import json, traceback\njson.dumps([1])") == "'[1]'"
        kernel.run("import sys\nsys.modules.clear()")
        assert kernel.value("import json\njson.dumps([1])") == "'[1]'"
        assert errors_of(kernel.run("1 / 0")) == ["ZeroDivisionError"]
        kernel.close()


HARM = (
    "os.closerange(0, 600)",
    "sys.setrecursionlimit(30)",
    "sys.displayhook = sys.excepthook = None",
    "import traceback, linecache\ntraceback.format_exception = traceback.TracebackException = None\nlinecache.cache.clear()",
    "import gc; gc.disable()",
    "os.environ.clear()",
    "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "sys.settrace(None); sys.setprofile(None)",
    "raise type('M', (type,), {'__getattribute__': lambda *a: 1/0})('Odd', (Exception,), {})",
    "class Nasty:\n    __class__ = property(lambda self: 1 / 0)\n    def __getattr__(self, name): raise RuntimeError(name)\nNasty()",
    "sys.path.clear()\nsys.meta_path[:] = [None]",
)


@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["ipython", "plain"])
def test_next_cells_print_and_fail_correctly_after_a_destructive_cell(tmp_path: Path, flags: tuple[str, ...]) -> None:
    kernel = Process(tmp_path, *flags)
    kernel.run("import os, sys, asyncio")
    for code in HARM:
        kernel.run(code)
        assert kernel.value("'shown'") == "'shown'", code
        assert kernel.text("print('said')") == "said\n", code
        assert errors_of(kernel.run("1 / 0")) == ["ZeroDivisionError"], code
        assert kernel.value("await asyncio.sleep(0)\n'awaited'") == "'awaited'", code
    kernel.close()


def test_closed_descriptor_is_restored_for_children(tmp_path: Path) -> None:
    kernel = Process(tmp_path, "--plain")
    kernel.run("import os\nos.close(1)")
    kernel.run("os.system('echo from a child')")
    assert kernel.stop() == b"from a child\n"


def test_socket_is_above_the_descriptors_that_daemons_close(kernel: Process) -> None:
    kernel.run("os.closerange(3, 256)")
    assert kernel.value("'still connected'") == "'still connected'"
    assert kernel.value("await asyncio.sleep(0.01)\n'and awaiting'") == "'and awaiting'"


def test_pth_file_that_is_installed_later_is_used(tmp_path: Path) -> None:
    """The file is in the user's folder of packages, which does not exist when the kernel starts. A virtual environment has no such folder."""
    kernel = Process(tmp_path, "--plain", python=sys._base_executable)  # type: ignore[attr-defined]  # noqa: SLF001
    user = kernel.value("import site, sys; site.getusersitepackages()")[1:-1]
    assert user.startswith(str(tmp_path))
    assert kernel.value(f"{user!r} in sys.path") == "True"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / f"by_path_file_{kernel.pid}.py").write_text("x = 1\n")
    os.makedirs(user, exist_ok=True)  # noqa: PTH103 - as text from the kernel
    Path(user, f"linked_{kernel.pid}.pth").write_text(f"{tmp_path / 'linked'}\n")
    assert values_of(kernel.run(f"import by_path_file_{kernel.pid} as found\nfound.x")) == ["1"]
    kernel.close()

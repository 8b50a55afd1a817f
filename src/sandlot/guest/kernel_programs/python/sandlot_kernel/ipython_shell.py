"""The shell for images with IPython 8 or 9: ``InteractiveShell`` without a terminal, files or colours.

- No files are read or written: no profile, no history database, no start-up files.
- IPython prints neither prompts nor results nor tracebacks. They are reported as messages (``engine.KernelFacade``).
- Figures that a cell leaves open are shown once, at the end of the cell.
"""

from __future__ import annotations

import ast
import sys

import IPython
from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import BaseFormatter, DisplayFormatter
from IPython.core.inputtransformer2 import PromptStripper
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import ObjectName, Type, Unicode, default, observe
from traitlets.config import Config

from . import charts, figures, tracebacks
from .display_data import MAX_METADATA_TEXT_CHARS, MAX_PART_CHARS, MAX_TEXT_CHARS
from .forking import run_command
from .kernel_guard import give_builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .engine import KernelFacade

PARTS = ("display_formatter", "display_pub", "displayhook", "history_manager", "events", "compile", "builtin_trap", "display_trap")
"""Attributes that cells can reach through ``get_ipython()``. They are restored if a cell has set them to None."""

NO_FOLDER = "/nonexistent/ipython"
"""A path that does not exist, used as IPython's folder."""


class Compiler(CachingCompiler):  # type: ignore[misc]
    """Compiles cells, with the names of the engine as file names."""

    cell_name = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the name of the cell in tracebacks."""
        return self.cell_name or str(super().get_code_name(raw_code, transformed_code, number))


class Exit(ExitAutocall):  # type: ignore[misc]
    """``exit`` and ``quit``, even without parentheses. They end the cell, not the kernel."""

    def __call__(self, *code: object) -> None:
        """End the cell."""
        raise SystemExit(*code[:1])


class ResultHook(DisplayHook):  # type: ignore[misc]
    """Reports the value of the last expression of a cell."""

    def __call__(self, result: object = None) -> None:
        """Send the value of an expression to the client as display data."""
        facade = self.shell.facade
        facade.guard.builtins.leave()
        try:
            super().__call__(result)
            figures.remember_shown(result)
        finally:
            facade.guard.builtins.enter()

    def quiet(self) -> bool:
        """Return True if the cell ends with a semicolon, which suppresses the result."""
        try:
            return bool(self.semicolon_at_end_of_expression(self.shell.cell_code))
        except Exception:  # noqa: BLE001 - IPython's tokenizer fails for some code
            return False

    def write_output_prompt(self) -> None:
        """Do nothing."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Report the representations."""
        self.shell.facade.display(format_dict, md_dict, main=True)

    def update_user_ns(self, result: object) -> None:
        """Store the value as ``_`` and in ``Out``, if the cell is stored in the history."""
        if self.shell.cell_stored:
            super().update_user_ns(result)

    def log_output(self, format_dict: Any) -> None:
        """Store the text for ``%history -o``."""
        if self.shell.cell_stored and "text/plain" in format_dict:
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = str(format_dict["text/plain"])[:MAX_METADATA_TEXT_CHARS]

    def finish_displayhook(self) -> None:
        """End the display. No stream needs a flush."""
        self._is_active = False


class DisplayMessages(DisplayPublisher):  # type: ignore[misc]
    """Reports displays."""

    def publish(self, data: Any, metadata: Any = None, *_source: Any, transient: Any = None, update: bool = False, **_more: Any) -> None:
        """Report a display."""
        display_id = (transient or {}).get("display_id")
        self.shell.facade.display(data, metadata, main=False, display_id=None if display_id is None else str(display_id), update=bool(update))

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Report that the cell removes its results."""
        self.shell.facade.clear(wait=bool(wait))


class Formatter(DisplayFormatter):  # type: ignore[misc]
    """Finds the representations of an object. The error of a failed representation is written to stderr and does not end the cell."""

    def format(self, obj: object, include: Any = None, exclude: Any = None) -> Any:
        """Return the representations and their metadata."""
        shell = self.parent
        before, shell.formatting = shell.formatting, True
        try:
            data, about = super().format(obj, include=include, exclude=exclude)
        finally:
            shell.formatting = before
        if about is not None and not data and not include and not hasattr(type(obj), "_ipython_display_"):
            data = {"text/plain": f"<{type(obj).__name__}: repr failed>"}
        return data, about


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """Formatter for the data of a chart."""

    format_type = Unicode(charts.MIME)
    print_method = ObjectName("_repr_sandlot_chart_")

    def __call__(self, obj: object) -> str | None:
        """Return JSON for a figure, None for other objects. The inline backend would remove a formatter that is registered for figures."""
        return charts.describe(obj) if figures.is_figure(obj) else None


class NoProfile(ProfileDir):  # type: ignore[misc]
    """A profile folder that is not created. IPython 8 needs its path."""

    @observe("location")  # type: ignore[untyped-decorator]
    def _location_changed(self, change: Any) -> None:
        """Do nothing: no folder is created."""


class IPythonShell(InteractiveShell):  # type: ignore[misc]
    """An IPython shell that runs cells of the guest."""

    compiler_class = Type(Compiler)
    displayhook_class = Type(ResultHook)
    display_pub_class = Type(DisplayMessages)

    facade: KernelFacade

    def __init__(self) -> None:
        self.cell_code = ""
        self.cell_stored = True
        self.formatting = False
        self._memory: dict[str, Any] = {}
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"  # noqa: PLR2004
        config.InteractiveShell.xmode = "Plain"
        config.InteractiveShell.display_page = True
        config.InteractiveShell.autoindent = False
        config.InteractiveShell.warn_venv = False
        if hasattr(interactiveshell, "PickleShareDB"):
            interactiveshell.PickleShareDB = lambda _folder: {}  # IPython 8 would create a folder
        super().__init__(config=config)
        type(self)._instance = self  # noqa: SLF001 - as instance() does, for both classes
        InteractiveShell._instance = self  # noqa: SLF001
        plain = self.display_formatter.formatters["text/plain"]
        for kind in (str, bytes, bytearray):
            plain.for_type(kind, _long)
        chart = ChartFormatter(parent=self.display_formatter)
        self.display_formatter.formatters[charts.MIME] = chart
        figures.install()

    def connect(self, facade: KernelFacade) -> None:
        """Connect the shell to its kernel."""
        self.facade = facade
        self._parts = {name: getattr(self, name) for name in PARTS}

    def begin(self, code: str, name: str, *, silent: bool, stored: bool) -> tuple[Any, bool]:
        """Prepare a cell; see ``plain_shell.PlainShell.begin``."""
        self.cell_code, self.cell_stored = code, stored and not silent
        for attribute, part in self._parts.items():
            if getattr(self, attribute, None) is None:
                setattr(self, attribute, part)
        self.compile.cell_name = name
        self.formatting = False  # an interrupt may have prevented its reset
        failed = None
        try:
            cell = self._transformed(code)
        except Exception:  # noqa: BLE001 - run_cell_async reports the error of the cell
            cell, failed = code, sys.exc_info()
        needs_loop = bool(self.should_run_async(code, transformed_cell=cell, preprocessing_exc_tuple=failed))
        coroutine = self.run_cell_async(code, store_history=stored, silent=silent, transformed_cell=cell, preprocessing_exc_tuple=failed)
        return coroutine, needs_loop

    def _transformed(self, code: str) -> str:
        """Transform a cell into Python. Prompts of pasted sessions are removed only if the code is not valid Python: strings may contain them."""
        manager = self.input_transformer_manager
        cleanup = manager.cleanup_transforms
        if _is_python(code):
            # "In [1]: x" is valid Python too, an annotation. Code that begins with a prompt was pasted.
            manager.cleanup_transforms = [each for each in cleanup if not isinstance(each, PromptStripper) or each.initial_re.match(code)]
        try:
            return str(self.transform_cell(code))
        finally:
            manager.cleanup_transforms = cleanup

    def after(self, *, silent: bool) -> None:
        """Show figures at the end of a cell, and call the registered callbacks."""
        figures.drop_shown()
        self.events.trigger("post_execute")
        if not silent:
            self.events.trigger("post_run_cell", self.last_execution_result)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a part of a cell. Return True if it failed."""
        facade = self.facade
        hook, sys.excepthook = sys.excepthook, self.excepthook
        give_builtins(self.user_global_ns)
        error: BaseException | None = None
        try:
            try:
                facade.enter()
                if async_:
                    await eval(code_obj, self.user_global_ns, self.user_ns)  # noqa: S307 - a kernel runs code
                else:
                    exec(code_obj, self.user_global_ns, self.user_ns)  # noqa: S102 - as above
            finally:
                facade.leave()
        except BaseException as raised:  # noqa: BLE001 - any exception is a result of the cell
            error = raised
        sys.excepthook = hook
        if error is not None and result is not None:
            result.error_in_exec = error
        if error is None:
            return False
        if isinstance(error, self.custom_exceptions):
            self.CustomTB(type(error), error, error.__traceback__)
        self.showtraceback((type(error), error, error.__traceback__))
        return True

    runcode = run_code

    def showtraceback(self, exc_tuple: Any = None, *_how: Any, **_more: Any) -> None:
        """Report an exception of a cell as its error. The exception of a representation is written to stderr."""
        try:
            kind, raised, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            sys.stderr.write("No traceback available to show.\n")
            return
        if self.formatting or (exc_tuple is None and sys.exc_info()[0] is None):  # %tb shows an error again
            sys.stderr.write("\n".join(tracebacks.lines_of(kind, raised, trace)) + "\n")
        elif kind is UsageError:
            self.facade.error(kind, raised, None)
        else:
            self.facade.error(kind, raised, trace, self._in_mode(kind, raised, trace))

    def showsyntaxerror(self, *_how: Any, **_more: Any) -> None:
        """Report a syntax error."""
        self.showtraceback()

    def showindentationerror(self) -> None:
        """Report an indentation error."""
        self.showtraceback()

    def excepthook(self, etype: Any, value: Any, tb: Any) -> None:
        """Print an exception to stderr, as ``sys.excepthook`` of Python does."""
        sys.stderr.write("\n".join(tracebacks.lines_of(etype, value, tb)) + "\n")

    def system(self, cmd: str) -> None:
        """Run ``!command``."""
        self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

    def _format_exception_for_storage(self, exception: BaseException, *_how: Any, **_more: Any) -> dict[str, Any]:
        """Return a record without the text of the error, which IPython 9 would store for notebooks."""
        return {"ename": tracebacks.name_of(type(exception)), "evalue": "", "traceback": []}

    def ask_exit(self) -> None:
        """End the cell."""
        raise SystemExit

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing, because figures are shown inline."""

    def init_ipython_dir(self, _given: Any) -> None:
        """Do nothing: no folder is created."""
        self.ipython_dir = NO_FOLDER

    @observe("ipython_dir")  # type: ignore[untyped-decorator]
    def _ipython_dir_changed(self, change: Any) -> None:
        """Do nothing: no folder is created."""

    def init_profile_dir(self, _given: Any) -> None:
        """Use a profile folder that does not exist."""
        self.profile_dir = NoProfile(location=NO_FOLDER)

    @property
    def db(self) -> dict[str, Any]:
        """Values that magics store, such as folders and aliases. They are kept in memory."""
        return self._memory

    @db.setter
    def db(self, _given: Any) -> None:
        """Ignore the files that IPython 8 would use."""

    def init_virtualenv(self) -> None:
        """Do nothing: the kernel ignores VIRTUAL_ENV."""

    def init_display_formatter(self) -> None:
        """Use the formatter that handles failures."""
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    @default("exiter")  # type: ignore[untyped-decorator]
    def _exiter_default(self) -> Exit:
        return Exit(self)

    def _in_mode(self, kind: Any, raised: Any, trace: Any) -> list[str] | None:
        """Return the traceback in the mode that a cell has selected with %xmode; None for the default mode."""
        if self.InteractiveTB.mode == "Plain" or isinstance(raised, SyntaxError):
            return None
        try:
            text = self.InteractiveTB.stb2text(self.InteractiveTB.structured_traceback(kind, raised, tracebacks.strip(trace), tb_offset=0))
        except Exception:  # noqa: BLE001 - it calls code of the user
            return None
        return str(text).splitlines()[-tracebacks.MAX_LINES :]


def _is_python(code: str) -> bool:
    try:
        compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def _long(shown: Any, printer: Any, _cycle: Any) -> None:
    """Print a text or bytes, shortened if it is too long for a message."""
    if len(shown) <= MAX_TEXT_CHARS:
        printer.text(repr(shown))
    else:
        printer.text(f"{shown[:MAX_PART_CHARS]!r} [... of {len(shown):,}]")

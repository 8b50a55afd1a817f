"""The shell for images with IPython 8 or 9: IPython's ``InteractiveShell`` without a terminal, files or colours.

- No files are read or written: no profile, no history database, no start-up files.
- IPython prints no prompts, results or tracebacks. Results and errors are reported to the guest as messages (``engine.KernelFacade``).
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
from IPython.core.formatters import BaseFormatter, DisplayFormatter, JSONFormatter
from IPython.core.inputtransformer2 import PromptStripper
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import ObjectName, Type, Unicode, default, observe
from traitlets.config import Config

from . import charts, extra_results, figures, plotly_figures, tracebacks
from .display_data import MAX_METADATA_TEXT_CHARS, MAX_PART_CHARS, MAX_TEXT_CHARS
from .forking import run_command
from .kernel_guard import give_builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .engine import KernelFacade

PARTS = ("display_formatter", "display_pub", "displayhook", "history_manager", "events", "compile", "builtin_trap", "display_trap")
"""Attributes of the shell that are restored before a cell if an earlier cell has set them to None (through ``get_ipython()``)."""

NO_FOLDER = "/nonexistent/ipython"
"""Path that IPython uses as its own folder (``ipython_dir``). The path does not exist, so that IPython reads and writes no files there."""


class Compiler(CachingCompiler):  # type: ignore[misc]
    """Compiler that gives the code of a cell the file name that the engine has chosen, such as ``<cell 3>``.

    Attributes:
        cell_name: Name of the cell that is compiled next; empty to use the name that IPython chooses.
    """

    cell_name = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name that tracebacks show for the code of a cell."""
        return self.cell_name or str(super().get_code_name(raw_code, transformed_code, number))


class Exit(ExitAutocall):  # type: ignore[misc]
    """Class of the objects ``exit`` and ``quit`` in cells. They end the cell, not the kernel, and also work without parentheses."""

    def __call__(self, *code: object) -> None:
        """End the cell by raising SystemExit. The first argument is the exit code."""
        raise SystemExit(*code[:1])


class ResultHook(DisplayHook):  # type: ignore[misc]
    """Display hook that reports the value of the last expression of a cell to the guest."""

    def __call__(self, result: object = None) -> None:
        """Report the value of the last expression of a cell as the main result of the cell."""
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
        """Print no prompt such as ``Out[1]:``."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Report the representations of the last expression's value to the guest.

        Args:
            format_dict: MIME type -> representation.
            md_dict: Metadata of the representations; None if there is none.
        """
        self.shell.facade.display(format_dict, md_dict, main=True)

    def update_user_ns(self, result: object) -> None:
        """Store the last expression's value as ``_`` and in ``Out``, if the cell is stored in the history."""
        if self.shell.cell_stored:
            super().update_user_ns(result)

    def log_output(self, format_dict: Any) -> None:
        """Store the text/plain representation of the value for the magic ``%history -o``, if the cell is stored in the history."""
        if self.shell.cell_stored and "text/plain" in format_dict:
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = str(format_dict["text/plain"])[:MAX_METADATA_TEXT_CHARS]

    def finish_displayhook(self) -> None:
        """Record that the value of the last expression was displayed. Unlike IPython's method, this method flushes no stream."""
        self._is_active = False


class DisplayMessages(DisplayPublisher):  # type: ignore[misc]
    """Publisher that reports to the guest what cells display with ``display()``."""

    def publish(self, data: Any, metadata: Any = None, *_source: Any, transient: Any = None, update: bool = False, **_more: Any) -> None:
        """Report an object that a cell displays.

        Args:
            data: MIME type -> representation of the object.
            metadata: Metadata of the representations; None if there is none.
            transient: Dict with ``display_id``, if the display can be updated.
            update: True to replace the earlier display that has this ``display_id``.
        """
        display_id = (transient or {}).get("display_id")
        self.shell.facade.display(data, metadata, main=False, display_id=None if display_id is None else str(display_id), update=bool(update))

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """Tell the guest to remove the results of the cell: now, or if ``wait`` is True, when the next result is displayed."""
        self.shell.facade.clear(wait=bool(wait))


class Formatter(DisplayFormatter):  # type: ignore[misc]
    """Formatter that collects the representations of an object. If creating a representation fails, the error is written to stderr."""

    def format(self, obj: object, include: Any = None, exclude: Any = None) -> Any:
        """Return the representations of an object and their metadata, both as MIME type -> value.

        Args:
            obj: The object.
            include: MIME types to return; None for all.
            exclude: MIME types not to return; None if there is none.
        """
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
    """Formatter that adds the data of the chart to the representations of a Matplotlib figure."""

    format_type = Unicode(charts.MIME)
    print_method = ObjectName("_repr_sandlot_chart_")

    def __call__(self, obj: object) -> str | None:
        """Return the chart data of a figure as JSON; None for any other object.

        This method checks the type itself, because the inline backend would remove a formatter that is registered for figures.
        """
        return charts.describe(obj) if figures.is_figure(obj) else None


class TableFormatter(BaseFormatter):  # type: ignore[misc]
    """Formatter that adds the values of a pandas DataFrame to its representations, if the cell has selected further results."""

    format_type = Unicode(extra_results.TABLE)
    print_method = ObjectName("_repr_sandlot_table_")

    def __call__(self, obj: object) -> str | None:
        """Return a DataFrame as the JSON of a table; None for any other object."""
        return extra_results.table_of(obj)


class ValueFormatter(JSONFormatter):  # type: ignore[misc]
    """Formatter that adds JSON to the representations of a dict or a list, if the cell has selected further results."""

    def __call__(self, obj: object) -> Any:
        """Return a dict or a list as JSON, and the JSON of any other object as IPython does."""
        found = extra_results.json_of(obj)
        return super().__call__(obj) if found is None else found


class NoProfile(ProfileDir):  # type: ignore[misc]
    """Object that stands for IPython's profile folder. IPython 8 needs such an object, but the folder itself is never created."""

    @observe("location")  # type: ignore[untyped-decorator]
    def _location_changed(self, change: Any) -> None:
        """Do nothing when the path of the profile folder is set. IPython's own method would create the folder."""


class IPythonShell(InteractiveShell):  # type: ignore[misc]
    """IPython shell that runs the cells of a kernel.

    Attributes:
        facade: The part of the kernel that the shell uses.
        cell_code: Code of the running cell.
        cell_stored: True if the running cell is stored in the history.
        formatting: True while the shell collects the representations of an object.
    """

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
        type(self)._instance = self  # noqa: SLF001 - traitlets' method instance() sets the same attribute of both classes
        InteractiveShell._instance = self  # noqa: SLF001
        plain = self.display_formatter.formatters["text/plain"]
        for kind in (str, bytes, bytearray):
            plain.for_type(kind, _long)
        for formatter in (ChartFormatter, TableFormatter, ValueFormatter):
            made = formatter(parent=self.display_formatter)
            self.display_formatter.formatters[made.format_type] = made
        figures.install()
        plotly_figures.install()

    def connect(self, facade: KernelFacade) -> None:
        """Connect the shell to the kernel, to which it reports results and errors.

        Args:
            facade: The part of the kernel that a shell uses.
        """
        self.facade = facade
        self._parts = {name: getattr(self, name) for name in PARTS}

    def begin(self, code: str, name: str, *, silent: bool, stored: bool) -> tuple[Any, bool]:
        """Return a coroutine that runs a cell, and True if the coroutine needs the event loop. See ``plain_shell.PlainShell.begin``."""
        self.cell_code, self.cell_stored = code, stored and not silent
        for attribute, part in self._parts.items():
            if getattr(self, attribute, None) is None:
                setattr(self, attribute, part)
        self.compile.cell_name = name
        self.formatting = False  # an interrupt of an earlier cell may have left it True
        extra_results.prepare()
        failed = None
        try:
            cell = self._transformed(code)
        except Exception:  # noqa: BLE001 - run_cell_async() reports this exception as the error of the cell
            cell, failed = code, sys.exc_info()
        needs_loop = bool(self.should_run_async(code, transformed_cell=cell, preprocessing_exc_tuple=failed))
        coroutine = self.run_cell_async(code, store_history=stored, silent=silent, transformed_cell=cell, preprocessing_exc_tuple=failed)
        return coroutine, needs_loop

    def _transformed(self, code: str) -> str:
        """Return the code of a cell as Python code, with magics translated and the prompts of pasted sessions removed.

        If the code is valid Python already, prompts are removed only if the code begins with a prompt, because other
        prompts may be part of a string.
        """
        manager = self.input_transformer_manager
        cleanup = manager.cleanup_transforms
        if _is_python(code):
            # "In [1]: x" is also valid Python (an annotation), but code that begins with a prompt was pasted from an IPython session.
            manager.cleanup_transforms = [each for each in cleanup if not isinstance(each, PromptStripper) or each.initial_re.match(code)]
        try:
            return str(self.transform_cell(code))
        finally:
            manager.cleanup_transforms = cleanup

    def after(self, *, silent: bool) -> None:
        """Show the open figures at the end of a cell, and call the callbacks that cells have registered with IPython.

        Args:
            silent: True to skip the callbacks of ``post_run_cell``.
        """
        figures.drop_shown()
        self.events.trigger("post_execute")
        if not silent:
            self.events.trigger("post_run_cell", self.last_execution_result)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a part of a cell. If the part raises an exception, report the exception and return True. Otherwise return False.

        Args:
            code_obj: Compiled code of the part.
            result: IPython's result object, in which the exception is stored. If None, the exception is not stored.
            async_: True if the part contains a top-level ``await``.
        """
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
                    exec(code_obj, self.user_global_ns, self.user_ns)  # noqa: S102 - a kernel runs code
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
        """Report an exception as the error of the cell. An exception that %tb shows, or that a representation has raised, is only written to stderr.

        Args:
            exc_tuple: Class, exception and traceback; None for the current exception (``sys.exc_info()``).
        """
        try:
            kind, raised, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            sys.stderr.write("No traceback available to show.\n")
            return
        if self.formatting or (exc_tuple is None and sys.exc_info()[0] is None):  # the second condition is true if the magic %tb shows an error again
            sys.stderr.write("\n".join(tracebacks.lines_of(kind, raised, trace)) + "\n")
        elif kind is UsageError:
            self.facade.error(kind, raised, None)
        else:
            self.facade.error(kind, raised, trace, self._in_mode(kind, raised, trace))

    def showsyntaxerror(self, *_how: Any, **_more: Any) -> None:
        """Report the current syntax error (``sys.exc_info()``) as the error of the cell."""
        self.showtraceback()

    def showindentationerror(self) -> None:
        """Report the current indentation error (``sys.exc_info()``) as the error of the cell."""
        self.showtraceback()

    def excepthook(self, etype: Any, value: Any, tb: Any) -> None:
        """Print an exception to stderr, as ``sys.excepthook`` of Python does."""
        sys.stderr.write("\n".join(tracebacks.lines_of(etype, value, tb)) + "\n")

    def system(self, cmd: str) -> None:
        """Run the command line of a ``!command`` in a cell, and store its exit status in ``_exit_code``."""
        self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

    def _format_exception_for_storage(self, exception: BaseException, *_how: Any, **_more: Any) -> dict[str, Any]:
        """Return the record of an exception that IPython 9 stores for notebooks. Its text and traceback are empty: the kernel does not use them."""
        return {"ename": tracebacks.name_of(type(exception)), "evalue": "", "traceback": []}

    def ask_exit(self) -> None:
        """End the cell, not the kernel. IPython calls this method when code of a cell asks to exit.

        Raises:
            SystemExit: Always.
        """
        raise SystemExit

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: figures are shown inline, so no event loop of a graphical interface is started."""

    def init_ipython_dir(self, _given: Any) -> None:
        """Set IPython's folder to a path that does not exist, and create nothing."""
        self.ipython_dir = NO_FOLDER

    @observe("ipython_dir")  # type: ignore[untyped-decorator]
    def _ipython_dir_changed(self, change: Any) -> None:
        """Do nothing when the path of IPython's folder is set. IPython's own method would create the folder."""

    def init_profile_dir(self, _given: Any) -> None:
        """Set the profile folder to a path that does not exist, and create nothing."""
        self.profile_dir = NoProfile(location=NO_FOLDER)

    @property
    def db(self) -> dict[str, Any]:
        """Values that magics store under a name, such as bookmarks and aliases. They are kept in memory and not on the disk."""
        return self._memory

    @db.setter
    def db(self, _given: Any) -> None:
        """Ignore the file storage that IPython 8 sets, and keep the values in memory."""

    def init_virtualenv(self) -> None:
        """Ignore the variable VIRTUAL_ENV: the kernel always uses the packages of its own interpreter."""

    def init_display_formatter(self) -> None:
        """Install :class:`Formatter` as the formatter of results and displays."""
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    @default("exiter")  # type: ignore[untyped-decorator]
    def _exiter_default(self) -> Exit:
        return Exit(self)

    def _in_mode(self, kind: Any, raised: Any, trace: Any) -> list[str] | None:
        """Return the lines of a traceback in the mode that a cell has selected with %xmode.

        Return None if the mode is the default, ``Plain``, if the exception is a SyntaxError, or if formatting fails.
        """
        if self.InteractiveTB.mode == "Plain" or isinstance(raised, SyntaxError):
            return None
        try:
            text = self.InteractiveTB.stb2text(self.InteractiveTB.structured_traceback(kind, raised, tracebacks.strip(trace), tb_offset=0))
        except Exception:  # noqa: BLE001 - formatting a traceback may call code of the user
            return None
        return tracebacks.split(str(text))


def _is_python(code: str) -> bool:
    try:
        compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def _long(shown: Any, printer: Any, _cycle: Any) -> None:
    """Print a str or bytes object for IPython's text/plain representation, shortened if it is longer than ``MAX_TEXT_CHARS``."""
    if len(shown) <= MAX_TEXT_CHARS:
        printer.text(repr(shown))
    else:
        printer.text(f"{shown[:MAX_PART_CHARS]!r} [... of {len(shown):,}]")

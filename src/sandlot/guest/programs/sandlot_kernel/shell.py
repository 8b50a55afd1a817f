"""The shell for an image that has IPython, 8 or 9: its ``InteractiveShell`` without a terminal, files or colours.

Laws:
- It writes nothing: no profile, no history's database, no start-up files are read.
- What it would print as a prompt, a result or a traceback it tells as messages (``engine.Host``).
- Figures that a cell leaves open are shown when it ends, once.
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

from . import charts, children, figures, guard, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .engine import Host

PARTS = ("display_formatter", "display_pub", "displayhook", "history_manager", "events", "compile", "builtin_trap", "display_trap")
"""What a cell can get at by ``get_ipython()`` and must not take away."""

NO_PLACE = "/nonexistent/ipython"
"""Where IPython's own folder would be."""


class Compiler(CachingCompiler):  # type: ignore[misc]
    """Compiles cells under the names that the engine gives them."""

    cell_name = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """What tracebacks call the cell."""
        return self.cell_name or str(super().get_code_name(raw_code, transformed_code, number))


class Exit(ExitAutocall):  # type: ignore[misc]
    """``exit`` and ``quit``, also without brackets: the cell ends here, the kernel does not."""

    def __call__(self, *code: object) -> None:
        """Leave."""
        raise SystemExit(*code[:1])


class Result(DisplayHook):  # type: ignore[misc]
    """Tells the value of a last expression."""

    def __call__(self, result: object = None) -> None:
        """Tell a value."""
        host = self.shell.host
        host.guard.builtins.leave()
        try:
            super().__call__(result)
            figures.shown(result)
        finally:
            host.guard.builtins.enter()

    def quiet(self) -> bool:
        """Whether the cell ends with a semicolon."""
        try:
            return bool(self.semicolon_at_end_of_expression(self.shell.cell_code))
        except Exception:  # noqa: BLE001 - what its tokenizer cannot read has no semicolon there
            return False

    def write_output_prompt(self) -> None:
        """None is shown."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Tell it."""
        self.shell.host.display(format_dict, md_dict, main=True)

    def update_user_ns(self, result: object) -> None:
        """Keep it as ``_`` and in ``Out``, where the cell is one that is kept."""
        if self.shell.cell_stored:
            super().update_user_ns(result)

    def log_output(self, format_dict: Any) -> None:
        """Only ``%history -o`` would want it."""
        if self.shell.cell_stored and "text/plain" in format_dict:
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = str(format_dict["text/plain"])[: telling.VALUE_CHARS]

    def finish_displayhook(self) -> None:
        """Nothing was written to a stream."""
        self._is_active = False


class Publisher(DisplayPublisher):  # type: ignore[misc]
    """Tells displays."""

    def publish(self, data: Any, metadata: Any = None, *_source: Any, transient: Any = None, update: bool = False, **_more: Any) -> None:
        """Tell one."""
        display_id = (transient or {}).get("display_id")
        self.shell.host.display(data, metadata, main=False, display_id=None if display_id is None else str(display_id), update=bool(update))

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's signature
        """What was shown so far is to go."""
        self.shell.host.clear(wait=bool(wait))


class Formatter(DisplayFormatter):  # type: ignore[misc]
    """Finds an object's representations; one that fails is a warning of the cell, not its end."""

    def format(self, obj: object, include: Any = None, exclude: Any = None) -> Any:
        """The representations and their metadata."""
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
    """What a figure shows, as data."""

    format_type = Unicode(charts.MIME)
    print_method = ObjectName("_repr_sandlot_chart_")

    def __call__(self, obj: object) -> str | None:
        """As JSON; of everything but figures none. The inline backend takes away what is registered for figures."""
        return charts.describe(obj) if figures.is_figure(obj) else None


class NoProfile(ProfileDir):  # type: ignore[misc]
    """A folder that is not made: IPython 8 asks where it would be."""

    @observe("location")  # type: ignore[untyped-decorator]
    def _location_changed(self, change: Any) -> None:
        """None is made."""


class Shell(InteractiveShell):  # type: ignore[misc]
    """IPython, driven by messages."""

    compiler_class = Type(Compiler)
    displayhook_class = Type(Result)
    display_pub_class = Type(Publisher)

    host: Host

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
            interactiveshell.PickleShareDB = lambda _folder: {}  # IPython 8 makes a folder when it starts
        super().__init__(config=config)
        type(self)._instance = self  # noqa: SLF001 - what instance() does, for every class that may be asked
        InteractiveShell._instance = self  # noqa: SLF001
        plain = self.display_formatter.formatters["text/plain"]
        for kind in (str, bytes, bytearray):
            plain.for_type(kind, _long)
        chart = ChartFormatter(parent=self.display_formatter)
        self.display_formatter.formatters[charts.MIME] = chart
        figures.install()

    def connect(self, host: Host) -> None:
        """From now on cells may come."""
        self.host = host
        self._parts = {name: getattr(self, name) for name in PARTS}

    def begin(self, code: str, name: str, *, silent: bool, stored: bool) -> tuple[Any, bool]:
        """Get a cell ready: as ``plain.Plain.begin``."""
        self.cell_code, self.cell_stored = code, stored and not silent
        for attribute, part in self._parts.items():
            if getattr(self, attribute, None) is None:
                setattr(self, attribute, part)
        self.compile.cell_name = name
        self.formatting = False  # an interrupt may have struck while it was being put back
        failed = None
        try:
            cell = self._transformed(code)
        except Exception:  # noqa: BLE001 - told by run_cell_async, as the cell's
            cell, failed = code, sys.exc_info()
        needs_loop = bool(self.should_run_async(code, transformed_cell=cell, preprocessing_exc_tuple=failed))
        coroutine = self.run_cell_async(code, store_history=stored, silent=silent, transformed_cell=cell, preprocessing_exc_tuple=failed)
        return coroutine, needs_loop

    def _transformed(self, code: str) -> str:
        """A cell as Python. Prompts of pasted sessions are taken off only where it is none without that: strings may hold some."""
        manager = self.input_transformer_manager
        cleanup = manager.cleanup_transforms
        if _is_python(code):
            # "In [1]: x" is Python as well, an annotation: what begins with a prompt was pasted.
            manager.cleanup_transforms = [each for each in cleanup if not isinstance(each, PromptStripper) or each.initial_re.match(code)]
        try:
            return str(self.transform_cell(code))
        finally:
            manager.cleanup_transforms = cleanup

    def after(self, *, silent: bool) -> None:
        """A cell is over: figures are shown, and whoever registered for it is called."""
        figures.drop_shown()
        self.events.trigger("post_execute")
        if not silent:
            self.events.trigger("post_run_cell", self.last_execution_result)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a part of a cell; whether it failed."""
        host = self.host
        hook, sys.excepthook = sys.excepthook, self.excepthook
        guard.give_builtins(self.user_global_ns)
        error: BaseException | None = None
        try:
            try:
                host.enter()
                if async_:
                    await eval(code_obj, self.user_global_ns, self.user_ns)  # noqa: S307 - running code is what a kernel is for
                else:
                    exec(code_obj, self.user_global_ns, self.user_ns)  # noqa: S102 - as above
            finally:
                host.leave()
        except BaseException as raised:  # noqa: BLE001 - whatever a cell raises is the cell's result
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
        """Tell an exception: a cell's as its error, that of a representation on stderr."""
        try:
            kind, raised, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            sys.stderr.write("No traceback available to show.\n")
            return
        if self.formatting or (exc_tuple is None and sys.exc_info()[0] is None):  # %tb shows again what was told
            sys.stderr.write("\n".join(telling.lines_of(kind, raised, trace)) + "\n")
        elif kind is UsageError:
            self.host.error(kind, raised, None)
        else:
            self.host.error(kind, raised, trace, self._in_mode(kind, raised, trace))

    def showsyntaxerror(self, *_how: Any, **_more: Any) -> None:
        """Tell a syntax error."""
        self.showtraceback()

    def showindentationerror(self) -> None:
        """Tell one of indentation."""
        self.showtraceback()

    def excepthook(self, etype: Any, value: Any, tb: Any) -> None:
        """Somebody calls ``sys.excepthook``: on stderr, as Python does."""
        sys.stderr.write("\n".join(telling.lines_of(etype, value, tb)) + "\n")

    def system(self, cmd: str) -> None:
        """``!command``."""
        self.user_ns["_exit_code"] = children.shell(self.var_expand(cmd, depth=1))

    def _format_exception_for_storage(self, exception: BaseException, *_how: Any, **_more: Any) -> dict[str, Any]:
        """IPython 9 keeps every error's text for notebooks that it saves: we save none."""
        return {"ename": telling.name_of(type(exception)), "evalue": "", "traceback": []}

    def ask_exit(self) -> None:
        """Leave the cell."""
        raise SystemExit

    def enable_gui(self, gui: Any = None) -> None:
        """There is no screen: figures are shown inline."""

    def init_ipython_dir(self, _given: Any) -> None:
        """None is made."""
        self.ipython_dir = NO_PLACE

    @observe("ipython_dir")  # type: ignore[untyped-decorator]
    def _ipython_dir_changed(self, change: Any) -> None:
        """None is made."""

    def init_profile_dir(self, _given: Any) -> None:
        """None is read or made."""
        self.profile_dir = NoProfile(location=NO_PLACE)

    @property
    def db(self) -> dict[str, Any]:
        """What magics remember, as long as the kernel lives: folders, aliases."""
        return self._memory

    @db.setter
    def db(self, _given: Any) -> None:
        """IPython 8 would put its files here."""

    def init_virtualenv(self) -> None:
        """The kernel runs on the image's python, whatever VIRTUAL_ENV says."""

    def init_display_formatter(self) -> None:
        """With our own handling of failures."""
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    @default("exiter")  # type: ignore[untyped-decorator]
    def _exiter_default(self) -> Exit:
        return Exit(self)

    def _in_mode(self, kind: Any, raised: Any, trace: Any) -> list[str] | None:
        """The traceback of another mode than ours, where a cell asked for one by %xmode."""
        if self.InteractiveTB.mode == "Plain" or isinstance(raised, SyntaxError):
            return None
        try:
            text = self.InteractiveTB.stb2text(self.InteractiveTB.structured_traceback(kind, raised, telling.strip(trace), tb_offset=0))
        except Exception:  # noqa: BLE001 - its formatting meets anything
            return None
        return str(text).splitlines()[-telling.TRACEBACK_LINES :]


def _is_python(code: str) -> bool:
    try:
        compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def _long(shown: Any, printer: Any, _cycle: Any) -> None:
    """Text and bytes: of huge ones only as much as is told."""
    if len(shown) <= telling.PLAIN_CHARS:
        printer.text(repr(shown))
    else:
        printer.text(f"{shown[: telling.PART_CHARS]!r} [... of {len(shown):,}]")

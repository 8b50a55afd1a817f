"""The shell for images without IPython. It supports results and top-level ``await``, but no magics and no figures.

:class:`PlainShell` has the same interface as ``ipython_shell.IPythonShell``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import linecache
import sys
import types

from .display_data import MAX_PART_CHARS, MAX_TEXT_CHARS
from .kernel_guard import give_builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from .engine import KernelFacade

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


class PlainShell:
    """Shell that runs cells in one namespace, the module ``__main__``.

    Attributes:
        execution_count: Execution count of the next cell that is stored in ``In``; starts at 1.
    """

    def __init__(self) -> None:
        self.execution_count = 1
        self._facade: KernelFacade | None = None
        self._silent = False
        self._stored = True
        # The namespace is a new module __main__, so that modules such as pickle and dataclasses find the classes and functions of cells.
        module = types.ModuleType("__main__")
        module.__dict__.update(__builtins__=builtins, display=self.display, In=[""], Out={}, _="")
        sys.modules["__main__"] = module
        self._names = module.__dict__
        self._inputs, self._outputs = module.__dict__["In"], module.__dict__["Out"]

    def connect(self, facade: KernelFacade) -> None:
        """Connect the shell to the kernel, to which it reports results and errors.

        Args:
            facade: The part of the kernel that a shell uses.
        """
        self._facade = facade

    def display(self, *objects: object, display_id: Any = None, update: bool = False, raw: bool = False, metadata: Any = None) -> None:
        """Display objects in the output of the cell. Cells call this function as ``display()``.

        Args:
            objects: Objects to display, each with all its representations.
            display_id: Id under which a later call can update the displayed objects; None for no id.
            update: True to replace the objects that were displayed with ``display_id``.
            raw: True if each object is a dict of representations: MIME type -> data.
            metadata: Metadata to add to the metadata of the objects; None if there is none.
        """
        for shown in objects:
            data, about = (dict(shown), {}) if raw and isinstance(shown, dict) else representations(shown)
            self._report(data, {**about, **(metadata or {})}, main=False, display_id=str(display_id) if display_id else None, update=update)

    def begin(self, code: str, name: str, *, silent: bool, stored: bool) -> tuple[Any, bool]:
        """Compile a cell and return a coroutine that runs it.

        Args:
            code: Code of the cell.
            name: Name of the cell in tracebacks.
            silent: True to display no result of the cell.
            stored: True to store the cell in ``In`` and ``Out`` and to increase the execution count.

        Returns:
            The coroutine, and True if the coroutine must run in the event loop because the cell has a top-level ``await``.
        """
        self._silent, self._stored = silent, stored
        give_builtins(self._names)
        if stored and code.strip():
            self.execution_count += 1
            self._inputs.append(code)
        linecache.cache[name] = (len(code), None, list(io.StringIO(code, newline=None)), name)
        try:
            parts = self._compile(code, name)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            return self._fail(error), False
        return self._run(parts), any(part.co_flags & inspect.CO_COROUTINE for part, _shown in parts)

    def after(self, *, silent: bool) -> None:
        """Do nothing: this shell has no figures and no callbacks for the end of a cell."""

    def _compile(self, code: str, name: str) -> list[tuple[CodeType, bool]]:
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not self._silent and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        parts = [(compile(tree, name, "exec", flags), False)] if tree.body else []
        return [*parts, (compile(last, name, "eval", flags), True)] if last is not None else parts

    async def _run(self, parts: list[tuple[CodeType, bool]]) -> None:
        facade = self._facade
        assert facade is not None  # noqa: S101 - connect() is called before the first cell
        error: BaseException | None = None
        try:
            try:
                facade.enter()
                for part, shown in parts:
                    value = eval(part, self._names)  # noqa: S307 - a kernel runs code
                    if part.co_flags & inspect.CO_COROUTINE:
                        value = await value
                    if shown and value is not None:
                        self._result(value)
            finally:
                facade.leave()
        except BaseException as raised:  # noqa: BLE001 - any exception is a result of the cell
            error = raised
        if error is not None:
            facade.error(type(error), error, error.__traceback__)

    async def _fail(self, error: BaseException) -> None:
        if self._facade is not None:
            self._facade.error(type(error), error, error.__traceback__)

    def _result(self, value: object) -> None:
        self._names["_"] = value
        if self._stored:
            self._outputs[self.execution_count - 1] = value
        data, about = representations(value)
        self._report(data, about, main=True)

    def _report(self, data: dict[str, Any], about: dict[str, Any], *, main: bool, display_id: str | None = None, update: bool = False) -> None:
        if self._facade is not None:
            self._facade.display(data, about, main=main, display_id=display_id, update=update)


def representations(shown: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the representations of an object and their metadata, both as MIME type -> value. text/plain is always included.

    Args:
        shown: The object. Its method ``_repr_mimebundle_`` and the methods named in ``REPRESENTATIONS`` are called.
    """
    data: dict[str, Any] = {"text/plain": _text(shown)}
    about: dict[str, Any] = {}
    if isinstance(shown, type):
        return data, about
    for method, mime in (*REPRESENTATIONS, ("_repr_mimebundle_", "")):
        represent = getattr(shown, method, None)
        if represent is None:
            continue
        try:
            made = represent()
        except Exception:  # noqa: BLE001, S112 - code of the user; text/plain remains
            continue
        if isinstance(made, tuple) and len(made) == 2:  # noqa: PLR2004 - the data and its metadata
            made, extra = made
            about.update(extra if not mime else {mime: extra})
        if made is not None:
            data.update(made if not mime and isinstance(made, dict) else {mime: made})
    return data, about


def _text(shown: object) -> str:
    if type(shown) in {str, bytes, bytearray} and len(shown) > MAX_TEXT_CHARS:  # type: ignore[arg-type]
        return repr(shown[:MAX_PART_CHARS]) + f" [... of {len(shown):,}]"  # type: ignore[index,arg-type]
    try:
        return repr(shown)
    except Exception as broken:  # noqa: BLE001 - repr is code of the user
        return f"<{type(shown).__name__}: repr failed: {broken}>"

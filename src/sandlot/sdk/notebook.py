"""Jupyter notebooks from the execution log. Pure.

Invariants:
- What a sandbox printed is data: it becomes outputs, never text of a cell that a viewer renders, and the notebook is not signed.
- The notebook conforms to format 4.5, whatever the sandbox displayed: content that its MIME type does not allow is left out.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from sandlot.model.errors import UnsupportedError
from sandlot.sdk.models.code import ExceptionInfo, ExecutionResults, Result, is_binary
from sandlot.sdk.models.executions import ExecutionInfo

MAGICS: Final[Mapping[str, str]] = MappingProxyType({"python": "", "bash": "%%bash\n", "javascript": "%%script node\n"})
"""Language -> first line with which IPython runs code of the language. Code of other languages is commented out."""
PYTHON: Final = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "language_info": {"name": "python"}}
"""Metadata of a notebook for Jupyter's Python kernel."""
KERNELS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = MappingProxyType(
    {
        "r": {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}, "language_info": {"name": "R"}},
        "typescript": {"kernelspec": {"name": "deno", "display_name": "Deno", "language": "typescript"}, "language_info": {"name": "typescript"}},
    }
)
"""Language that IPython cannot run -> metadata of a notebook whose cells are all of this language (IRkernel, Deno)."""
RAISES: Final = "raises-exception"
"""Tag of a cell after whose exception a run of the notebook continues."""
MAX_DEPTH: Final = 64
"""Lists and objects that are nested in each other in the JSON of a result."""
_MIME_TYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9!#$&^_.+-]*/[a-zA-Z0-9][a-zA-Z0-9!#$&^_.+-]*")
_JSON_TYPE = re.compile(r"application/(.*\+)?json")
"""MIME types whose content is a value in the notebook, not a text (schema of format 4.5)."""
_OMITTED = re.compile(r"^\[\.\.\. [0-9]+ bytes omitted \.\.\.\]$", re.MULTILINE)
_SHORTENED_CHARS = 8 * 1024
"""Code of the execution log that was shortened has at least as many characters."""


def check_installed() -> None:
    """Raise UnsupportedError if the package nbformat is missing."""
    if importlib.util.find_spec("nbformat") is None:
        raise UnsupportedError("Notebooks need the package nbformat.", hint="Run `pip install 'sandlot[notebook]'`.")


def build(runs: Iterable[tuple[ExecutionInfo, ExecutionResults | None]]) -> str:
    """Return a notebook as the text of an ``.ipynb`` file.

    Args:
        runs: Runs of code, in the order of the cells, each with its results; None for a run without results.
    """
    import nbformat  # noqa: PLC0415 - an extra

    found = list(runs)
    languages = {run.language or "python" for run, _ in found}
    kernel = KERNELS.get(languages.pop()) if len(languages) == 1 else None
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": kernel or PYTHON,
        "cells": [_cell(run, results or ExecutionResults(run.id), is_native=kernel is not None) for run, results in found],
    }
    nbformat.validate(notebook)
    # No file has lone surrogates, which the code of a client may have.
    return f"{json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)}\n".encode("utf-8", "replace").decode()


def _cell(run: ExecutionInfo, found: ExecutionResults, *, is_native: bool) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": run.id,
        "metadata": {} if run.error is None else {"tags": [RAISES]},
        "execution_count": run.execution_count,
        "source": _source(run, is_native=is_native),
        "outputs": list(_outputs(run, found)),
    }


def _source(run: ExecutionInfo, *, is_native: bool) -> str:
    language, code = run.language or "python", run.code or ""
    if len(code) > _SHORTENED_CHARS and _OMITTED.search(code):
        mark = "//" if is_native and language == "typescript" else "#"
        return _commented(f"The execution log has only a part of this {language} code.", code, mark)
    if is_native:
        return code
    if language not in MAGICS:
        return _commented(f"This is {language} code.", code, "#")
    return MAGICS[language] + code


def _commented(why: str, code: str, mark: str) -> str:
    return "\n".join(f"{mark} {line}" for line in (why, "", *code.splitlines()))


def _outputs(run: ExecutionInfo, found: ExecutionResults) -> Iterator[dict[str, Any]]:
    omitted = f"[{found.results_omitted} results omitted: the execution log does not keep them]\n" if found.results_omitted else ""
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        if text:
            yield {"output_type": "stream", "name": name, "text": text}
    for result in found.results:
        shown = {"data": _bundle(result), "metadata": dict(result.metadata)}
        if result.main:
            yield {"output_type": "execute_result", "execution_count": run.execution_count, **shown}
        else:
            yield {"output_type": "display_data", **shown}
    if omitted:
        yield {"output_type": "stream", "name": "stderr", "text": omitted}
    error = found.error or _error(run)
    if error is not None:
        yield {"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}


def _error(run: ExecutionInfo) -> ExceptionInfo | None:
    if run.error is None:
        return None
    name, _, value = run.error.partition(": ")
    return ExceptionInfo(name, value)


def _bundle(result: Result) -> dict[str, Any]:
    """Return the representations of a result whose content is of their MIME type: JSON as values, binary types in valid base64."""
    bundle: dict[str, Any] = {}
    for mime, content in result.data.items():
        if not _MIME_TYPE.fullmatch(mime):
            continue
        try:
            if _JSON_TYPE.fullmatch(mime):
                bundle[mime] = _shallow(json.loads(content, parse_constant=_refuse), MAX_DEPTH)
            elif is_binary(mime):
                base64.b64decode("".join(content.split()), validate=True)
                bundle[mime] = content
            else:
                bundle[mime] = content
        except (ValueError, RecursionError, binascii.Error):
            continue
    return bundle


def _shallow(value: Any, depth: int) -> Any:  # noqa: ANN401 - JSON
    """Return a value; raise ValueError if it is nested deeper than viewers of notebooks can read."""
    if isinstance(value, list | dict):
        if depth == 0:
            raise ValueError("nested too deeply")
        for item in value if isinstance(value, list) else value.values():
            _shallow(item, depth - 1)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

"""Tables of the operator's files in TOML: models and MCP servers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sandlot.model.errors import InvalidRequestError


def read_tables(path: Path, kind: str, invalid: Callable[[Path, str], InvalidRequestError]) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables ``[KINDs.NAME]`` of a file by their names.

    Args:
        path: The file.
        kind: ``model`` or ``server``.
        invalid: Function that returns the error for a reason.

    Raises:
        InvalidRequestError: The file cannot be read, or ``KINDs`` is not a table of tables.
    """
    try:
        tables = tomllib.loads(path.read_text()).get(f"{kind}s", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise invalid(path, f"it cannot be read: {error}") from None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise invalid(path, f"`{kind}s` must have a table for each {kind}")
    return tables

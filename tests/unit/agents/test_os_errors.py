"""Errors about paths are those of Python."""

from __future__ import annotations

import pytest

from sandlot.agents.os_errors import os_errors
from sandlot.model.errors import ErrorCode, SandlotError, from_code
from tests.support.cases import cases


@cases(
    "code, kind",
    [
        (ErrorCode.PATH_NOT_FOUND, FileNotFoundError),
        (ErrorCode.PATH_IS_DIRECTORY, IsADirectoryError),
        (ErrorCode.PATH_NOT_DIRECTORY, NotADirectoryError),
        (ErrorCode.PATH_EXISTS, FileExistsError),
        (ErrorCode.PERMISSION_DENIED, PermissionError),
        (ErrorCode.PATH_NOT_REGULAR, OSError),
        (ErrorCode.PATH_LINK_LOOP, OSError),
    ],
)
def test_error_about_a_path_is_that_of_python(code: ErrorCode, kind: type[OSError]) -> None:
    with pytest.raises(kind, match="/some/path") as raised, os_errors("/some/path"):
        raise from_code(code, "no")
    assert isinstance(raised.value.__cause__, SandlotError)


def test_other_errors_pass_through() -> None:
    with pytest.raises(SandlotError, match="no room"), os_errors("/x"):
        raise from_code("busy", "no room")

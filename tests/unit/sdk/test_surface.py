"""The two clients are one: the same names, the same parameters, the same words."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from sandlot import sdk
from sandlot.model import errors

PAIRS = [(name.removeprefix("Async"), name) for name in sdk.__all__ if name.startswith("Async")]
SPELLED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
SERVER_PARTS = {
    "alembic", "asyncpg", "fastapi", "obstore", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "structlog", "typer",
    "uvicorn", "uvloop",
}  # fmt: skip


def test_both_have_the_same_names_with_the_same_parameters(subtests: pytest.Subtests) -> None:
    for synchronous, asynchronous in PAIRS:
        with subtests.test(synchronous=synchronous, asynchronous=asynchronous):
            one, other = surface(synchronous), surface(asynchronous)
            assert one.keys() == {SPELLED.get(name, name) for name in other}
            for name, parameters in other.items():
                assert one[SPELLED.get(name, name)] == parameters, name


def test_everything_that_is_public_is_documented() -> None:
    mute = [
        f"{cls}.{name}"
        for cls in sdk.__all__
        if inspect.isclass(getattr(sdk, cls))
        for name, member in vars(getattr(sdk, cls)).items()
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)) and not inspect.getdoc(member)
    ]
    assert mute == []


def test_every_error_is_there_by_name() -> None:
    classes = {errors.error_class(code).__name__ for code in errors.ErrorCode} | {"SandlotError", "ErrorCode"}
    assert classes <= set(sdk.__all__)


def test_a_client_loads_no_server_part(subtests: pytest.Subtests) -> None:
    for module in ("sandlot", "sandlot.sdk"):
        with subtests.test(module=module):
            listing = f"import sys, {module}; print(*sorted(sys.modules))"
            loaded = set(subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout.split())
            assert module in loaded
            assert loaded & SERVER_PARTS == set()
            assert "cattrs" not in loaded  # the first response needs it
            assert [
                name for name in loaded if name.startswith(("sandlot.core", "sandlot.server", "sandlot.store", "sandlot.drivers", "sandlot.images"))
            ] == []


def surface(name: str) -> dict[str, list[str]]:
    cls = getattr(sdk, name)
    return {
        each: list(inspect.signature(member).parameters)
        for each, member in inspect.getmembers(cls, inspect.isroutine)
        if (not each.startswith("_") or each in SPELLED or each in SPELLED.values()) and each in {*dir(cls)} - {*dir(object)}
    }

"""Public names of the SDK: those of the package and of each class, in both halves, and the names that are E2B's."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap

import pytest

import sandlot
from sandlot import Client, Sandbox, sdk
from sandlot.model import errors
from tests.unit.sdk.scripted import Script

METHODS = {
    "Client": (
        "agent_sessions agents close executions events file_store keys pools"
        " programs sandboxes service snapshots target templates transport volumes webhooks"
    ),
    "Sandbox": (
        "create get_or_create connect list kill close id sandbox_id template isolation metadata limits was_created files commands pty contexts"
        " desktop network info get_info get_url get_host get_preview_token is_running usage set_timeout update pause resume hibernate promote"
        " snapshot create_snapshot fork fork_tree run_code"
        " stream_code connect_code create_code_context install attach_volume detach_volume ports tunnel forward logs follow_logs export_notebook"
    ),
    "ForkBatch": "count index",
    "Commands": "run list get connect kill restart send_stdin",
    "CommandHandle": "id pid stdout stderr urls stdout_offset stderr_offset result wait poll kill send_stdin close_stdin output",
    "CodeHandle": "id stdout stderr urls results result wait poll state interrupt",
    "SandboxNetwork": "info approve",
    "Desktop": "start screenshot screen_size cursor_position move click drag scroll type press open stream_url",
    "Contexts": "create list get restart interrupt delete",
    "Files": ("read write write_many list stat realpath exists make_dir move rename remove upload download sign_url watch watchers"),
    "FileStream": "close",
    "FileWatch": "by close",
    "Watchers": "create list take delete",
    "Pty": "create connect",
    "Terminal": "id pid offset lost_bytes result read send resize send_eof kill wait close",
    "Tunnel": "port receive send end wait close",
    "PortForward": "port local_host local_port address close",
    "Sandboxes": "list iter get kill",
    "Snapshots": "list iter get delete",
    "Volumes": "create list get delete",
    "Pools": "create list get update delete",
    "Webhooks": "create list get update delete",
    "Agents": "create list iter get update archive delete",
    "AgentSessions": "create list iter get update archive delete send interrupt events follow",
    "Templates": "list get build start_build get_build builds follow_log cancel_build delete set_tag remove_tag",
    "Keys": "create list iter get get_current update delete",
    "FileStore": "upload list iter get read stream download delete import_files export_file",
    "Events": "list iter follow",
    "Executions": "list iter get results notebook",
    "Service": "version capabilities capacity stop",
    "Programs": "languages run run_batch iter_batch",
}
"""Public names of each class of the synchronous half."""
E2B_NAMES = {
    "Sandbox": {"sandbox_id", "get_info", "create_snapshot", "set_timeout", "create_code_context"},
    "Files": {"rename", "remove"},
}
"""Names that are E2B's: all others that E2B has and that we do not need are left out."""
PAIRS = [(name.removeprefix("Async"), name) for name in sdk.__all__ if name.startswith("Async")]
SPELLED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
SERVER_PARTS = {
    "alembic", "asyncpg", "fastapi", "obstore", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "structlog", "typer",
    "uvicorn", "uvloop",
}  # fmt: skip


def test_classes_have_exactly_the_listed_names(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    assert set(METHODS) == {synchronous for synchronous, _ in PAIRS}
    objects = {"Client": Client(url=service.url), "Sandbox": sandbox, "Files": sandbox.files}
    for name, wanted in METHODS.items():
        with subtests.test(name=name):
            found = set(dir(objects.get(name, getattr(sdk, name)))) | _attributes(name)
            assert {each for each in found if not each.startswith("_")} == set(wanted.split())
            assert E2B_NAMES.get(name, set()) <= set(wanted.split())


def _attributes(name: str) -> set[str]:
    """Names of public attributes that the constructor of a class sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(sdk, name))))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def test_package_exports_every_public_name() -> None:
    assert set(sandlot.__all__) == {*sdk.__all__, "__version__"}
    assert all(getattr(sandlot, name) is getattr(sdk, name) for name in sdk.__all__)


def test_sync_and_async_classes_have_the_same_names_and_parameters(subtests: pytest.Subtests) -> None:
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


def test_import_loads_no_part_of_the_server(subtests: pytest.Subtests) -> None:
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

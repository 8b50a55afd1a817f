"""Specs of sandboxes, processes, cells and volumes: defaults, and invalid values that are refused."""

from __future__ import annotations

import math

import pytest

from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import (
    MAX_ARG_BYTES,
    MAX_CODE_BYTES,
    MAX_ENV_BYTES,
    MAX_REQUEST_HOST_BYTES,
    MAX_TAG_BYTES,
    MAX_VOLUMES,
    MIB,
    CellSpec,
    Limits,
    ProcessSpec,
    SandboxSpec,
    User,
    VolumeMount,
    check_path,
    placed,
    shell_argv,
    slots,
)

ID = SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")

TOO_LONG = "a" * (MAX_REQUEST_HOST_BYTES + 1)


def test_defaults_are_those_of_the_documentation() -> None:
    assert Limits() == Limits(cpus=1.0, memory_bytes=1024 * MIB, disk_bytes=5 * 1024 * MIB, pids=512)
    spec = SandboxSpec(ID)
    assert (spec.template.name, spec.timeout_s, spec.isolation, spec.network.mode) == ("code-interpreter", 300.0, "gvisor", "packages")
    process = ProcessSpec(("true",))
    assert (spec.user, process.user, process.cwd, process.stdin, process.timeout_s) == (User("user"), None, None, False, 60.0)


@pytest.mark.parametrize(
    "limits",
    [
        {"cpus": 0},
        {"cpus": math.nan},
        {"cpus": math.inf},
        {"cpus": 65},
        {"memory_bytes": 63 * MIB},
        {"disk_bytes": 15 * MIB},
        {"pids": 15},
        {"pids": 40_000},
        {"pids": -1},
    ],
)
def test_limit_out_of_range_is_refused_by_name(limits: dict[str, float]) -> None:
    (name,) = limits
    with pytest.raises(InvalidRequestError) as refused:
        Limits(**limits)  # type: ignore[arg-type]
    assert refused.value.fields["field"] == name


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 8 * 24 * 3600.0])
def test_timeout_out_of_range_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidRequestError, match="timeout"):
        SandboxSpec(ID, timeout_s=timeout)


@pytest.mark.parametrize(
    "mask, seen",
    [
        (None, "localhost:8000"),
        ("x", "x"),
        ("app.example.com:443", "app.example.com:443"),
        ("192.0.2.1", "192.0.2.1"),
        ("${PORT}-app.example.com", "8000-app.example.com"),
        ("app_${PORT}.localhost:${PORT}", "app_8000.localhost:8000"),
        ("a" * MAX_REQUEST_HOST_BYTES, "a" * MAX_REQUEST_HOST_BYTES),
    ],
)
def test_program_behind_a_preview_url_sees_the_masked_host_with_its_port(mask: str | None, seen: str) -> None:
    assert SandboxSpec(ID, mask_request_host=mask).request_host(8000) == seen


@pytest.mark.parametrize(
    "mask",
    [
        "",
        " ",
        "a b",
        "a/b",
        "a\r\nX: y",
        "a\n",
        "a\0",
        "é.com",
        "a..b",
        ".a",
        "a.",
        "a:",
        "a:x",
        "a:0",
        "a:65536",
        "a:٣",
        "a:1:2",
        "[::1]",
        "u@a",
        "${HOST}",
        TOO_LONG,
    ],
)
def test_masked_host_that_is_no_host_name_is_refused_with_a_valid_example(mask: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SandboxSpec(ID, mask_request_host=mask)
    assert refused.value.fields == {"field": "mask_request_host"}
    SandboxSpec(ID, mask_request_host=refused.value.hint.split('"')[1])


@pytest.mark.parametrize(
    "env",
    [{"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0": "x"}, {"A": "\ud800"}, {"A": "x" * MAX_ENV_BYTES}],
)
def test_environment_that_execve_would_refuse_is_refused(env: dict[str, str]) -> None:
    for build in (lambda: SandboxSpec(ID, env=env), lambda: ProcessSpec(("true",), env=env)):
        with pytest.raises(InvalidRequestError) as refused:
            build()
        assert refused.value.hint


@pytest.mark.parametrize("argv", [(), ("",), ("a\0b",), ("a", "\ud800"), ("x" * (MAX_ARG_BYTES + 1),), tuple("x" * 100_000 for _ in range(21))])
def test_command_that_execve_would_refuse_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ProcessSpec(argv)
    assert refused.value.hint


def test_command_of_two_mebibytes_is_accepted() -> None:
    argv = ("x" * MAX_ARG_BYTES,) * 16
    assert ProcessSpec(argv).argv == argv


@pytest.mark.parametrize("path", ["", "relative", "a/b", "/a\0b", "/\ud800", "/" + "x" * 4095])
def test_path_that_open_would_refuse_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_path(path)


def test_shell_command_line_is_one_argument() -> None:
    assert shell_argv("echo $HOME; 'x'") == ("/bin/bash", "-c", "echo $HOME; 'x'")
    for empty in ("", "  \n"):
        with pytest.raises(InvalidRequestError):
            shell_argv(empty)


@pytest.mark.parametrize("rows,cols", [(24, None), (None, 80), (0, 80), (24, 0), (24, 65536), (-1, 80)])
def test_terminal_with_invalid_size_is_refused(rows: int | None, cols: int | None) -> None:
    with pytest.raises(InvalidRequestError):
        ProcessSpec(("sh",), rows=rows, cols=cols)
    assert ProcessSpec(("sh",), rows=1, cols=65535).pty


@pytest.mark.parametrize("tag", ["", "é" * (MAX_TAG_BYTES // 2) + "x", "a\0b"])
def test_tag_that_is_empty_or_too_long_is_refused(tag: str) -> None:
    with pytest.raises(InvalidRequestError, match="tag"):
        ProcessSpec(("true",), tag=tag)


@pytest.mark.parametrize(
    "path", ["", "data", "/", "//data", "/data/", "/a/../b", "/./a", "/a\0b", "/" + "x" * 4095, "/proc", "/dev/shm", "/.sandlot/x"]
)
def test_path_that_cannot_be_a_mount_point_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError):
        VolumeMount("data", path)


@pytest.mark.parametrize(
    "paths",
    [("/data", "/data"), ("/data", "/data/below"), ("/data/below", "/data"), tuple(f"/data{number}" for number in range(MAX_VOLUMES + 1))],
    ids=["same path", "below", "above", "too many"],
)
def test_volumes_inside_of_each_other_and_too_many_volumes_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SandboxSpec(ID, volumes=tuple(VolumeMount("data", path) for path in paths))
    assert refused.value.hint
    assert refused.value.fields["field"] == "volumes"


def test_each_volume_gets_a_free_slot_and_keeps_its_own() -> None:
    mounts = [VolumeMount("a", "/a"), VolumeMount("b", "/b", slot=0), VolumeMount("c", "/c"), VolumeMount("d", "/d", slot=5)]
    assert [mount.slot for mount in placed(mounts)] == [1, 0, 2, 5]
    assert [(slot, mount.volume) for slot, mount in slots(mounts)] == [(1, "a"), (0, "b"), (2, "c"), (5, "d")]


@pytest.mark.parametrize(
    "language,context,kept,context_id",
    [
        ("py", None, "python", "default"),
        ("sh", None, "bash", "bash"),
        ("node", None, "javascript", "javascript"),
        ("ts", None, "typescript", "typescript"),
        ("rscript", None, "r", "r"),
        (None, None, None, "default"),
        (None, "ctx-0123456789abcdef", None, "ctx-0123456789abcdef"),
        ("python3", "bash", "python", "bash"),  # refused by the guest, which knows the context
    ],
)
def test_cell_names_its_language_and_context(language: str | None, context: str | None, kept: str | None, context_id: str) -> None:
    cell = CellSpec("1", language=language, context=context)
    assert (cell.language, cell.context_id) == (kept, context_id)


@pytest.mark.parametrize(
    "fields,code",
    [
        ({"language": "cobol"}, ErrorCode.INVALID_REQUEST),
        ({"context": "../x"}, ErrorCode.CONTEXT_NOT_FOUND),
        ({"code": "\0"}, ErrorCode.INVALID_REQUEST),
        ({"code": "é" * (MAX_CODE_BYTES // 2 + 1)}, ErrorCode.TOO_LARGE),
        ({"env": {"A=B": ""}}, ErrorCode.INVALID_REQUEST),
        ({"timeout_s": 0}, ErrorCode.INVALID_REQUEST),
        ({"timeout_s": math.nan}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["language", "context", "nul", "size", "environment", "timeout", "no number"],
)
def test_cell_that_no_context_can_run_is_refused(fields: dict[str, object], code: ErrorCode) -> None:
    with pytest.raises(SandlotError) as refused:
        CellSpec(**{"code": "1", **fields})  # type: ignore[arg-type]
    assert refused.value.code is code

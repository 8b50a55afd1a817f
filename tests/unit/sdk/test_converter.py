"""Objects of the API become values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from sandlot import sdk
from sandlot.sdk import (
    BatchItem,
    CapacityInfo,
    ChangedFile,
    CommandResult,
    Context,
    CurrentKey,
    DriverInfo,
    ErrorCode,
    EventInfo,
    ExceptionInfo,
    Execution,
    ExecutionInfo,
    ExecutionResults,
    ExecutionStatus,
    Fault,
    FileEntry,
    ForkTree,
    ForkTreeNode,
    InternalError,
    KeyInfo,
    LanguageInfo,
    ListeningPort,
    LogEntry,
    Mount,
    NewKey,
    NotFoundError,
    OnTimeout,
    PoolInfo,
    ProcessInfo,
    ProgramResult,
    QuotaUsage,
    Result,
    SandboxInfo,
    SandboxState,
    ServiceStopResult,
    SnapshotInfo,
    StoredFile,
    TemplateInfo,
    TemplateSnapshot,
    Usage,
    VersionInfo,
    VolumeInfo,
    WatcherInfo,
    WebhookInfo,
)
from sandlot.sdk.converter import RENAMED, structure, structure_list

AT = "2026-01-01T00:00:00Z"
BARE = {"id": "x", "state": "running"}
VALUES = [getattr(sdk, name) for name in sdk.__all__ if is_dataclass(getattr(sdk, name))]


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    assert structure(Execution, {"status": "ok", "from the future": 1}) == Execution(status="ok")
    assert structure(CommandResult, {"exit_code": 0, "new": []}) == CommandResult(0)


def test_every_renamed_attribute_exists(subtests: pytest.Subtests) -> None:
    for cls, names in RENAMED.items():
        with subtests.test(cls=cls):
            assert names.keys() <= {each.name for each in fields(cls)}


def test_every_value_without_its_required_fields_is_an_error_that_names_the_class(subtests: pytest.Subtests) -> None:
    tried = 0
    for cls in VALUES:
        if all(each.default is not MISSING or each.default_factory is not MISSING for each in fields(cls)):
            continue
        with subtests.test(cls=cls), pytest.raises(InternalError, match=cls.__name__):
            structure(cls, {})
        tried += 1
    assert tried > 10


@pytest.mark.parametrize(
    "raw", [None, [], "text", 5, {"id": "x", "state": "running", "limits": 5}, {"id": "x", "state": "running", "created_at": "soon"}]
)
def test_objects_of_another_form_are_errors(raw: Any) -> None:  # noqa: ANN401 - JSON
    with pytest.raises(InternalError, match="SandboxInfo"):
        structure(SandboxInfo, raw)


@pytest.mark.parametrize("response", [{}, {"entries": 5}, {"entries": [5]}, {"entries": [{"name": "a"}]}])
def test_lists_of_another_form_are_errors(response: Any) -> None:  # noqa: ANN401 - JSON
    with pytest.raises(InternalError, match="FileEntry"):
        structure_list(FileEntry, response, "entries")


def test_states_are_enumerations_and_unknown_ones_stay_text() -> None:
    known = structure(SandboxInfo, {"id": "x", "state": "running", "on_timeout": "pause"})
    assert (type(known.state), known.state, known.on_timeout) == (SandboxState, "running", OnTimeout.PAUSE)
    later = structure(SandboxInfo, {"id": "x", "state": "levitating", "on_timeout": "archive"})
    assert (type(later.state), later.state, later.on_timeout) == (str, "levitating", "archive")
    assert structure(Execution, {"status": "timeout"}).status is ExecutionStatus.TIMEOUT


def test_names_times_and_reasons_of_a_sandbox() -> None:
    raw = {
        "id": "x",
        "state": "failed",
        "created_at": AT,
        "timeout": 5,
        "exit": {"reason": "oom", "detail": "512 MiB"},
        "volumes": [{"volume": "v", "path": "/v"}],
    }
    info = structure(SandboxInfo, raw)
    assert (info.created_at, info.timeout, info.exit_reason, info.exit_detail) == (datetime(2026, 1, 1, tzinfo=UTC), 5.0, "oom", "512 MiB")
    assert [(mount.volume, mount.path, mount.read_only) for mount in info.volumes] == [("v", "/v", False)]
    assert info.fault is None


def test_environment_of_a_process_has_the_name_of_the_sdk() -> None:
    process = structure(ProcessInfo, {"id": "p", "pid": 1, "argv": ["a"], "running": True, "env": {"A": "b"}, "duration_s": 1})
    assert (process.id, process.argv, process.envs, process.duration_s) == ("p", ("a",), {"A": "b"}, 1.0)


def test_omitted_bytes_of_a_log_entry_and_of_an_event() -> None:
    assert structure(LogEntry, {"execution": "e", "stream": "stdout", "omitted_bytes": 5}).omitted_bytes == 5
    assert structure(LogEntry, {"execution": "e", "stream": "stdout", "lost_bytes": 7}).omitted_bytes == 7


def test_error_of_a_batch_item_is_an_exception() -> None:
    item = structure(BatchItem, {"index": 1, "result": None, "error": {"code": "template_not_found", "detail": "No such template.", "status": 404}})
    assert isinstance(item.error, NotFoundError)
    assert item.error.code is ErrorCode.TEMPLATE_NOT_FOUND
    with pytest.raises(NotFoundError):
        item.unwrap()


def test_faults_of_results_and_ended_sandboxes() -> None:
    assert structure(CommandResult, {"exit_code": 137, "fault": "limit"}).fault is Fault.LIMIT
    assert structure(CommandResult, {"exit_code": 0, "fault": None}).fault is None
    assert structure(CommandResult, {"exit_code": 0}).fault is None
    assert structure(CommandResult, {"exit_code": 1, "fault": "of the future"}).fault == "of the future"
    ended = structure(SandboxInfo, {**BARE, "exit": {"reason": "crashed", "detail": "", "fault": "lost"}})
    assert (ended.exit_reason, ended.fault) == ("crashed", Fault.LOST)


SCHEMAS: Mapping[type, str] = {
    CapacityInfo: "CapacityResponse",
    ChangedFile: "ChangedFileResponse",
    CommandResult: "CommandResultResponse",
    Context: "ContextResponse",
    CurrentKey: "CurrentKeyResponse",
    DriverInfo: "DriverResponse",
    EventInfo: "EventResponse",
    ExceptionInfo: "CodeErrorResponse",
    Execution: "CodeResultResponse",
    ExecutionInfo: "ExecutionResponse",
    ExecutionResults: "ExecutionResultsResponse",
    FileEntry: "FileEntryResponse",
    ForkTree: "ForkTreeResponse",
    ForkTreeNode: "ForkTreeNodeResponse",
    KeyInfo: "KeyResponse",
    LanguageInfo: "LanguageResponse",
    ListeningPort: "PortResponse",
    LogEntry: "LogEntryResponse",
    Mount: "VolumeMountResponse",
    NewKey: "NewKeyResponse",
    PoolInfo: "PoolResponse",
    ProcessInfo: "ProcessResponse",
    ProgramResult: "ProgramResultResponse",
    QuotaUsage: "QuotaUsageResponse",
    Result: "DisplayResponse",
    ServiceStopResult: "ServiceStopResponse",
    SnapshotInfo: "SnapshotResponse",
    StoredFile: "StoredFileResponse",
    TemplateInfo: "TemplateResponse",
    TemplateSnapshot: "TemplateSnapshotResponse",
    Usage: "UsageResponse",
    VersionInfo: "VersionResponse",
    VolumeInfo: "VolumeResponse",
    WatcherInfo: "WatcherResponse",
    WebhookInfo: "NewWebhookResponse",
}
"""Value -> schema of the API. `SandboxInfo` and `FileEvent` have fields that the converter derives."""


def test_every_field_of_a_value_is_a_field_of_its_schema(subtests: pytest.Subtests) -> None:
    schemas = json.loads(Path("docs/openapi.json").read_text())["components"]["schemas"]
    for cls, name in SCHEMAS.items():
        with subtests.test(cls=cls):
            properties = schemas[name]["properties"]
            sent = {field: RENAMED.get(cls, {}).get(field.name, field.name) for field in fields(cls)}
            assert set(sent.values()) <= properties.keys()
            types = get_type_hints(cls)
            nullable = {field.name for field, key in sent.items() if {"type": "null"} in properties[key].get("anyOf", [])}
            assert {field for field in nullable if NoneType not in get_args(types[field])} == set(), "the service may send null"

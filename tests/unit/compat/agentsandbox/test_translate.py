"""Translation between the AgentSandbox API and the node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sandlot.compat.agentsandbox import translate
from sandlot.compat.agentsandbox.run_files import CollectedFiles
from sandlot.model.access import OwnerId, Principal, Quota
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import CommandResult, ProcessOutcome
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.network import MOST_OPEN
from sandlot.model.output_capture import OutputCapture
from sandlot.model.records import ExecutionId, ExecutionRecord, FileId, FileRecord
from sandlot.model.specs import MAX_CODE_BYTES
from tests.support.cases import cases

PRINCIPAL = Principal(owner=OwnerId("0123456789ab"), name="somebody")
AT = datetime(2026, 11, 22, 5, 6, 7, 89_000, tzinfo=UTC)
OUTCOME = ProcessOutcome(process=ProcessId("a" * 32), exit_code=0, signal=None, reason="exited", duration_s=0.25)
SANDBOX = SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")
FILE = FileRecord(
    id=FileId("file-abcdefghijklmnop"),
    owner=PRINCIPAL.owner,
    filename="a.csv",
    media_type="text/csv",
    size_bytes=3,
    sha256="0" * 64,
    created_at=AT,
    sandbox=SANDBOX,
)
EXECUTION = ExecutionRecord(
    id=ExecutionId("a" * 32),
    owner=PRINCIPAL.owner,
    sandbox=SANDBOX,
    kind="code",
    created_at=AT,
    status="exited",
    language="python",
    code="print(1)",
    exit_code=0,
    stdout="1\n",
    duration_s=0.25,
    origin="agentsandbox",
    files=2,
)


@cases("elapsed_s, timeout_s", [(0, 110), (30, 80), (109.5, 1), (1000, 1)])
def test_a_run_ends_before_its_client_gives_up(elapsed_s: float, timeout_s: float) -> None:
    program = translate.program_file("bash", "1")
    assert translate.process_spec(program, program.argv, {}, {}, elapsed_s).timeout_s == timeout_s


def test_code_size_is_limited_in_bytes() -> None:
    assert translate.encode_code("é") == b"\xc3\xa9"
    assert len(translate.encode_code("x" * MAX_CODE_BYTES)) == MAX_CODE_BYTES
    with pytest.raises(InvalidRequestError, match=str(MAX_CODE_BYTES)):
        translate.encode_code("é" * (MAX_CODE_BYTES // 2 + 1))


def test_session_has_a_timeout_only_if_the_quota_demands_it() -> None:
    assert translate.session_params({"A": "1"}, PRINCIPAL).timeout_s is None
    assert translate.session_params({"A": "1"}, PRINCIPAL).env == {"A": "1"}
    bound = replace(PRINCIPAL, quota=Quota(lifetime_s=50))
    assert translate.session_params({}, bound).timeout_s == 50
    assert translate.single_run_params(bound).timeout_s == 50
    longest = translate.single_run_params(PRINCIPAL).timeout_s
    assert longest is not None
    assert longest > translate.CLIENT_TIMEOUT_S


def test_omitted_files_are_counted() -> None:
    response = translate.execute_response(SANDBOX, finished(b"", b""), CollectedFiles([FILE], omitted=3), 110)
    assert (response.files_omitted, response.stderr) == (3, "Sandlot kept 1 of 4 files of this run. The others were left in place.\n")
    response = translate.execute_response(SANDBOX, finished(b"", b""), CollectedFiles([FILE], omitted=3, incomplete=True), 110)
    assert "there may be others" in response.stderr


def test_truncated_output_says_how_many_bytes_are_missing() -> None:
    stdout = OutputCapture(4, 4)
    stdout.add(b"12345678901234567890")
    response = translate.execute_response(SANDBOX, replace(finished(b"", b""), stdout=stdout), CollectedFiles(), 110)
    assert response.stdout == "1234\n[... 12 bytes omitted ...]\n7890"


@cases(
    "given, name",
    [("data.csv", "data.csv"), ("/tmp/x/data.csv", "data.csv"), (r"C:\x\data.csv", "data.csv"), ("", "file"), ("/", "file"), ("x/", "x")],
)
def test_file_name_is_the_last_part_of_its_path(given: str, name: str) -> None:
    assert translate.upload_filename(given) == name


@cases("given, kind", [(None, None), ("text/csv", "text/csv"), ("csv", None), ("", None), ("a/b\r\nX: y", None)])
def test_invalid_media_type_is_dropped(given: str | None, kind: str | None) -> None:
    assert translate.upload_media_type(given) == kind


def test_execution_record_is_translated() -> None:
    response = translate.logged_execution(EXECUTION)
    assert (response.endpoint, response.method) == ("/v1/execute", "POST")
    assert (response.status_code, response.duration_ms, response.files_count) == (200, 250, 2)
    assert (response.language, response.code, response.return_code) == ("python", "print(1)", 0)
    assert translate.logged_execution(replace(EXECUTION, status="running", exit_code=None, duration_s=None)).status_code is None
    late = translate.logged_execution(replace(EXECUTION, status="timeout", exit_code=137))
    assert (late.return_code, late.error, response.error) == (124, "timeout", None)
    command = translate.logged_execution(replace(EXECUTION, origin="native", language="ruby", code=None))
    assert (command.language, command.request_meta is not None and command.request_meta["origin"]) == (None, "native")


def finished(stdout: bytes, stderr: bytes) -> CommandResult:
    captures = [OutputCapture(), OutputCapture()]
    for capture, data in zip(captures, (stdout, stderr), strict=True):
        capture.add(data)
    return CommandResult(OUTCOME, captures[0], captures[1])


def test_network_is_as_open_as_it_is_allowed() -> None:
    assert translate.session_params({}, PRINCIPAL).network == MOST_OPEN
    assert translate.single_run_params(PRINCIPAL).network == MOST_OPEN

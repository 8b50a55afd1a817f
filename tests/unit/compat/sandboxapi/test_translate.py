"""Translation between SandboxAPI and the node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.compat.sandboxapi import translate
from sandlot.model import languages
from sandlot.model.access import OwnerId, Principal, Quota
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import CellError, CodeResult, CodeStatus
from sandlot.model.ids import new_process_id
from sandlot.model.output_capture import OutputCapture
from sandlot.model.programs import ProgramResult, ProgramStatus
from tests.support.cases import cases
from tests.support.scripted_node import sandbox_info

KNOWN = {"completed", "wrong_answer", "runtime_error", "timeout", "compile_error"}
PRINCIPAL = Principal(owner=OwnerId("0123456789ab"), name="a")


@cases("word, id_", [("python3", "python3"), ("python", "python3"), ("py", "python3"), ("JS", "javascript"), ("node", "javascript"), ("sh", "bash")])
def test_language_aliases_are_translated(word: str, id_: str) -> None:
    assert translate.language(word).id == id_


def test_language_has_its_version_or_none() -> None:
    python, go = languages.language_of("python"), languages.language_of("go")
    response = translate.language_response(languages.AvailableLanguage(python, "base", "3.11.2"))
    assert (response.id, response.version, response.aliases, response.file_extension) == ("python3", "3.11.2", ["python", "py"], ".py")
    assert translate.language_response(languages.AvailableLanguage(go, None, None)).version == ""


def test_languages_of_the_vendor_have_its_names() -> None:
    theirs = {
        "python3": {"python", "py"},
        "javascript": {"js", "node"},
        "typescript": {"ts"},
        "bash": {"sh", "shell"},
        "java": {"jdk"},
        "cpp": {"c++"},
        "c": {"gcc"},
        "go": {"golang"},
    }
    ours = {each.id: set(each.aliases) for each in translate.LANGUAGES}
    assert {id_: aliases <= ours[id_] for id_, aliases in theirs.items()} == dict.fromkeys(theirs, True)


def test_session_refuses_a_language_without_state() -> None:
    with pytest.raises(InvalidRequestError, match="Sessions do not run Java") as refused:
        translate.session_params(translate.language("jdk"), None, PRINCIPAL)
    assert "/v1/execute" in (refused.value.hint or "")
    assert "python3" in (refused.value.hint or "")


@cases("status", ProgramStatus)
def test_every_status_is_known_to_callers(status: ProgramStatus) -> None:
    response = translate.execute_response(
        ProgramResult(status, "python", "out", "err", 137, 9, 1.5, 0.25, 2048, detail="Why."), translate.LANGUAGES[0]
    )
    assert response.status in KNOWN
    assert (response.stdout, response.stderr, response.exit_signal) == ("out", "err\nWhy.\n", "SIGKILL")
    assert (response.execution_time_ms, response.wall_time_ms, response.memory_used_kb, response.language) == (250, 1500, 2, "python3")


def test_missing_measurements_have_defaults() -> None:
    response = translate.execute_response(ProgramResult(ProgramStatus.COMPLETED, "bash", "", "", 0, None, 1.5), translate.language("bash"))
    assert (response.execution_time_ms, response.memory_used_kb, response.exit_signal, response.id, response.stderr) == (1500, 0, None, "", "")


@cases(
    "status, error, expected, code",
    [
        ("ok", None, "completed", 0),
        ("error", CellError("ValueError", "x", ("Traceback", "ValueError: x")), "runtime_error", 1),
        ("error", CellError("SystemExit", "3", ()), "runtime_error", 3),
        ("error", CellError("SystemExit", "-1", ()), "runtime_error", 255),
        ("error", CellError("SystemExit", "", ()), "completed", 0),
        ("error", CellError("SystemExit", "None", ()), "completed", 0),
        ("error", CellError("SystemExit", "bye", ()), "runtime_error", 1),
        ("error", CellError("SystemExit", "9" * 5000, ()), "runtime_error", 1),
        ("error", CellError("ExitStatus", "2", ()), "runtime_error", 2),
        ("timeout", CellError("KeyboardInterrupt", "", ()), "timeout", 124),
        ("killed", None, "runtime_error", 137),
        ("died", None, "runtime_error", 137),
        ("oom", None, "runtime_error", 137),
        ("aborted", None, "runtime_error", 1),
        ("whatever", None, "runtime_error", 137),
    ],
)
def test_cell_result_is_translated_like_a_program(status: str, error: CellError | None, expected: str, code: int) -> None:
    done = CodeResult(CodeStatus(new_process_id(), status, 1, 0.1), OutputCapture(), OutputCapture(), (), 0, error)
    assert translate._cell_outcome(done, 5)[:2] == (expected, code)  # noqa: SLF001


@pytest.mark.parametrize("error, kept", [("KeyboardInterrupt", True), ("KernelDied", False)])
def test_timeout_says_whether_the_variables_are_kept(error: str, *, kept: bool) -> None:
    done = CodeResult(CodeStatus(new_process_id(), "timeout", 1, 0.1), OutputCapture(), OutputCapture(), (), 0, CellError(error, "", ()))
    note = translate._cell_outcome(done, 5)[2]  # noqa: SLF001
    assert ("keeps its variables" in note, "variables are gone" in note) == (kept, not kept)


def test_session_expires_after_its_idle_timeout_or_at_its_deadline() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    info = sandbox_info(metadata={translate.LANGUAGE_KEY: "bash"}, idle_timeout_s=60.0, expires_at=None, as_of=at)
    for idle_since, deadline, expires_at in (
        (at - timedelta(seconds=20), None, "12:00:40"),
        (at - timedelta(seconds=90), None, "12:00:00"),
        (None, None, "12:01:00"),
        (None, at + timedelta(seconds=30), "12:00:30"),
        (None, at + timedelta(seconds=90), "12:01:00"),
    ):
        response = translate.session_response(replace(info, idle_since=idle_since, expires_at=deadline))
        assert (response.language, response.idle_ttl, response.expires_at) == ("bash", 60, f"2026-01-01T{expires_at}.000Z")


def test_session_has_an_idle_timeout_and_a_deadline_only_by_quota() -> None:
    language = translate.LANGUAGES[0]
    made = translate.session_params(language, None, PRINCIPAL)
    assert (made.timeout_s, made.idle_timeout_s) == (None, 600)
    bound = translate.session_params(language, 60, Principal(owner=PRINCIPAL.owner, name="a", quota=Quota(lifetime_s=30.0)))
    assert (bound.timeout_s, bound.idle_timeout_s) == (30, 60)
    for wrong in (4, 0, -1, float("nan"), 1e9):
        with pytest.raises(InvalidRequestError, match="idle_ttl"):
            translate.session_params(language, wrong, PRINCIPAL)


@cases("word, needed", [("python3", "python"), ("ts", "javascript"), ("bash", "bash"), ("r", "r")])
def test_session_needs_the_interpreter_of_its_language(word: str, needed: str) -> None:
    assert translate.language(word).session_needs == needed

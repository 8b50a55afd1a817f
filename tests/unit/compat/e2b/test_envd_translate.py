"""Translation between envd and the node: paths, modes, ends, events, users, signatures."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import pytest
from e2b.sandbox.signature import get_signature
from hypothesis import given
from hypothesis import strategies as st

from sandlot.compat.e2b.envd import errors, signed_urls, translate
from sandlot.compat.e2b.envd.schemas import Input, StartMessage, WatcherMessage, WatchMessage
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.executions import ProcessOutcome
from sandlot.model.files import Entry, FileEvent, FileEventKind
from sandlot.model.ids import ProcessId
from sandlot.model.specs import User
from tests.support.cases import cases

PROCESS = ProcessId("0" * 32)
CONNECT_CODES = {
    *("canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists", "permission_denied", "resource_exhausted"),
    *("failed_precondition", "aborted", "out_of_range", "unimplemented", "internal", "unavailable", "data_loss", "unauthenticated"),
}


@cases("code", list(ErrorCode))
def test_every_error_has_a_connect_code(code: ErrorCode) -> None:
    told = errors.rpc_error(SandlotError("It went wrong.", code=code, hint="Do this."))
    assert set(told) == {"code", "message"}
    assert told["code"] in CONNECT_CODES
    assert told["message"].endswith("It went wrong. Do this.")
    assert ("was not found" in told["message"]) == (code in {ErrorCode.SANDBOX_ENDED, ErrorCode.SANDBOX_PAUSED})
    assert errors.status(SandlotError("x", code=code)) >= 400


@cases(
    "path, home, meant",
    [
        ("", "/home/user", "/home/user"),
        (".", "/home/user", "/home/user"),
        ("~", "/root", "/root"),
        ("~/x", "/home/user", "/home/user/x"),
        ("~//etc", "/home/user", "/home/user/etc"),
        ("a/b/", "/root", "/root/a/b"),
        ("./a", "/home/user", "/home/user/./a"),
        ("../a", "/home/user", "/home/user/../a"),
        ("/a/../b", "/home/user", "/a/../b"),
        ("/", "/root", "/"),
        ("~user", "/home/user", "/home/user/~user"),
        ("", "/", "/"),
        ("a", "/", "/a"),
    ],
)
def test_relative_paths_start_at_home(path: str, home: str, meant: str) -> None:
    assert translate.absolute(path, home) == meant


@given(st.text(max_size=50))
def test_every_path_becomes_absolute(path: str) -> None:
    assert translate.absolute(path, "/home/user").startswith("/")


@cases(
    "kind, mode, told",
    [
        ("file", 0o644, "-rw-r--r--"),
        ("directory", 0o755, "drwxr-xr-x"),
        ("symlink", 0o777, "Lrwxrwxrwx"),
        ("directory", 0o1777, "dtrwxrwxrwx"),
        ("file", 0o4755, "urwxr-xr-x"),
        ("file", 0o2000, "g---------"),
        ("file", 0o7000, "ugt---------"),
    ],
)
def test_modes_are_formatted_like_go(kind: FileEventKind, mode: int, told: str) -> None:
    assert translate.permissions(kind, mode) == told


def entry(**more: object) -> Entry:
    known = {"name": "x", "path": "/a/x", "kind": "file", "size": 1 << 40, "mode": 0o4640, "uid": 1000, "gid": 7, "modified_ns": 1, "target": None}
    return Entry(**{**known, **more})  # type: ignore[arg-type]


def test_entry_is_translated_to_proto3_json() -> None:
    assert translate.entry(entry()) == {
        "name": "x",
        "type": "FILE_TYPE_FILE",
        "path": "/a/x",
        "size": "1099511627776",
        "mode": 0o640,
        "permissions": "urw-r-----",
        "owner": "user",
        "group": "7",
        "modifiedTime": "1970-01-01T00:00:00.000000001Z",
    }
    assert translate.entry(entry(kind="other"))["type"] == "FILE_TYPE_UNSPECIFIED"


def test_link_has_the_type_mode_and_path_of_its_target() -> None:
    link = entry(kind="symlink", target="y", mode=0o777)
    for target, told in (
        (entry(path="/b/y", mode=0o600), ("FILE_TYPE_FILE", 0o600, "/b/y")),
        (entry(path="/b", kind="directory", mode=0o1755), ("FILE_TYPE_DIRECTORY", 0o755, "/b")),
        (None, ("FILE_TYPE_UNSPECIFIED", 0, "/a/x")),
    ):
        info = translate.entry(link, target)
        assert (info["type"], info["mode"], info["symlinkTarget"]) == told
        assert (info["path"], info["permissions"]) == ("/a/x", "Lrwxrwxrwx")


def test_metadata_are_attributes_of_the_file() -> None:
    attributes = translate.metadata({"x-metadata-author": "me", "x-metadata-empty": "", "content-type": "text/plain"})
    assert attributes == {"user.e2b.author": "me", "user.e2b.empty": ""}
    assert translate.entry(entry(attributes=attributes))["metadata"] == {"author": "me", "empty": ""}
    assert "metadata" not in translate.entry(entry())
    for headers in (
        {"x-metadata-": "x"},
        {"x-metadata-a": "\x7f"},
        {"x-metadata-a": "é"},
        {"x-metadata-" + "k" * 247: "x"},
        {f"x-metadata-{number}": "v" * 1024 for number in range(4)},
    ):
        with pytest.raises(InvalidRequestError):
            translate.metadata(headers)


@given(st.integers(-(1 << 62), (1 << 63) - 1))
def test_every_guest_timestamp_is_a_valid_date(ns: int) -> None:
    told = translate.entry(entry(modified_ns=ns))["modifiedTime"]
    assert datetime.fromisoformat(told[:19]).year <= 9999


def test_process_end_is_formatted_like_go() -> None:
    def end(exit_code: int = 0, signal: int | None = None, reason: str = "exited") -> Any:  # noqa: ANN401 - JSON
        outcome = ProcessOutcome(process=PROCESS, exit_code=exit_code, signal=signal, reason=reason, duration_s=1.0)
        return translate.ended(outcome)["event"]["end"]

    assert end() == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert end(exit_code=2) == {"exitCode": 2, "exited": True, "status": "exit status 2", "error": "exit status 2"}
    assert end(exit_code=139, signal=11) == {
        "exitCode": -1,
        "exited": False,
        "status": "signal: segmentation fault",
        "error": "signal: segmentation fault",
    }
    out_of_memory = end(exit_code=137, signal=9, reason="oom")
    assert (out_of_memory["status"], "memory" in out_of_memory["error"]) == ("signal: killed", True)
    assert end(signal=64) != end(signal=63)


def test_file_events_are_translated() -> None:
    def told(kind: FileEventKind, path: str, source: str | None = None) -> list[tuple[str, str]]:
        return [(each["name"], each["type"]) for each in translate.file_events(FileEvent(kind, path, source=source), "/w")]

    assert told(FileEventKind.CREATED, "/w/a") == [("a", "EVENT_TYPE_CREATE")]
    assert told(FileEventKind.MODIFIED, "/w/b/c") == [("b/c", "EVENT_TYPE_WRITE")]
    assert told(FileEventKind.REMOVED, "/w/a") == [("a", "EVENT_TYPE_REMOVE")]
    assert told(FileEventKind.MOVED, "/w/b", "/w/a") == [("a", "EVENT_TYPE_RENAME"), ("b", "EVENT_TYPE_CREATE")]
    assert (told(FileEventKind.OVERFLOW, ""), told(FileEventKind.GONE, "/w")) == ([], [])
    part = f"/w/.{'a' * 32}.part"
    assert (told(FileEventKind.CREATED, part), told(FileEventKind.MODIFIED, part), told(FileEventKind.REMOVED, part)) == ([], [], [])
    assert told(FileEventKind.MOVED, "/w/a", part) == [("a", f"EVENT_TYPE_{kind}") for kind in ("CREATE", "CHMOD", "WRITE")]
    assert [each["name"] for each in translate.file_events(FileEvent(FileEventKind.CREATED, "/a"), "/")] == ["a"]


@cases(
    "header, user",
    [
        ("", "user"),
        ("Basic dXNlcjo=", "user"),
        ("basic cm9vdDo=", "root"),
        ("Basic cm9vdA==", "root"),
        ("Bearer x", "user"),
        ("Basic YWxpY2U6", "alice"),
    ],
)
def test_basic_header_names_the_user(header: str, user: str) -> None:
    assert translate.basic_user(header, User.USER) == User(user)


@given(st.binary(max_size=100))
def test_both_base64_alphabets_are_accepted_padded_or_not(data: bytes) -> None:
    for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), base64.b64encode(data).rstrip(b"=").decode()):
        assert Input.model_validate({"stdin": text}).data == data


def test_snake_case_names_and_nulls_are_accepted() -> None:
    asked = WatchMessage.model_validate({"path": "", "include_entry": True, "allowNetworkMounts": False, "recursive": None})
    assert (asked.path, asked.include_entry, asked.allow_network_mounts, asked.recursive) == ("", True, False, False)
    assert WatcherMessage.model_validate({"watcher_id": "w"}) == WatcherMessage.model_validate({"watcherId": "w"})
    started = StartMessage.model_validate({"process": {"cmd": "echo"}, "tag": None, "pty": None})
    assert (started.tag, started.pty) == (None, None)


@given(
    path=st.text(min_size=1, max_size=30), user=st.sampled_from([None, "user", "root"]), writes=st.booleans(), seconds=st.none() | st.integers(1, 999)
)
def test_file_signature_matches_the_clients(path: str, user: str | None, writes: bool, seconds: int | None) -> None:  # noqa: FBT001 - hypothesis
    made = get_signature(path, "write" if writes else "read", user, "token", seconds)
    expires = "" if made["expiration"] is None else str(made["expiration"])
    assert signed_urls.signature(path, "write" if writes else "read", user or "", "token", expires) == made["signature"]

"""Translation between the PandaStack API and the node."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.compat.pandastack import exec_protocol, translate
from sandlot.compat.pandastack.exec_protocol import TextDecoder
from sandlot.compat.pandastack.schemas import CreateSandboxRequest, UpdateLifecycleRequest
from sandlot.model.access import OPERATOR, UNBOUNDED, OwnerId, Principal, Quota
from sandlot.model.errors import InvalidRequestError, LimitError, TimeoutExceededError
from sandlot.model.executions import CellError, CodeResult, CommandResult, Display, ProcessOutcome
from sandlot.model.executions import CodeStatus as CellOutcome
from sandlot.model.ids import NodeId, ProcessId, SandboxId, new_sandbox_id
from sandlot.model.network import MOST_OPEN
from sandlot.model.output_capture import OutputCapture
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import MAX_ARG_BYTES, MAX_CODE_BYTES, SandboxSpec, User
from tests.support.cases import cases
from tests.support.scripted_node import sandbox_info

LONG = "x" * MAX_ARG_BYTES
KEY = Principal(OwnerId("a11ce0a11ce0"), "alice")


def kept(text: str = "") -> OutputCapture:
    capture = OutputCapture()
    capture.add(text.encode())
    return capture


# ---------------------------------------------------------------------------------------------------------------------- sandboxes


def test_timeout_is_translated() -> None:
    assert translate.create_params(CreateSandboxRequest(), OPERATOR).timeout_s == 3600
    assert translate.create_params(CreateSandboxRequest(), replace(OPERATOR, quota=Quota(lifetime_s=60))).timeout_s == 60
    assert translate.create_params(CreateSandboxRequest(ttl_seconds=7), OPERATOR).timeout_s == 7
    assert translate.create_params(CreateSandboxRequest(persistent=True), OPERATOR).timeout_s is None
    both = translate.create_params(CreateSandboxRequest(persistent=True, ttl_seconds=7), OPERATOR)
    assert (both.timeout_s, both.metadata["sandlot.ttl"]) == (None, "7")
    for seconds in (0, -1, 604801):
        with pytest.raises(InvalidRequestError):
            translate.create_params(CreateSandboxRequest(ttl_seconds=seconds), OPERATOR)


def test_fork_inherits_labels_of_the_api() -> None:
    def info(metadata: dict[str, str], timeout_s: float | None, parent: SandboxId | None = None) -> SandboxInfo:
        spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), metadata=metadata, timeout_s=timeout_s, parent=parent)
        return sandbox_info(spec=spec, metadata=metadata)

    parent = info({"a": "b", "sandlot.ttl": "99", "sandlot.api": "pandastack", "sandlot.purpose": "other"}, None)
    metadata = translate.fork_metadata(parent, None, "tree-1")
    assert metadata == {"a": "b", "sandlot.ttl": "99", "sandlot.api": "pandastack", "sandlot.tree": "tree-1"}
    assert translate.fork_metadata(parent, {"c": "d"}, "tree-1") == {"c": "d", **{name: value for name, value in metadata.items() if name != "a"}}
    with pytest.raises(InvalidRequestError):
        translate.fork_metadata(parent, {"sandlot.tree": "x"}, "tree-1")
    response = translate.sandbox_response(info(dict(metadata), None, parent.id))
    assert (response.metadata, response.persistent, response.ttl_seconds) == (
        {"a": "b", "fork_parent_id": parent.id, "fork_tree_id": "tree-1"},
        True,
        99,
    )
    assert translate.sandbox_response(info({}, 5.5, parent.id)).metadata["fork_tree_id"] == parent.id  # of another API
    assert translate.update_params(parent, UpdateLifecycleRequest(persistent=False), UNBOUNDED).timeout_s == 99


# ----------------------------------------------------------------------------------------------------------------------- commands


def test_command_runs_in_the_shell_as_root() -> None:
    made = exec_protocol.plan_command("echo 1", 5, "n")
    assert (made.file, made.logged_argv) == (None, made.argv)
    spec = made.spec()
    assert (spec.argv, spec.user, spec.timeout_s) == (("/bin/sh", "-c", "echo 1"), User.ROOT, 5)
    for cmd in ("", " \n", "a\0b"):
        with pytest.raises(InvalidRequestError):
            exec_protocol.plan_command(cmd, 5, "n")
    with pytest.raises(LimitError):
        exec_protocol.plan_command("x" * (MAX_CODE_BYTES + 1), 5, "n")


@cases("more", [0, 1])
def test_only_commands_over_the_argument_limit_use_a_file(more: int) -> None:
    cmd = "#" + "x" * (MAX_ARG_BYTES - 1 + more)
    made = exec_protocol.plan_command(cmd, 5, "n")
    assert (made.file is None) == (more == 0)
    assert made.content == (b"" if more == 0 else cmd.encode())


@given(code=st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
def test_long_run_code_commands_are_recognized(code: str) -> None:
    text = f"{code} {LONG}"
    assert exec_protocol.parse_long_command(f"python3 -c {shlex.quote(text)}") == ("python3", text)
    assert exec_protocol.parse_long_command(f"bash -c {shlex.quote(text)}") == ("bash", text)


@cases("cmd", [f"python3 -c '{LONG}' more", f"python3 -c '{LONG}'; echo 'x'", f'python3 -c "{LONG}"', f"env python3 -c '{LONG}'", LONG])
def test_other_long_commands_are_left_to_the_shell(cmd: str) -> None:
    assert exec_protocol.parse_long_command(cmd) == ("sh", cmd)


@cases(
    "cmd, out",
    [
        ("python3 -c {word}", "['-c'] __main__\n"),
        ("bash -c {bash}", "bash\n"),
        ("echo $0; : {bash}", "/bin/sh\n"),
    ],
)
def test_command_from_a_file_runs_like_an_argument(cmd: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_protocol, "PROGRAMS", str(tmp_path))
    word = shlex.quote(f"import sys\nprint(sys.argv, __name__)\n'''{LONG}'''")
    made = exec_protocol.plan_command(cmd.format(word=word, bash=shlex.quote(f"echo $0\n: {LONG}")), 5, "n")
    assert made.file is not None
    Path(made.file).write_bytes(made.content)
    assert subprocess.run(made.argv, capture_output=True, check=True, text=True).stdout == out


def test_default_timeout_is_reduced_by_the_wake_time() -> None:
    assert exec_protocol.remaining_s(28, 0) == 28
    assert exec_protocol.remaining_s(28, 3.5) == 24.5
    assert exec_protocol.remaining_s(28, 27.5) == exec_protocol.remaining_s(28, 60) == 1


def test_command_result_is_translated() -> None:
    ended = ProcessOutcome(ProcessId("p"), 137, 9, "oom", 1.5)
    response = exec_protocol.exec_response(CommandResult(ended, kept("out"), kept("err\n")))
    assert (response.stdout, response.exit_code, response.duration_ms) == ("out", 137, 1500)
    assert response.stderr.startswith("err\nSandlot: ")
    assert "timeout" in str(exec_protocol.timeout_error(5))


# -------------------------------------------------------------------------------------------------------------------------- cells


def cell(status: str = "ok", error: CellError | None = None, *shown: Display) -> CodeResult:
    return CodeResult(CellOutcome(ProcessId("p"), status, 1, 0.25), kept("out"), kept("err"), shown, 0, error)


def test_cell_result_is_translated() -> None:
    response = exec_protocol.code_response(cell("ok", None, Display({"text/plain": "2"}, main=True)), 5)
    assert response.model_dump() == {
        "stdout": "out",
        "stderr": "err",
        "exit": 0,
        "duration_ms": 250,
        "results": [{"type": "text/plain", "data": "2"}],
        "error": None,
    }
    failed = exec_protocol.code_response(cell("error", CellError("ValueError", "no", ("Traceback\n", "ValueError: no\n"))), 5)
    assert (failed.exit, failed.error) == (1, "Traceback\nValueError: no")
    assert exec_protocol.code_response(cell("error", CellError("E", "v", ())), 5).error == "E: v"
    with pytest.raises(TimeoutExceededError, match="timeout"):
        exec_protocol.code_response(cell("timeout"), 5)
    with pytest.raises(TimeoutExceededError, match=r"timeout.* 5 s.*variables.*lost"):
        exec_protocol.code_response(cell("timeout", CellError("KernelDied", "", ())), 5)
    for status in ("oom", "died", "killed", "aborted"):
        dead = exec_protocol.code_response(cell(status), 5)
        assert dead.error
        assert dead.exit


# ------------------------------------------------------------------------------------------------------------------------- streams


@given(st.text())
def test_event_data_is_one_ascii_line(chunk: str) -> None:
    raw = exec_protocol.sse_event("stdout", {"chunk": chunk})
    head, data, *rest = raw.decode("ascii").splitlines()
    assert (head, rest) == ("event: stdout", [""])
    assert json.loads(data.removeprefix("data: ")) == {"chunk": chunk}


def test_split_utf8_characters_are_joined() -> None:
    decoder = TextDecoder()
    assert [decoder.text(b"a\xc3"), decoder.text(b"\xa4"), decoder.text(b"\xff\xc3"), decoder.text(b"", last=True)] == ["a", "ä", "\ufffd", "\ufffd"]


# --------------------------------------------------------------------------------------------------------------------------- files


def test_network_is_as_open_as_it_is_allowed_or_that_of_the_snapshot() -> None:
    assert translate.create_params(CreateSandboxRequest(), OPERATOR).network == MOST_OPEN
    assert translate.create_params(CreateSandboxRequest(from_snapshot="s"), OPERATOR).network is None


def test_ports_are_public_where_the_key_may_have_public_ports() -> None:
    for snapshot in (None, "s"):
        assert translate.create_params(CreateSandboxRequest(from_snapshot=snapshot), KEY).public_ports is None

"""Bad input gets a clear error, has no effect, and the next call works.

Every refusal has a stable code, a message and, where the message does not say what is allowed, a hint. Each row of a table is one mistake.
After each of them the same sandbox, or the same service, is used as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import CODES, ErrorCode
from sandlot.model.specs import MAX_CODE_BYTES, MAX_PATH_BYTES, MIB
from tests.support.localservice import LocalService

pytestmark = pytest.mark.parametrize("service", ["container"], indirect=True)

Call = Callable[[Sandbox], object]


def _move_onto(sandbox: Sandbox) -> object:
    for name in ("here", "there"):
        sandbox.files.write(f"/workspace/{name}", name)
    return sandbox.files.move("/workspace/here", "/workspace/there")


CALLS: dict[str, tuple[Call, ErrorCode]] = {
    # Code.
    "code with a NUL": (lambda sb: sb.run_code("print(1)\0"), ErrorCode.INVALID_REQUEST),
    "code with a lone surrogate": (lambda sb: sb.run_code("print('\ud800')"), ErrorCode.INVALID_REQUEST),
    "code of 10 MB": (lambda sb: sb.run_code("#" * 10_000_000), ErrorCode.TOO_LARGE),
    "code just over its size": (lambda sb: sb.run_code("#" * (MAX_CODE_BYTES + 1)), ErrorCode.TOO_LARGE),
    "code in an unknown language": (lambda sb: sb.run_code("x", language="cobol"), ErrorCode.INVALID_REQUEST),
    "code with a timeout of ages": (lambda sb: sb.run_code("x", timeout=1e18), ErrorCode.INVALID_REQUEST),
    # Commands.
    "an empty command": (lambda sb: sb.commands.run(""), ErrorCode.INVALID_REQUEST),
    "no arguments": (lambda sb: sb.commands.run([]), ErrorCode.INVALID_REQUEST),
    "a command with a NUL": (lambda sb: sb.commands.run("echo \0"), ErrorCode.INVALID_REQUEST),
    "an argument with a NUL": (lambda sb: sb.commands.run(["echo", "\0"]), ErrorCode.INVALID_REQUEST),
    "a command with a lone surrogate": (lambda sb: sb.commands.run(["echo", "\udcff"]), ErrorCode.INVALID_REQUEST),
    "a command of 10 MB": (lambda sb: sb.commands.run("#" * 10_000_000), ErrorCode.TOO_LARGE),
    "a command of 1 MiB": (lambda sb: sb.commands.run("#" * MIB), ErrorCode.INVALID_REQUEST),
    "a program that is not there": (lambda sb: sb.commands.run(["no-such-program"]), ErrorCode.PROGRAM_NOT_FOUND),
    "a program that is a folder": (lambda sb: sb.commands.run(["/workspace"]), ErrorCode.PERMISSION_DENIED),
    "a cwd that is missing": (lambda sb: sb.commands.run("true", cwd="/no/such/folder"), ErrorCode.WORKING_DIRECTORY_NOT_FOUND),
    "a cwd that is a file": (lambda sb: sb.commands.run("true", cwd="/etc/passwd"), ErrorCode.PATH_NOT_DIRECTORY),
    "a cwd that is empty": (lambda sb: sb.commands.run("true", cwd=""), ErrorCode.PATH_INVALID),
    "a cwd with a NUL": (lambda sb: sb.commands.run("true", cwd="/wor\0kspace"), ErrorCode.PATH_INVALID),
    "a cwd that the user may not enter": (lambda sb: sb.commands.run("true", cwd="/root"), ErrorCode.PERMISSION_DENIED),
    "an unknown user": (lambda sb: sb.commands.run("true", user="no-such-user"), ErrorCode.INVALID_REQUEST),
    "an environment of 1 MiB": (lambda sb: sb.commands.run("true", envs={"A": "x" * MIB}), ErrorCode.INVALID_REQUEST),
    "an environment with a NUL": (lambda sb: sb.commands.run("true", envs={"A": "\0"}), ErrorCode.INVALID_REQUEST),
    "a command with a timeout of ages": (lambda sb: sb.commands.run("true", timeout=1e18), ErrorCode.INVALID_REQUEST),
    "an unknown signal": (lambda sb: sb.commands.kill("0" * 32, "SIGNONE"), ErrorCode.INVALID_REQUEST),
    "input for a process that is not there": (lambda sb: sb.commands.send_stdin("0" * 32, "x"), ErrorCode.PROCESS_NOT_FOUND),
    "a process id that is none": (lambda sb: sb.commands.send_stdin("../files", "x"), ErrorCode.NOT_FOUND),
    # Files.
    "a path that is empty": (lambda sb: sb.files.read(""), ErrorCode.PATH_INVALID),
    "a path with a NUL": (lambda sb: sb.files.read("/etc/pass\0wd"), ErrorCode.PATH_INVALID),
    "a path with a lone surrogate": (lambda sb: sb.files.read("/etc/\udcff"), ErrorCode.INVALID_REQUEST),
    "a path that is too long": (lambda sb: sb.files.read("/" + "x/" * MAX_PATH_BYTES), ErrorCode.PATH_INVALID),
    "a name that is too long": (lambda sb: sb.files.write("/workspace/" + "x" * 256, "x"), ErrorCode.PATH_INVALID),
    "a file that is missing": (lambda sb: sb.files.read("/no/such/file"), ErrorCode.PATH_NOT_FOUND),
    "a folder read as a file": (lambda sb: sb.files.read("/workspace"), ErrorCode.PATH_IS_DIRECTORY),
    "a file listed as a folder": (lambda sb: sb.files.list("/etc/passwd"), ErrorCode.PATH_NOT_DIRECTORY),
    "a file below a file": (lambda sb: sb.files.read("/etc/passwd/x"), ErrorCode.PATH_NOT_DIRECTORY),
    "a folder overwritten by a file": (lambda sb: sb.files.write("/workspace", "x", user="root"), ErrorCode.PATH_IS_DIRECTORY),
    "a file where the user may not write": (lambda sb: sb.files.write("/etc/mine", "x"), ErrorCode.PERMISSION_DENIED),
    "a file that the user may not read": (lambda sb: sb.files.read("/etc/shadow"), ErrorCode.PERMISSION_DENIED),
    "a file of an unknown user": (lambda sb: sb.files.read("/etc/passwd", user="no-such-user"), ErrorCode.INVALID_REQUEST),
    "permission bits that are none": (lambda sb: sb.files.write("/workspace/x", "x", mode=1 << 40), ErrorCode.INVALID_REQUEST),
    "a removal of what is missing": (lambda sb: sb.files.remove("/no/such/file"), ErrorCode.PATH_NOT_FOUND),
    "a move onto what is there": (_move_onto, ErrorCode.PATH_EXISTS),
    # Limits.
    "memory beyond this host": (lambda sb: sb.update(memory="1000G"), ErrorCode.INVALID_REQUEST),
    "memory in words": (lambda sb: sb.update(memory="lots"), ErrorCode.INVALID_REQUEST),
    "cores that are no number": (lambda sb: sb.update(cpus=float("nan")), ErrorCode.INVALID_REQUEST),
    "more processes than Linux has": (lambda sb: sb.update(pids=10**9), ErrorCode.INVALID_REQUEST),
    "a larger disk": (lambda sb: sb.update(disk="6G"), ErrorCode.UNSUPPORTED),
    "a larger disk and more memory": (lambda sb: sb.update(disk="6G", memory="2G"), ErrorCode.UNSUPPORTED),
    "a timeout of a year": (lambda sb: sb.set_timeout(365 * 24 * 3600), ErrorCode.INVALID_REQUEST),
}


def test_invalid_calls_are_refused_and_the_next_call_works(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 42")
    offenders = []
    for mistake, (call, code) in CALLS.items():
        offenders += _problems(mistake, code, lambda call=call: call(sandbox))  # type: ignore[misc]
        if (text := sandbox.run_code("kept").text) != "42":
            offenders.append(f"{mistake}: the next cell gives {text!r}")
    assert offenders == []
    assert sandbox.commands.run("echo works").stdout == "works\n"


def test_values_of_a_refused_request_are_not_in_the_error(service: LocalService, sandbox: Sandbox) -> None:
    with pytest.raises(SandlotError) as refused:
        service.client.transport.request("POST", f"/v1/sandboxes/{sandbox.id}/processes", body={"command": "true", "env": {"TOKEN": ["my-secret"]}})
    told = f"{refused.value} {refused.value.fields}"
    assert "TOKEN" in told
    assert "my-secret" not in told


def test_any_unicode_text_is_valid_code_and_any_bytes_are_valid_output(sandbox: Sandbox) -> None:
    assert sandbox.run_code("print(repr('\x01\x7f\u2028\U0001f600'))").stdout == repr("\x01\x7f\u2028\U0001f600") + "\n"
    assert sandbox.commands.run("printf '\\377\\000a'").stdout == "\ufffd\0a"
    assert sandbox.commands.run(["printf", "%s", "a\nb\t'\"$`"]).stdout == "a\nb\t'\"$`"
    assert sandbox.run_code("def broken(:").error is not None


@pytest.mark.slow
def test_code_and_files_of_the_largest_size_are_accepted(sandbox: Sandbox) -> None:
    head = "len('"
    code = head + "x" * (MAX_CODE_BYTES - len(head) - 2) + "')"
    assert len(code) == MAX_CODE_BYTES
    assert sandbox.run_code(code).text == str(MAX_CODE_BYTES - len(head) - 2)
    for size in (0, 1, 4083, 4084, 65535, 65536, 70_000, 300_000, 10_000_000):
        sandbox.files.write("/workspace/of-any-size", bytes(size))
        assert sandbox.files.stat("/workspace/of-any-size").size_bytes == size


def _problems(mistake: str, code: ErrorCode, call: Callable[[], object]) -> list[str]:
    """Return what is wrong with the error that a call raises, one line each."""
    try:
        call()
    except SandlotError as error:
        found = []
        if error.code is not code or (error.status, error.retryable) != CODES[code]:
            found.append(f"{error.code}, status {error.status}, retryable {error.retryable}; expected {code}")
        if len(error.message) <= 10 or not (error.hint or "it must be" in error.message):
            found.append("no hint")
        found += [f"internal word {word!r}" for word in ("Traceback", "sandlot/server", "pydantic", "starlette", "None.") if word in str(error)]
        return [f"{mistake}: {problem}: {error}" for problem in found]
    return [f"{mistake}: accepted"]

"""Bad input gets a clear error, has no effect, and the next call works.

Every refusal has a stable code, a message and, where the message does not say what is allowed, a hint. Each row of a table is one mistake.
After each of them the same sandbox, or the same service, is used as if nothing had happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import CODES, ErrorCode
from sandlot.model.specs import MAX_CODE_BYTES, MAX_PATH_BYTES, MIB
from sandlot.sdk.wire import failure
from tests.support.localservice import TEMPLATE, LocalService

UNKNOWN_ID = "sb-aaaa-aaaaaaaaaaaaaaaa"
Call = Callable[[Sandbox], object]


@pytest.fixture
def http(service: LocalService) -> Iterator[httpx.Client]:
    """A client for requests that the SDK does not send."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), base_url="http://sandlot", timeout=60) as client:
        yield client


def _move_onto(sandbox: Sandbox) -> object:
    for name in ("here", "there"):
        sandbox.files.write(f"/workspace/{name}", name)
    return sandbox.files.move("/workspace/here", "/workspace/there")


CREATES: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "an unknown template": ({"template": "no-such-template"}, ErrorCode.TEMPLATE_NOT_FOUND),
    "a template with a NUL": ({"template": "ba\0se"}, ErrorCode.TEMPLATE_NOT_FOUND),
    "an unknown isolation": ({"isolation": "chroot"}, ErrorCode.INVALID_REQUEST),
    "an isolation that is not allowed": ({"isolation": "container"}, ErrorCode.FORBIDDEN),
    "a network that is not enforced": ({"network": "internet"}, ErrorCode.UNSUPPORTED),
    "an unknown network": ({"network": "host"}, ErrorCode.INVALID_REQUEST),
    "a timeout of a year": ({"timeout": 365 * 24 * 3600}, ErrorCode.INVALID_REQUEST),
    "too little memory": ({"memory": 1}, ErrorCode.INVALID_REQUEST),
    "no cpu": ({"cpus": 0}, ErrorCode.INVALID_REQUEST),
    "too little disk": ({"disk": 1}, ErrorCode.INVALID_REQUEST),
    "2^63 pids": ({"pids": 1 << 63}, ErrorCode.INVALID_REQUEST),
    "a NUL in the environment": ({"envs": {"A": "\0"}}, ErrorCode.INVALID_REQUEST),
    "an environment name with an equals sign": ({"envs": {"A=B": "c"}}, ErrorCode.INVALID_REQUEST),
    "an environment of 1 MiB": ({"envs": {f"A{number}": "x" * 1024 for number in range(1024)}}, ErrorCode.INVALID_REQUEST),
    "a lone surrogate in the environment": ({"envs": {"A": "\ud800"}}, ErrorCode.INVALID_REQUEST),
    "metadata of 1 MiB": ({"metadata": {"a": "x" * MIB}}, ErrorCode.INVALID_REQUEST),
    "a name that is none": ({"name": "../evil"}, ErrorCode.INVALID_REQUEST),
}


def test_invalid_create_requests_are_refused_and_start_nothing(service: LocalService) -> None:
    refs = service.refs()
    offenders = []
    for mistake, (options, code) in CREATES.items():
        offenders += _problems(mistake, code, lambda options=options: service.create(**{"template": TEMPLATE, **options}))  # type: ignore[misc]
    assert offenders == []
    assert service.refs() == refs


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
    "a program that is not there": (lambda sb: sb.commands.run(["no-such-program"]), ErrorCode.PATH_NOT_FOUND),
    "a program that is a folder": (lambda sb: sb.commands.run(["/workspace"]), ErrorCode.PERMISSION_DENIED),
    "a cwd that is missing": (lambda sb: sb.commands.run("true", cwd="/no/such/folder"), ErrorCode.PATH_NOT_FOUND),
    "a cwd that is a file": (lambda sb: sb.commands.run("true", cwd="/etc/passwd"), ErrorCode.PATH_INVALID),
    "a cwd that is relative": (lambda sb: sb.commands.run("true", cwd="workspace"), ErrorCode.PATH_INVALID),
    "a cwd with a NUL": (lambda sb: sb.commands.run("true", cwd="/wor\0kspace"), ErrorCode.PATH_INVALID),
    "a cwd that the user may not enter": (lambda sb: sb.commands.run("true", cwd="/root"), ErrorCode.PATH_INVALID),
    "an unknown user": (lambda sb: sb.commands.run("true", user="nobody"), ErrorCode.INVALID_REQUEST),
    "an environment of 1 MiB": (lambda sb: sb.commands.run("true", envs={"A": "x" * MIB}), ErrorCode.INVALID_REQUEST),
    "an environment with a NUL": (lambda sb: sb.commands.run("true", envs={"A": "\0"}), ErrorCode.INVALID_REQUEST),
    "a command with a timeout of ages": (lambda sb: sb.commands.run("true", timeout=1e18), ErrorCode.INVALID_REQUEST),
    "an unknown signal": (lambda sb: sb.commands.kill("0" * 32, "SIGNONE"), ErrorCode.INVALID_REQUEST),
    "input for a process that is not there": (lambda sb: sb.commands.send_stdin("0" * 32, "x"), ErrorCode.PROCESS_NOT_FOUND),
    "a process id that is none": (lambda sb: sb.commands.send_stdin("../files", "x"), ErrorCode.NOT_FOUND),
    # Files.
    "a path that is relative": (lambda sb: sb.files.read("etc/passwd"), ErrorCode.PATH_INVALID),
    "a path with a NUL": (lambda sb: sb.files.read("/etc/pass\0wd"), ErrorCode.PATH_INVALID),
    "a path with a lone surrogate": (lambda sb: sb.files.read("/etc/\udcff"), ErrorCode.INVALID_REQUEST),
    "a path that is too long": (lambda sb: sb.files.read("/" + "x/" * MAX_PATH_BYTES), ErrorCode.PATH_INVALID),
    "a name that is too long": (lambda sb: sb.files.write("/workspace/" + "x" * 256, "x"), ErrorCode.PATH_INVALID),
    "a file that is missing": (lambda sb: sb.files.read("/no/such/file"), ErrorCode.PATH_NOT_FOUND),
    "a folder read as a file": (lambda sb: sb.files.read("/workspace"), ErrorCode.PATH_INVALID),
    "a file listed as a folder": (lambda sb: sb.files.list("/etc/passwd"), ErrorCode.PATH_INVALID),
    "a file below a file": (lambda sb: sb.files.read("/etc/passwd/x"), ErrorCode.PATH_INVALID),
    "a folder overwritten by a file": (lambda sb: sb.files.write("/workspace", "x", user="root"), ErrorCode.PATH_INVALID),
    "a file where the user may not write": (lambda sb: sb.files.write("/etc/mine", "x"), ErrorCode.PERMISSION_DENIED),
    "a file that the user may not read": (lambda sb: sb.files.read("/etc/shadow"), ErrorCode.PERMISSION_DENIED),
    "a file of an unknown user": (lambda sb: sb.files.read("/etc/passwd", user="nobody"), ErrorCode.INVALID_REQUEST),
    "permission bits that are none": (lambda sb: sb.files.write("/workspace/x", "x", mode=1 << 40), ErrorCode.INVALID_REQUEST),
    "a removal of what is missing": (lambda sb: sb.files.remove("/no/such/file"), ErrorCode.PATH_NOT_FOUND),
    "a move onto what is there": (_move_onto, ErrorCode.PATH_EXISTS),
    # Limits.
    "memory beyond this host": (lambda sb: sb.set_limits(memory="1000G"), ErrorCode.INVALID_REQUEST),
    "memory in words": (lambda sb: sb.set_limits(memory="lots"), ErrorCode.INVALID_REQUEST),
    "cores that are no number": (lambda sb: sb.set_limits(cpus=float("nan")), ErrorCode.INVALID_REQUEST),
    "more processes than Linux has": (lambda sb: sb.set_limits(pids=10**9), ErrorCode.INVALID_REQUEST),
    "a larger disk": (lambda sb: sb.set_limits(disk="6G"), ErrorCode.UNSUPPORTED),
    "a larger disk and more memory": (lambda sb: sb.set_limits(disk="6G", memory="2G"), ErrorCode.UNSUPPORTED),
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


REQUESTS: dict[str, tuple[str, str, dict[str, Any], ErrorCode]] = {
    "a body that is no JSON": (
        "POST",
        "/v1/sandboxes",
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        ErrorCode.INVALID_REQUEST,
    ),
    "a body that is binary": (
        "POST",
        "/v1/sandboxes/{id}/code",
        {"content": bytes(range(256)), "headers": {"Content-Type": "application/json"}},
        ErrorCode.INVALID_REQUEST,
    ),
    "a body that is a list": ("POST", "/v1/sandboxes", {"json": []}, ErrorCode.INVALID_REQUEST),
    "no body": ("POST", "/v1/sandboxes/{id}/processes", {}, ErrorCode.INVALID_REQUEST),
    "an unknown field": ("POST", "/v1/sandboxes/{id}/code", {"json": {"code": "1", "gpu": True}}, ErrorCode.INVALID_REQUEST),
    "a field of another type": ("POST", "/v1/sandboxes/{id}/code", {"json": {"code": 1}}, ErrorCode.INVALID_REQUEST),
    "both kinds of command": ("POST", "/v1/sandboxes/{id}/processes", {"json": {"command": "a", "argv": ["a"]}}, ErrorCode.INVALID_REQUEST),
    "100,000 levels": (
        "POST",
        "/v1/sandboxes/{id}/code",
        {"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}},
        ErrorCode.INVALID_REQUEST,
    ),
    "a number that is none": (
        "POST",
        "/v1/sandboxes/{id}/code",
        {"content": b'{"code": "1", "timeout": NaN}', "headers": {"Content-Type": "application/json"}},
        ErrorCode.INVALID_REQUEST,
    ),
    "an unknown route": ("GET", "/v1/nothing", {}, ErrorCode.NOT_FOUND),
    "a method that is not allowed": ("PUT", "/v1/sandboxes", {}, ErrorCode.INVALID_REQUEST),
    "an unknown sandbox": ("GET", f"/v1/sandboxes/{UNKNOWN_ID}", {}, ErrorCode.SANDBOX_NOT_FOUND),
    "an unknown sandbox killed": ("DELETE", f"/v1/sandboxes/{UNKNOWN_ID}", {}, ErrorCode.SANDBOX_NOT_FOUND),
    "an id that is none": ("GET", "/v1/sandboxes/..%2f..%2fetc", {}, ErrorCode.NOT_FOUND),
    "a cursor that is none": ("GET", "/v1/sandboxes?cursor=x", {}, ErrorCode.INVALID_REQUEST),
    "a negative offset": ("GET", "/v1/sandboxes/{id}/files?path=/tmp&offset=-1", {}, ErrorCode.INVALID_REQUEST),
    "an offset beyond all": ("GET", "/v1/sandboxes/{id}/files/content?path=/etc/passwd&offset=99999999999999999999", {}, ErrorCode.INVALID_REQUEST),
}


def test_malformed_requests_get_a_problem_document(http: httpx.Client, sandbox: Sandbox) -> None:
    offenders = []
    for mistake, (method, path, content, code) in REQUESTS.items():
        response = http.request(method, path.replace("{id}", sandbox.id), **content)
        problem = response.json()
        fields = {"type", "title", "status", "detail", "code", "hint", "retryable", "request_id", "fields"}
        if response.headers["content-type"] != "application/problem+json" or not response.headers["x-request-id"] or set(problem) != fields:
            offenders.append(f"{mistake}: {response.headers} {problem}")
        elif problem["status"] != response.status_code:
            offenders.append(f"{mistake}: the status is {response.status_code} and the document has {problem['status']}")
        else:
            error = failure(response.status_code, response.headers["content-type"], response.content, "")
            offenders += _complaints(mistake, error, code)
    assert offenders == []
    assert http.get(f"/v1/sandboxes/{sandbox.id}").json()["state"] == "running"


def test_values_of_a_refused_request_are_not_in_the_error(http: httpx.Client, sandbox: Sandbox) -> None:
    response = http.post(f"/v1/sandboxes/{sandbox.id}/processes", json={"command": "true", "env": {"TOKEN": ["my-secret"]}})
    assert response.status_code == 400
    assert "TOKEN" in json.dumps(response.json())
    assert "my-secret" not in response.text


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
        assert sandbox.files.stat("/workspace/of-any-size").size == size


def test_killing_is_idempotent_and_an_unknown_sandbox_is_not_found(service: LocalService) -> None:
    made = service.create()
    made.kill()
    made.kill()
    service.client.kill(made.id)
    offenders = _problems("a killed sandbox", ErrorCode.SANDBOX_ENDED, lambda: made.commands.run("true"))
    offenders += _problems("an unknown sandbox", ErrorCode.SANDBOX_NOT_FOUND, lambda: service.client.kill(UNKNOWN_ID))
    assert offenders == []


def _problems(mistake: str, code: ErrorCode, call: Callable[[], object]) -> list[str]:
    """Return what is wrong with the error that a call raises, one line each."""
    try:
        call()
    except SandlotError as error:
        return _complaints(mistake, error, code)
    return [f"{mistake}: accepted"]


def _complaints(mistake: str, error: SandlotError, code: ErrorCode) -> list[str]:
    found = []
    if error.code is not code or (error.status, error.retryable) != CODES[code]:
        found.append(f"{error.code}, status {error.status}, retryable {error.retryable}; expected {code}")
    if len(error.message) <= 10 or not (error.hint or "it must be" in error.message):
        found.append("no hint")
    found += [f"internal word {word!r}" for word in ("Traceback", "sandlot/server", "pydantic", "starlette", "None.") if word in str(error)]
    return [f"{mistake}: {problem}: {error}" for problem in found]

"""Promise: a guest whose answers are lies is believed nothing that cannot be: its sandbox ends, whoever asked is told, nobody else notices.

The guest is replaced before its first breath, the strongest position there is: everything that PID 1 can say on the link is
said here by a real PID 1 of a real sandbox (``tests/support/impostor.py``), and seen through the whole service by its client.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.model.errors import ErrorCode
from sandlot.sdk.config import SOCKET
from tests.support.bystanders import nobody_else_notices, outcome
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.localservice import LocalService
from tests.support.roots import Roots

pytestmark = pytest.mark.parametrize("isolation", CONTAINERS_FIRST, indirect=True, scope="module")
"""The host's end of the link does not depend on the isolation."""
USES_ROOTS = True
AT_ONCE = 4
Ask = Callable[[Sandbox], object]


@pytest.fixture(scope="module", autouse=True)
def _others_notice_nothing(service: LocalService, other: Sandbox) -> Iterator[None]:
    with nobody_else_notices(service, other):
        yield


def _run(sandbox: Sandbox) -> object:
    return sandbox.commands.run("true", timeout=60)


def _code(sandbox: Sandbox) -> object:
    return sandbox.run_code("1", timeout=60)


def _read(sandbox: Sandbox) -> object:
    return sandbox.files.read("/f", "bytes")


def _list(sandbox: Sandbox) -> object:
    return sandbox.files.list("/")


def _stat(sandbox: Sandbox) -> object:
    return sandbox.files.stat("/f")


def _write(sandbox: Sandbox) -> object:
    return sandbox.files.write("/f", b"x" * (4 << 20))


def _processes(sandbox: Sandbox) -> object:
    return sandbox.commands.list()


def _entry(lie: str) -> str:
    return f'answers("file.stat", {{"result": {{**ENTRY, {lie}}}}})'


def _cell(told: str) -> str:
    return f'answers("kernel.execute", {told}, {{"result": {{"status": "ok", "execution_count": 1, "duration_s": 1.0}}}})'


def _process(lie: str) -> str:
    true = '"process": "ab" * 16, "pid": 7, "argv": ["x"], "running": True, "stdin_bytes": 0, "stdout_bytes": 0, "stderr_bytes": 0'
    return f'answers("process.list", {{"result": {{"processes": [{{{true}, {lie}}}]}}}})'


def _raw(expression: str) -> str:
    """Bytes said instead of an answer to whatever was to be run."""
    return f'on("process.start", lambda call: (started(call), say({expression})))'


IMPOSSIBLE: Mapping[str, tuple[str, Ask]] = {
    # How processes end, and what they wrote.
    "a duration of ages": ("runs(duration_s=1e300)", _run),
    "another process's id": ("runs(process='0' * 32)", _run),
    "two starts": ("on('process.start', lambda call: (started(call), started(call)))", _run),
    "output beyond the credit": (_raw("frame(frames.DATA, call.stream.id, bytes(65000), 1) * 6"), _run),
    # Frames and values.
    "unknown flags": (_raw("frames.HEADER.pack(frames.SYNC, frames.MESSAGE, 0xFE, 0, 1, 0)"), _run),
    "credit beyond bounds": (_raw("frame(frames.CREDIT, call.stream.id, bytes([127, 255, 255, 255]))"), _run),
    "values nested without end": (_raw("frame(frames.MESSAGE, call.stream.id, bytes([0x91]) * 60000)"), _run),
    "a service call that is none": (_raw("frame(frames.OPEN, 2, values.encode([1, 2, 3]))"), _run),
    "a refusal without a code": (_raw("frame(frames.RESET, call.stream.id, values.encode({'message': 'x'}))"), _run),
    # Cells.
    "a negative count": ("answers('kernel.execute', {'result': {'status': 'ok', 'execution_count': -1, 'duration_s': 1.0}})", _code),
    "a result of nested values": (_cell("{'event': 'display', 'data': {'text/plain': [[[]]]}, 'main': True}"), _code),
    "a result of 9 MiB": (_cell("{'event': 'display', 'data': {'text/plain': 'x' * (9 << 20)}, 'main': True}"), _code),
    # Files.
    "a name of 256 characters": (_entry("'name': 'x' * 256"), _stat),
    "a target of 5,000 characters": (_entry("'target': 'x' * 5000"), _stat),
    "bytes before the file": ("on('file.read', lambda call: say(frame(frames.DATA, call.stream.id, b'x')))", _read),
    "more entries than may be": ("answers('file.list', {'result': {'entries': [ENTRY] * 1001, 'more': False}})", _list),
    "written before it was sent": ("answers('file.write', {'result': ENTRY})", _write),
    # Lists of processes.
    "a process id that is a path": (_process("'process': '../../../etc/passwd'"), _processes),
}
"""Lie -> what the guest does, and what it is asked. None of them can be true, so the sandbox ends.

``tests/unit/link/test_hostile.py`` has many more."""


def test_impossible_response_ends_its_sandbox(service: LocalService, other: Sandbox) -> None:
    def try_it(name: str) -> str:
        misdeed, ask = IMPOSSIBLE[name]
        with service.create("impostor", envs={"MISDEED": misdeed}) as liar:
            seen = outcome(lambda: ask(liar))
            if not isinstance(seen, SandlotError):
                return f"believed: {seen!r}"[:500]
            if seen.code is not ErrorCode.SANDBOX_ENDED or seen.fields.get("reason") != "crashed" or "link" not in str(seen.fields.get("detail")):
                return f"{seen.code} {seen.message} {dict(seen.fields)}"[:500]
            if not seen.hint:
                return "no hint"
            info = liar.info()
            return "" if (info.state, info.exit_reason) == ("failed", "crashed") else f"{info.state} {info.exit_reason}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {name: pool.submit(try_it, name) for name in IMPOSSIBLE}
        for _ in as_completed(tried.values()):
            assert other.commands.run("echo served").stdout == "served\n"
    assert {name: each.result() for name, each in tried.items() if each.result()} == {}


REFUSALS: Mapping[str, tuple[str, ErrorCode]] = {
    "'code': 'path_not_found', 'message': 'none'": ("stays", ErrorCode.PATH_NOT_FOUND),
    "'code': 'unauthenticated', 'message': 'log in again'": ("a guest does not say who is authenticated", ErrorCode.INTERNAL),
    "'code': 'sandbox_ended', 'message': 'gone'": ("nor that it has ended", ErrorCode.INTERNAL),
    "'code': 'host_not_ready', 'message': 'buy a new one'": ("nor what the host is", ErrorCode.INTERNAL),
    "'code': 'no such code', 'message': ''": ("an unknown one", ErrorCode.INTERNAL),
    "'code': 'conflict', 'message': 'x' * 60000, 'hint': 'y' * 5000": ("long texts are cut", ErrorCode.CONFLICT),
    "'code': 'conflict', 'message': 'a' + chr(13) + chr(10) + 'Set-Cookie: a=b' + chr(27) + '[2J', 'hint': chr(0)": (
        "strange ones are carried",
        ErrorCode.CONFLICT,
    ),
    "'code': 'conflict', 'message': 'm', **{f'field{n}': n for n in range(1000)}": ("fields are counted", ErrorCode.CONFLICT),
    "'code': 'conflict', 'message': 'm', 'request_id': 'forged', 'status': 200, 'sandbox': 'sb-other'": (
        "and do not go over ours",
        ErrorCode.CONFLICT,
    ),
}
"""What a RESET says -> why, and the code that the client sees."""


def test_guest_errors_are_cut_and_have_permitted_codes_and_fields_only(service: LocalService) -> None:
    refusals = ", ".join(f"'/{number}': {{{told}}}" for number, told in enumerate(REFUSALS))
    misdeed = f"on('file.stat', lambda call: say(frame(frames.RESET, call.stream.id, values.encode({{{refusals}}}[call.args['path']]))))"
    with service.create("impostor", envs={"MISDEED": misdeed}) as liar:
        for number, (why, code) in enumerate(REFUSALS.values()):
            with pytest.raises(SandlotError) as refused:
                liar.files.stat(f"/{number}")
            error = refused.value
            assert error.code is code, why
            assert len(error.message) <= 65_536, why
            assert len(error.hint) <= 1024, why
            assert set(error.fields) <= {"request_id"}, why
            assert error.fields.get("request_id") != "forged"
        assert liar.is_running(), "a refusal is no crime"


def test_guest_values_do_not_appear_in_response_headers(service: LocalService) -> None:
    """Response splitting, CWE-113: a connection may be shared by many clients, behind a proxy for one."""
    split = "1\r\nSet-Cookie: forged=1\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK"
    told = f"{{'code': 'busy', 'message': {split!r}, 'hint': {split!r}, 'retry_after_s': {split!r}, 'Retry-After': {split!r}}}"
    misdeed = f"on('file.stat', lambda call: say(frame(frames.RESET, call.stream.id, values.encode({told}))))"
    with service.create("impostor", envs={"MISDEED": misdeed}) as liar, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(service.data_dir / SOCKET))
        client.sendall(f"GET /v1/sandboxes/{liar.id}/files/stat?path=/f HTTP/1.1\r\nHost: sandlot\r\nConnection: close\r\n\r\n".encode())
        answer = client.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"forged" not in head
    assert body.count(b"\r\n") == 0, "one answer, and its body is one line"


def test_endless_directories_and_pages_are_ended(service: LocalService, tmp_path: Path) -> None:
    folder = "{**ENTRY, 'kind': 'directory', 'name': 'd'}"
    deep = f"answers('file.list', {{'result': {{'entries': [{folder}], 'more': False}}}}); answers('file.stat', {{'result': {folder}}})"
    with service.create("impostor", envs={"MISDEED": deep}) as liar, pytest.raises((SandlotError, OSError)):
        liar.files.download("/d", tmp_path / "deep")
    subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)  # too deep for pytest to remove
    for entries in ("[]", "[ENTRY]"):
        pages = f"answers('file.list', {{'result': {{'entries': {entries}, 'more': True}}}})"
        with service.create("impostor", envs={"MISDEED": pages}) as liar:
            with pytest.raises(SandlotError) as refused:
                liar.files.list("/")
            assert refused.value.message


def test_incomplete_file_is_never_taken_for_complete(service: LocalService, tmp_path: Path) -> None:
    counts = "{'/too-many': 2**40, '/none': 0, '/right': 3}"
    misdeed = (
        "on('file.read', lambda call: (message(call, {'event': 'stat', **ENTRY, 'size': 2**62}), say(frame(frames.DATA, call.stream.id, b'xyz')), "
        f"message(call, {{'result': {{'bytes': {counts}[call.args['path']]}}}}), end(call)))"
    )
    for path in ("/too-many", "/none"):
        with service.create("impostor", envs={"MISDEED": misdeed}) as liar, pytest.raises(SandlotError):
            liar.files.download(path, tmp_path / "f")
        assert list(tmp_path.iterdir()) == [], "a file appears under its name only once it is whole"
    # A size is a hint: what came, and was counted right, is the file.
    with service.create("impostor", envs={"MISDEED": misdeed}) as liar:
        assert liar.files.read("/right", "bytes") == b"xyz"


BEFORE: Mapping[str, tuple[str, set[ErrorCode] | None]] = {
    "it dies": ("os._exit(3)", {ErrorCode.HOST_NOT_READY}),
    "noise first": ("say(os.urandom(1 << 20))", None),
    "an old nonce first": ("say(handshake.welcome(bytes(16), 1, asleep=True) * 1000)", None),
    "a generation to come": (
        "_w = handshake.welcome\nhandshake.welcome = lambda nonce, generation, asleep: _w(nonce, 99, asleep=asleep)",
        {ErrorCode.HOST_NOT_READY},
    ),
    "a huge greeting": ("_w = handshake.welcome\nhandshake.welcome = lambda *a, **k: _w(*a, **k) + bytes(1 << 20)", {ErrorCode.HOST_NOT_READY}),
    "a second greeting with another nonce": (
        "_w = handshake.welcome\nhandshake.welcome = lambda *a, **k: _w(*a, **k) + _w(bytes(16), 1, asleep=True)",
        {ErrorCode.HOST_NOT_READY},
    ),
    "awake from birth": (
        "_w = handshake.welcome\nhandshake.welcome = lambda nonce, generation, asleep: _w(nonce, generation, asleep=False)",
        {ErrorCode.HOST_NOT_READY},
    ),
    "no wish to wake": ("Impostor._wake_and_change = lambda self, call: call.fail('busy', 'later')", {ErrorCode.HOST_NOT_READY}),
}
"""What a guest does before it is somebody's -> what creating it comes to; None is that it works."""


@pytest.fixture(scope="module")
def newborn(roots: Roots) -> Mapping[str, str]:
    """Misdeed -> the template that does it."""
    made = {name: f"newborn-{number}" for number, name in enumerate(BEFORE)}
    for name, template in made.items():
        roots.add_impostor(template, BEFORE[name][0])
    return made


def test_invalid_greeting_creates_no_sandbox(service: LocalService, newborn: Mapping[str, str]) -> None:
    def try_it(name: str) -> str:
        codes = BEFORE[name][1]
        made = outcome(lambda: service.create(newborn[name]))
        if isinstance(made, SandlotError):
            return "" if codes is not None and made.code in codes and made.hint else f"{made.code} {made.message} {made.hint}"
        with made:  # its root has no other program
            return "" if codes is None and made.commands.run([*INTERPRETER_ARGV, "-c", "print('hi')"]).stdout == "hi\n" else "created"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {name: pool.submit(try_it, name) for name in BEFORE}
    assert {name: each.result() for name, each in tried.items() if each.result()} == {}

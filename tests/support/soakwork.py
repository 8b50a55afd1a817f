"""What a client of a soak may do in a sandbox, each with the outcome that it must have."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from sandlot.sdk import Client

ANSWER_S = 120.0


class Unexpected(Exception):  # noqa: N818 - a finding
    """An outcome that is not the one that was to come."""


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to do.

    Args:
        name: For the figures.
        do: Does it; raises :class:`Unexpected` where the outcome is a wrong one.
        weight: How often, to others.
        may_end: Reasons for which the sandbox may end of it.
        last: Whether the sandbox is not to be used afterwards.
    """

    name: str
    do: Callable[[Sandbox, Random, Client], object]
    weight: int = 4
    may_end: frozenset[str] = frozenset()
    last: bool = False


def expect(found: object, *expected: object) -> None:
    """It must be one of these."""
    if found not in expected:
        raise Unexpected(f"{found!r} is none of {expected!r}")


def code(sandbox: Sandbox, random: Random, _: Client) -> None:
    one, two = random.randrange(1 << 40), random.randrange(1 << 40)
    expect(sandbox.run_code(f"kept = {one}\nkept * {two}").text, str(one * two))
    expect(sandbox.run_code("kept").text, str(one))


def failing_code(sandbox: Sandbox, _: Random, __: Client) -> None:
    execution = sandbox.run_code("1 / 0")
    expect(execution.error.name if execution.error else None, "ZeroDivisionError")


def endless_code(sandbox: Sandbox, random: Random, _: Client) -> None:
    text = random.choice(["while True: pass", "while True: print('x' * 1000)", "import time; time.sleep(100)"])
    expect(sandbox.run_code(text, timeout=1).status, "timeout", "killed")
    expect(sandbox.run_code("6 * 7").text, "42")


def command(sandbox: Sandbox, random: Random, _: Client) -> None:
    word = f"{random.randrange(1 << 60):x}"
    done = sandbox.commands.run(["sh", "-c", f"echo {word}; exit 3"], user=random.choice(["user", "root"]))
    expect((done.stdout, done.exit_code, done.reason), (f"{word}\n", 3, "exited"))


def slow_command(sandbox: Sandbox, _: Random, __: Client) -> None:
    expect(sandbox.commands.run("trap '' TERM; sleep 600", timeout=0.5).reason, "timeout")


def loud_command(sandbox: Sandbox, random: Random, _: Client) -> None:
    lines = random.randrange(1, 300_000)
    done = sandbox.commands.run(f"seq {lines} | tail -c 5000000")
    expect(done.stdout.splitlines()[-1], str(lines))


def files(sandbox: Sandbox, random: Random, _: Client) -> None:
    data = random.randbytes(random.randrange(300_000))
    name = f"/workspace/some/{random.randrange(10)}"
    sandbox.files.write(name, data)
    expect(sandbox.files.read(name, "bytes") == data, True)
    expect(name.rpartition("/")[2] in {entry.name for entry in sandbox.files.list("/workspace/some")}, True)
    sandbox.files.remove(name)
    expect(sandbox.files.exists(name), False)


def background(sandbox: Sandbox, random: Random, _: Client) -> None:
    handle = sandbox.commands.run(random.choice(["sleep 1000", "yes", "while :; do sleep 0.1; done"]), background=True)
    if random.random() < 0.7:
        expect(handle.kill(), True)
        expect(handle.wait().signal, 9)


def looking(sandbox: Sandbox, _: Random, client: Client) -> None:
    expect(sandbox.info().state, "running")
    expect(sandbox.usage().memory_bytes > 0, True)
    expect(sandbox.id in {info.id for info in client.sandboxes.list()}, True)


def bad_requests(sandbox: Sandbox, random: Random, _: Client) -> None:
    calls: list[tuple[Callable[[], object], ErrorCode]] = [
        (lambda: sandbox.files.read("/nowhere"), ErrorCode.PATH_NOT_FOUND),
        (lambda: sandbox.commands.run(["/no/such/program"]), ErrorCode.PROGRAM_NOT_FOUND),
        (lambda: sandbox.commands.run("true", cwd="/nowhere"), ErrorCode.WORKING_DIRECTORY_NOT_FOUND),
        (lambda: sandbox.files.write("/etc/passwd", "x"), ErrorCode.PERMISSION_DENIED),
    ]
    call, wanted = random.choice(calls)
    try:
        call()
    except SandlotError as error:
        if error.code is not wanted:
            raise
        return
    raise Unexpected(f"nothing instead of {wanted}")


def memory_bomb(sandbox: Sandbox, _: Random, __: Client) -> None:
    done = sandbox.commands.run(["python3", "-c", "held = [bytearray(b'x' * (1 << 20)) for _ in range(4096)]"], timeout=60)
    expect(done.exit_code in {1, 137}, True)
    expect(sandbox.commands.run("echo alive").stdout, "alive\n")


def fork_bomb(sandbox: Sandbox, _: Random, __: Client) -> None:
    program = (
        "import os, time\ntry:\n while True:\n  if not os.fork(): time.sleep(600)\nexcept OSError as e: print(e.errno, flush=True)\ntime.sleep(600)"
    )
    done = sandbox.commands.run(["python3", "-c", program], timeout=4)
    expect(done.reason, "timeout", "pids", "oom")  # the processes can fill the memory before they reach the limit of processes
    expect(sandbox.commands.run("echo alive", user="root").stdout, "alive\n")


def disk_bomb(sandbox: Sandbox, random: Random, _: Client) -> None:
    how = random.choice(["head -c 200M /dev/zero >/workspace/big", "fallocate -l 200M /workspace/big"])
    done = sandbox.commands.run(how)
    expect("No space left on device" in done.stderr, True)
    sandbox.commands.run("rm -f /workspace/big")
    expect(sandbox.commands.run("echo alive >/workspace/alive && cat /workspace/alive").stdout, "alive\n")


def processor_bomb(sandbox: Sandbox, _: Random, __: Client) -> None:
    expect(sandbox.commands.run("for i in 1 2 3 4; do (while :; do :; done) & done; wait", timeout=2).reason, "timeout")
    expect(sandbox.commands.run("echo alive").stdout, "alive\n")


def descriptor_bomb(sandbox: Sandbox, _: Random, __: Client) -> None:
    program = "import os\nheld = []\ntry:\n while len(held) < 20000: held.append(os.open('/dev/null', 0))\nexcept OSError: pass\nprint('held')"
    expect(sandbox.commands.run(["python3", "-c", program]).stdout, "held\n")


def kill_everything(sandbox: Sandbox, _: Random, __: Client) -> None:
    """All that runs inside, the guest too where it is root and the kernel lets it (pid_namespaces(7): not in a container)."""
    done = sandbox.commands.run("kill -9 1; kill -9 -1; sleep 600", user="root", timeout=5)
    expect(done.reason, "timeout", "signalled")


def expire(sandbox: Sandbox, _: Random, __: Client) -> None:
    sandbox.set_timeout(1)
    ends_s = time.monotonic() + ANSWER_S
    while sandbox.info().state not in {"stopped", "failed"}:
        if time.monotonic() > ends_s:
            raise Unexpected("it does not expire")
        time.sleep(0.1)
    expect(sandbox.info().exit_reason, "killed")


ENDLESS = ("yes", "sleep 600", "cat /dev/zero")


def cut_stream(sandbox: Sandbox, random: Random, client: Client) -> None:
    """A client that goes away in the middle of an endless answer takes its process along; a service that is killed takes nobody."""
    served_by = client.service.version().pid
    with closing(_connection(client)) as connection:
        body = json.dumps({"command": random.choice(ENDLESS), "timeout": None})
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", f"/v1/sandboxes/{sandbox.id}/processes", body=body, headers=headers)
            response = connection.getresponse()
            response.read1(random.randrange(1, 100_000))
    try:
        _until_nothing_runs(sandbox)
    except Unexpected:
        if client.service.version().pid == served_by:
            raise
        for process in sandbox.commands.list():
            if process.running and process.argv[-1] in ENDLESS:
                sandbox.commands.kill(process.id)


def cut_upload(sandbox: Sandbox, random: Random, client: Client) -> None:
    with closing(_connection(client)) as connection, suppress(OSError, http.client.HTTPException):
        connection.putrequest("PUT", f"/v1/sandboxes/{sandbox.id}/files/content?path=/workspace/half")
        connection.putheader("Content-Length", "10000000")
        connection.endheaders()
        connection.send(random.randbytes(random.randrange(1, 500_000)))
    expect(sandbox.files.exists("/workspace/half"), False)


def cut_create(_: Sandbox, random: Random, client: Client) -> None:
    """Whoever asks for a sandbox and does not wait for it gets none that stays."""
    with closing(_connection(client)) as connection, suppress(OSError, http.client.HTTPException):
        body = json.dumps({"template": "base", "timeout": 10, "limits": {"memory_bytes": 96 << 20, "disk_bytes": 64 << 20, "pids": 48}})
        connection.request("POST", "/v1/sandboxes", body=body, headers={"Content-Type": "application/json"})
        time.sleep(random.uniform(0, 0.3))


def _until_nothing_runs(sandbox: Sandbox) -> None:
    ends_s = time.monotonic() + ANSWER_S
    while any(
        process.running and process.argv[-1:] != ("sleep 1000",) and "sleep 0.1" not in str(process.argv) for process in sandbox.commands.list()
    ):
        if time.monotonic() > ends_s:
            raise Unexpected("what nobody follows goes on")
        time.sleep(0.1)


def _connection(client: Client) -> _Connection:
    return _Connection(client)


class _Connection(http.client.HTTPConnection):
    """One that a client of the SDK would make, in the test's own hands.

    Args:
        client: Knows where the service is, and the key.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(urlsplit(client.target.base_url).netloc, timeout=ANSWER_S)
        self._target = client.target

    def connect(self) -> None:
        if self._target.socket is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._target.socket))

    def putrequest(self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is
        super().putrequest(method, url, skip_host, skip_accept_encoding)
        if self._target.api_key is not None:
            self.putheader("X-API-Key", self._target.api_key)


OOM = frozenset({"oom"})
WORK = (
    Work("code", code, 8),
    Work("failing code", failing_code),
    Work("endless code", endless_code, 2),
    Work("command", command, 8),
    Work("slow command", slow_command, 2),
    Work("loud command", loud_command, 3),
    Work("files", files, 8),
    Work("background", background),
    Work("looking", looking),
    Work("bad requests", bad_requests),
    Work("memory bomb", memory_bomb, 2, OOM, last=True),
    Work("fork bomb", fork_bomb, 2, OOM, last=True),
    Work("disk bomb", disk_bomb, 2, last=True),  # a restart in the middle leaves the disk full
    Work("processor bomb", processor_bomb, 1),
    Work("descriptor bomb", descriptor_bomb, 1, OOM, last=True),
    Work("kill everything", kill_everything, 2, frozenset({"killed", "exited", "crashed"}), last=True),
    Work("expire", expire, 2, last=True),
    Work("cut stream", cut_stream, 3, last=True),
    Work("cut upload", cut_upload, 3),
    Work("cut create", cut_create, 2),
)

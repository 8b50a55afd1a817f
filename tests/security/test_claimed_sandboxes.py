"""Promise: a sandbox that waited in a pool is as new as one that was booted for its request, and two of them share nothing.

What could leak: from the making (the neutral life that it had before), from whoever claimed another one, and from one copy of a memory to the next.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from sandlot import Sandbox
from sandlot.sdk import ProcessInfo
from tests.support.localservice import LocalService

TEMPLATE = "code-interpreter-slim"
FILL_S = 240.0

LOOK = r"""
import json, os, socket, subprocess, sys
def files():
    found = {}
    for top in ("/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/workspace", "/run", "/var/log", "/etc"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                found[path] = status.st_size
    return found
def commands():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            argv = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        found.append(" ".join(os.fsdecode(each) for each in argv[:1]).rpartition("/")[2])
    return sorted(found)
def environments():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(open(f"/proc/{pid}/environ", "rb").read().decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(found)
print(json.dumps({
    "files": files(), "commands": commands(), "environments": environments(), "environment": dict(os.environ), "host": socket.gethostname(),
    "names": sorted(globals()), "argv": sys.argv, "folder": os.getcwd(), "ids": [os.getuid(), os.getgid()],
}))
"""

DRAWS = r"""
import json, os, random, secrets, tempfile, uuid
import numpy
print(json.dumps([
    os.urandom(16).hex(), random.random(), random.Random().random(), secrets.token_hex(8), str(uuid.uuid4()), numpy.random.random(),
    numpy.random.default_rng().random(), os.path.basename(tempfile.mktemp()),
]))
"""


@dataclass(frozen=True)
class Rig:
    """A service, sandboxes of it that were claimed from a pool, and one that was booted for its request."""

    service: LocalService
    claimed: list[Sandbox]
    booted: Sandbox
    processes: list[ProcessInfo]
    """Processes of the second claimed sandbox before a test used it."""
    looks: tuple[dict[str, Any], dict[str, Any]]
    """What ``LOOK`` finds in the second claimed sandbox and in the booted one before a test used them."""


def filled(service: LocalService, pool: str, count: int) -> None:
    deadline = time.monotonic() + FILL_S
    while service.client.pools.get(pool).ready < count:
        assert time.monotonic() < deadline, (service.client.pools.get(pool), service.log())
        time.sleep(0.1)


@pytest.fixture(scope="module")
def rig(service: LocalService, isolation: str) -> Iterator[Rig]:
    with ExitStack() as stack:
        pool = service.client.pools.create(TEMPLATE, warm=2, max=2, isolation=isolation)
        filled(service, pool.id, 2)
        # The first has been used, and holds something, before the second is claimed.
        first = stack.enter_context(service.create(TEMPLATE, envs={"OWN": "first", "SECRET_OF_THE_FIRST": "x41"}, metadata={"who": "first"}))
        first.run_code("secret = 'x42'\nopen('/tmp/of-the-first', 'w').write('x43')\nimport sys\nsys.path.append('/of-the-first')")
        first.commands.run("sleep 1000", background=True)
        second = stack.enter_context(service.create(TEMPLATE, envs={"OWN": "second"}))
        info = service.client.pools.get(pool.id)
        service.client.pools.delete(pool.id)
        assert info.claims["warm"] == 2, info
        # Another limit is another kind: there is neither a pool nor a template snapshot of it.
        booted = stack.enter_context(service.create(TEMPLATE, memory="1025M", envs={"OWN": "booted"}))
        yield Rig(service, [first, second], booted, second.commands.list(), (told(second, LOOK), told(booted, LOOK)))


def told(sandbox: Sandbox, code: str) -> Any:  # noqa: ANN401 - JSON
    done = sandbox.run_code(code)
    assert done.error is None, done.error
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def looks(rig: Rig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The second one that was claimed, and the one that was booted, as code in them finds them."""
    return rig.looks


def test_claimed_sandbox_has_files_and_processes_of_a_booted_one(looks: tuple[dict[str, Any], dict[str, Any]], rig: Rig) -> None:
    claimed, booted = looks
    claimed["files"].pop("/run/sandlot/boot_id", None)  # mounted over the boot id, so that no two copies have the same
    assert claimed["files"] == booted["files"]
    assert set(claimed["commands"]) == set(booted["commands"])
    assert len(claimed["commands"]) <= len(booted["commands"]) + 1  # the next kernel is made ahead, or about to be
    assert "sleep" not in claimed["commands"]
    assert rig.processes == []


def test_claimed_sandbox_has_its_own_environment(looks: tuple[dict[str, Any], dict[str, Any]], rig: Rig) -> None:
    claimed, booted = looks
    own = {name for name in claimed["environment"] if claimed["environment"][name] != booted["environment"].get(name)}
    assert claimed["environment"].keys() == booted["environment"].keys()
    assert own <= {"OWN", "HOSTNAME", "SANDLOT_SANDBOX_ID"}
    assert claimed["environment"]["OWN"] == "second"
    for word in ("SECRET_OF_THE_FIRST", "first", "template", "tried"):
        assert word not in claimed["environments"].replace("code-interpreter-slim", "")
    assert rig.claimed[1].commands.run("echo $OWN; hostname").stdout == f"second\n{rig.claimed[1].id}\n"


def test_kernel_of_a_claimed_sandbox_has_no_history(looks: tuple[dict[str, Any], dict[str, Any]], rig: Rig) -> None:
    claimed, booted = looks
    for name in ("names", "argv", "folder", "ids"):
        assert claimed[name] == booted[name]
    second = rig.claimed[1]
    assert second.run_code("'secret' in globals(), '/of-the-first' in __import__('sys').path").text == "(False, False)"
    assert [context.id for context in second.contexts.list()] == [context.id for context in rig.booted.contexts.list()]
    fresh = second.contexts.create("python")
    assert second.run_code("len(In), len(Out)", context=fresh).text == "(2, 0)"
    assert second.run_code("import readline\nreadline.get_current_history_length()", context=fresh).text in {"0", None}
    second.contexts.delete(fresh)


def test_claimed_sandboxes_share_no_file_process_or_random_value(rig: Rig) -> None:
    first, second = rig.claimed
    assert second.commands.run("ls /tmp/of-the-first").exit_code != 0
    first.commands.run("echo more > /dev/shm/more; echo more > /workspace/more")
    assert second.commands.run("cat /dev/shm/more /workspace/more").stdout == ""
    draws = [told(sandbox, DRAWS) for sandbox in rig.claimed]
    assert not set(map(str, draws[0])) & set(map(str, draws[1]))
    bash = [sandbox.commands.run("echo $RANDOM$RANDOM$RANDOM; head -c 8 /dev/urandom | od -An -tx8").stdout for sandbox in rig.claimed]
    assert not set(bash[0].split()) & set(bash[1].split())
    assert first.commands.run("pkill -x sleep; echo done").stdout == "done\n"
    assert second.is_running()


def test_log_and_events_of_a_claimed_sandbox_begin_with_its_claim(rig: Rig) -> None:
    """The log of runs and the events tell of what its owner did, and of nothing that was done to it before."""
    second = rig.claimed[1]
    events = [event.type for event in rig.service.client.events.iter(sandbox=second.id)]
    assert events == ["sandbox.created"]
    codes = [run.code for run in rig.service.client.executions.list(sandbox=second.id)]
    assert not any(code == "print(1)" for code in codes)

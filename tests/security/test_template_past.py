"""Promise: what is handed out of a template that was made ready shows nothing of the template's past, and shares nothing with the next.

Compared with one that was booted for itself and has made the same things ready, at the seam below the service: what runs, what is on
the disk, what a kernel remembers, what is open, what the guest knows.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandlot.model.errors import NotFoundError
from sandlot.model.ids import ProcessId
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.testing.drivers.harness import take_snapshot
from tests.support.driver_sandboxes import DriverSandboxes, GuestSession, driver_sandboxes, wake

TEMPLATE = "code-interpreter-slim"

FILES = r"""
import base64, json, os, zlib
SKIPPED = {"/proc", "/sys", "/dev", "/.sandlot", "/usr"}
def look(path, found):
    for name in os.listdir(path):
        inside = path.rstrip("/") + "/" + name
        if inside not in SKIPPED:
            about = os.lstat(inside)
            found[inside] = [about.st_mode, about.st_uid, 0 if os.path.isdir(inside) else about.st_size]
            if os.path.isdir(inside) and not os.path.islink(inside):
                look(inside, found)
    return found
print(base64.b64encode(zlib.compress(json.dumps(look("/", {})).encode())).decode())
"""
"""Every entry of the disk, but for what root alone may write and has not: programs."""

PROCESSES = r"""
import json, os
found = []
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            command = open(f"/proc/{name}/cmdline").read().split("\0")
            found.append([command[:3], len(os.listdir(f"/proc/{name}/fd"))])
        except OSError:
            pass
print(json.dumps(sorted(found)))
"""
"""Every process, and how many descriptors it has."""

KERNEL = r"""
import json, os, sys
print(json.dumps({
    "open": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")),
    "env": dict(os.environ),
    "history": [In[:-1], Out],
    "names": sorted(name for name in globals() if not name.startswith("_")),
    "modules": len(sys.modules),
    "cwd": os.getcwd(),
    "threads": len(os.listdir("/proc/self/task")),
}, sort_keys=True))
"""
"""What a kernel's first cell finds."""


@dataclass
class Claims:
    """A template's snapshot, what was done in the template, and one sandbox of its own."""

    sandboxes: DriverSandboxes
    image: Path
    done: list[str]
    fresh: GuestSession


@pytest.fixture(scope="module")
async def claims(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Claims]:
    folder = tmp_path_factory.mktemp("claims")
    async with driver_sandboxes(folder, TEMPLATE) as here:
        template = await here.open()
        await wake(template, "sb-template", TEMPLATES_OWN="1")
        command = await template.link.processes.start(ProcessSpec(shell_argv("true")))
        await command.result()
        await template.link.warm()
        await template.link.quiesce()
        await take_snapshot(template.instance, folder / "image", keep_running=False, durable=False)
        fresh = await here.open()
        await wake(fresh, "sb-fresh", OWN="1")
        await fresh.link.warm()
        yield Claims(here, folder / "image", [command.id], fresh)


async def claimed(claims: Claims, identity: str, **env: str) -> GuestSession:
    inside = await claims.sandboxes.open(claims.image)
    await wake(inside, identity, **env)
    return inside


async def python(inside: GuestSession, program: str) -> str:
    out, err, result = await inside.run("python3", "-c", program, user=User.ROOT)
    assert result.exit_code == 0, err
    return out.decode()


async def files(inside: GuestSession) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(await python(inside, FILES))))
    return found


async def test_claimed_sandbox_looks_like_a_new_one(claims: Claims) -> None:
    one = await claimed(claims, "sb-one", OWN="1")
    assert (await one.link.info()).identity == "sb-one"
    assert (await one.link.info()).uptime_s < 60
    assert await one.sh(
        "hostname; env | grep -c TEMPLATES || true; ls -A /tmp /workspace /var/tmp ~ | grep -v : ; ls /var/log | grep sandlot || true"
    ) == (
        await claims.fresh.sh(
            "echo sb-one; env | grep -c TEMPLATES || true; ls -A /tmp /workspace /var/tmp ~ | grep -v : ; ls /var/log | grep sandlot || true"
        )
    )
    assert await python(one, PROCESSES) == await python(claims.fresh, PROCESSES)
    assert await files(one) == await files(claims.fresh)
    told = [json.loads((await each.cell(KERNEL))[0]) for each in (one, claims.fresh)]
    assert told[0] == told[1]
    assert told[0]["history"] == [[""], {}]
    assert "TEMPLATES_OWN" not in told[0]["env"]
    assert [process.process for process in await one.link.processes.list() if process.running] == []
    for id_ in claims.done:
        with pytest.raises(NotFoundError):
            await one.link.processes.attach(ProcessId(id_))
    assert (await one.cell("1"))[2].execution_count == 2


async def test_two_sandboxes_of_one_template_share_nothing(claims: Claims) -> None:
    one, other = await claimed(claims, "sb-0", OWN="0", OMP_NUM_THREADS="3", LANG="C", TZ="Etc/GMT-5"), await claimed(claims, "sb-1", OWN="1")
    starting = "'OMP_NUM_THREADS=3' in open('/proc/self/environ').read(), os.environ['LANG'], time.localtime(0).tm_hour"
    assert (await one.cell(f"import os, time; print({starting})"))[0] == "True C 5\n", "what is read at the start is there at the start"
    draw = "import numpy, os, random, tempfile, uuid\n"
    draw += "print(os.urandom(8).hex(), random.random(), numpy.random.rand(), uuid.uuid4(), tempfile.mktemp())"
    drawn = [(await each.cell(draw))[0].split() for each in (one, other)]
    assert all(mine != others for mine, others in zip(*drawn, strict=True))
    await one.cell("secret = 1; open('/tmp/secret', 'w').write('1'); os.environ['SECRET'] = '1'")
    await one.sh("echo 1 > /workspace/secret; (sleep 1000 & ) > /dev/null 2>&1")
    assert (await other.cell("print('secret' in globals(), os.environ.get('SECRET'), os.environ['OWN'])"))[0] == "False None 1\n"
    assert await other.sh("ls -A /workspace /tmp | grep -c secret || true") == "0\n"
    assert "sleep" not in await python(other, PROCESSES)

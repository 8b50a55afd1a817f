"""Lives of one sandbox on gVisor, at the link: copies that go on from one checkpoint, and the original after hours of sleep."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.link.kernels import CellCall
from sandlot.model.errors import NotFoundError, SandlotError, UnavailableError
from sandlot.model.executions import Output
from sandlot.model.ids import new_context_id
from sandlot.model.specs import CellSpec, ProcessSpec, User, shell_argv
from sandlot.testing.drivers.harness import take_snapshot
from tests.support.driver_sandboxes import PIDS, GuestSession, driver_sandboxes, wake

PYTHON = {
    "os.urandom": "os.urandom(8).hex()",
    "random": "random.random()",
    "numpy": "numpy.random.rand()",
    "uuid4": "uuid.uuid4().hex",
    "secrets": "secrets.token_hex(8)",
    "names of temporary files": "os.path.basename(tempfile.mktemp())",
    "OpenSSL": "ssl.RAND_bytes(8).hex()",
    "a generator of the cell's own": "own.random()",
}
"""What a python kernel draws that has drawn from each before."""

BASH = {"RANDOM": "$RANDOM$RANDOM$RANDOM", "SRANDOM": "$SRANDOM"}

JAVASCRIPT = {
    "Math.random": "Math.random()",
    "crypto.randomBytes": "crypto.randomBytes(8).toString('hex')",
    "crypto.randomUUID": "crypto.randomUUID()",
    "crypto.randomInt": "crypto.randomInt(2 ** 40)",
    "webcrypto": "String(crypto.webcrypto.getRandomValues(new Uint8Array(8)))",
    "a key": "crypto.generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'der' }).toString('hex')",
}


async def shown(inside: GuestSession, code: str, kernel: str = "default") -> str:
    """What a cell prints."""
    text, told, result = await inside.cell(code, kernel=kernel)
    assert result.status == "ok", told
    return text


async def drawn(inside: GuestSession) -> dict[str, str]:
    """What everything that draws numbers gives now."""
    python = await shown(inside, f"for code in {list(PYTHON.values())}: print(eval(code))")
    bash = await shown(inside, "\n".join(f'echo "{word}"' for word in BASH.values()), "bash")
    javascript = await shown(inside, "\n".join(f"console.log(String({code}))" for code in JAVASCRIPT.values()), "javascript")
    told = [*python.splitlines(), *bash.splitlines(), *javascript.splitlines()]
    return dict(zip([*PYTHON, *BASH, *JAVASCRIPT], told, strict=True))


async def test_copies_of_one_image_draw_different_numbers(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "code-interpreter-slim") as here:
        source = await here.open()
        await wake(source, "sb-source")
        modules = "import asyncio, numpy, os, random, secrets, ssl, sys, tempfile, time, uuid\nfrom sandlot_kernel import on_wake"
        await shown(
            source, f"{modules}\nown = random.Random(1)\n@on_wake\ndef seeded(entropy): own.seed(entropy)\nbig = bytearray(b'x' * 50_000_000)"
        )
        await shown(source, "const crypto = require('crypto')", "javascript")
        await drawn(source)
        await source.link.warm()
        process = await source.link.processes.start(ProcessSpec(shell_argv("while :; do echo tick; sleep 0.05; done"), timeout_s=None))
        one, other = await here.copies(source, 2)
        assert (await source.link.info()).identity == "sb-source", "the original goes on"
        async for item in process:
            assert isinstance(item, Output)
            assert b"tick" in item.data
            break
        for number, copy in enumerate((one, other)):
            with pytest.raises(UnavailableError):
                await copy.link.info()
            await wake(copy, f"sb-copy-{number}")
        lives = [await drawn(each) for each in (source, one, other)]
        for what in lives[0]:
            assert len({life[what] for life in lives}) == len(lives), what
        for copy in (one, other):
            assert await shown(copy, "print(len(big), big[-1])") == "50000000 120\n"
        # The kernel that was made ahead, before it was anybody's.
        fresh = "import numpy, random, tempfile; print(random.random(), numpy.random.rand(), tempfile.mktemp())"
        made = []
        for copy in (source, one, other):
            another = new_context_id()
            await copy.link.kernels.create(another, "python")
            made.append((await shown(copy, fresh, another)).split())
        assert all(len(set(numbers)) == len(made) for numbers in zip(*made, strict=True)), made


async def test_copy_serves_only_the_running_executions_of_its_source(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source", OLD="1", BOTH="1")
        await shown(source, "import os; os.environ['MINE'] = 'cell'; os.environ['BOTH'] = 'cell'; kept = [1]")
        done = await source.link.processes.start(ProcessSpec(shell_argv("echo done")))
        await done.result()
        over = await source.link.kernels.execute(CellSpec("print('over')"))
        await over.result()
        ticks = await source.link.processes.start(ProcessSpec(shell_argv("while :; do date +%s.%N >> /tmp/ticks; sleep 0.05; done"), timeout_s=None))
        terminal = await source.link.processes.start(ProcessSpec(("cat",), rows=24, cols=80, timeout_s=None))
        (copy,) = await here.copies(source, 1)
        restored_s = time.time()
        await asyncio.sleep(0.5)  # the copy ticks meanwhile
        woken_s = time.time()
        await wake(copy, "sb-copy", NEW="1", BOTH="1")
        ticked = [float(line) for line in (await copy.sh("cat /tmp/ticks")).splitlines()]
        assert [tick for tick in ticked if restored_s < tick < woken_s], "asleep, it still runs what it runs"
        assert await copy.sh("echo ${OLD-gone} $NEW; hostname") == "gone 1\nsb-copy\n"
        assert (
            await shown(copy, "print(kept, os.environ.get('OLD'), os.environ['NEW'], os.environ['MINE'], os.environ['BOTH'])")
            == "[1] None 1 cell cell\n"
        )
        assert (await copy.link.processes.get(ticks.id)).running, "what runs is its own"
        with pytest.raises(NotFoundError):
            await copy.link.processes.attach(done.id)
        with pytest.raises(NotFoundError):
            await (await copy.link.kernels.attach(over.id)).result()
        for inside, word in ((copy, b"there"), (source, b"here")):
            typing = await inside.link.processes.attach(terminal.id, stdout_from=None)
            await typing.write(word + b"\n")
            seen = b""
            async for item in typing:
                assert isinstance(item, Output)
                seen += item.data
                if seen.count(word) == 2:
                    break  # what was typed, and what cat says
            assert seen.replace(b"\r\n", b" ").split() == [word, word], "a terminal of each"
            assert await inside.link.processes.signal(ticks.id, 9)
        await copy.link.kernels.restart()
        assert await shown(copy, "import os; print(os.environ.get('OLD'), os.environ['NEW'], 'kept' in globals())") == "None 1 False\n"
        assert (await copy.link.info()).uptime_s < (await source.link.info()).uptime_s
        await copy.link.set_limits(pids=PIDS + 10)
        assert (await (await source.link.kernels.attach(over.id)).result()).status == "ok"


async def test_wake_scripts_run_before_anything_else_is_started(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        install = (
            "mkdir -p /etc/sandlot/wake.d && cd /etc/sandlot/wake.d"
            " && printf '#!/bin/sh\necho $SANDLOT_SANDBOX_ID $SANDLOT_ENTROPY > /workspace/first; id -u; sleep 0.5' > 1"
            " && printf '#!/bin/sh\nid -u > /workspace/second' > 2 && chmod 755 1 2 && chown 1000:1000 2"
        )
        await wake(source, "sb-source")
        await source.sh(install, User.ROOT)
        assert await source.sh("ls /workspace") == "", "not at the boot, and not for being there"
        one, other = await here.copies(source, 2)
        seen = []
        for number, copy in enumerate((one, other)):
            await wake(copy, f"sb-copy-{number}")
            assert (await copy.link.info()).identity == f"sb-copy-{number}", "who starts nothing does not wait"
            code = "print(open('/workspace/second').read(), open('/workspace/first').read())"
            user, name, entropy = (await (shown(copy, code) if number else copy.sh("cat /workspace/second /workspace/first"))).split()
            assert (user, name) == ("1000", f"sb-copy-{number}")
            seen.append(entropy)
        assert len(set(seen)) == 2
        assert {len(entropy) for entropy in seen} == {128}
        log = await one.sh("cat /var/log/sandlot-wake.log")
        assert log == "/etc/sandlot/wake.d/1 as root:\n0\n/etc/sandlot/wake.d/2 as user:\n"


async def _first_output(call: CellCall) -> AsyncIterator[Output]:
    async for item in call:
        if isinstance(item, Output):
            yield item
            return


async def test_suspended_time_counts_for_no_timeout_and_the_clock_is_correct(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source", KEPT="1")
        cell = await source.link.kernels.execute(
            CellSpec("import time, asyncio\nfor n in range(1000):\n    print(n, flush=True)\n    time.sleep(0.1)", timeout_s=None)
        )
        limited = await source.link.processes.start(ProcessSpec(shell_argv("sleep 1000"), timeout_s=4))
        await source.link.quiesce()
        image = tmp_path / "image"
        await take_snapshot(source.instance, image, keep_running=False)
        await asyncio.sleep(4.5)  # longer than the timeout of the process
        again = await here.open(image)
        with pytest.raises(SandlotError):
            await again.link.info()
        await wake(again, "sb-source", KEPT="1")
        assert (await again.link.processes.get(limited.id)).running, "its four seconds are not over"
        before_s = time.time()
        told_s = float(await again.sh("date +%s.%N"))
        assert before_s - 0.5 < told_s < time.time() + 0.5
        follower = await again.link.kernels.attach(cell.id, events_from=0, stdout_from=0, stderr_from=0)
        first = [item async for item in _first_output(follower)]
        assert first[0].data.startswith(b"0\n"), "who comes back to an execution finds it, from its beginning"
        assert await again.link.kernels.interrupt("default")
        assert (await (await again.link.kernels.attach(cell.id)).result()).status == "error"
        ended = await again.link.processes.wait(limited.id)
        assert ended.reason == "timeout", "and end they do"


async def test_guest_left_armed_or_quiesced_is_woken_by_the_next_service(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        inside = await here.open()
        await wake(inside, "sb-one", LIFE="1")
        await shown(inside, "kept = 1")
        call = await inside.link.kernels.execute(CellSpec("import time; time.sleep(1); print('late')"))
        await inside.link.checkpoint(armed=True)
        await inside.link.aclose()
        link = await here.greet(inside.instance)
        assert link.asleep
        inside.link = link
        await wake(inside, "sb-one", LIFE="2")
        assert (await (await link.kernels.attach(call.id)).result()).status == "ok"
        assert await shown(inside, "import os; print(kept, os.environ['LIFE'])") == "1 2\n"
        await link.quiesce()
        await link.aclose()
        inside.link = await here.greet(inside.instance)
        assert inside.link.asleep
        await wake(inside, "sb-one", LIFE="3")
        assert await shown(inside, "print(kept, os.environ['LIFE'])") == "1 3\n"


BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


@pytest.mark.parametrize("warmed", [True, False])
async def test_copies_of_one_image_have_different_boot_ids(tmp_path: Path, *, warmed: bool) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source")
        if warmed:
            await source.link.warm()
        first = await source.sh(BOOT_ID)
        copies = await here.copies(source, 2)
        for number, copy in enumerate(copies):
            await wake(copy, f"sb-copy-{number}")
        await copies[0].sh("rm -rf /run/sandlot", user=User.ROOT)
        (inner,) = await here.copies(copies[0], 1)
        await wake(inner, "sb-inner")

        ids = [await each.sh(BOOT_ID) for each in (source, *copies, inner)]

    assert ids[0] == first, "the source keeps its own"
    assert len(set(ids)) == len(ids)
    assert all(str(uuid.UUID(id_.strip())) + "\n" == id_ and uuid.UUID(id_.strip()).version == 4 for id_ in ids)


async def test_hostile_files_in_place_of_the_boot_id_delay_no_copy(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source")
        await source.sh("rm -rf /run/sandlot; ln -s /etc /run/sandlot; mkfifo /etc/boot_id", user=User.ROOT)
        (copy,) = await here.copies(source, 1)

        await wake(copy, "sb-copy")

        assert await copy.sh("echo works") == "works\n"

"""A guest's life: services that it dials, rest and another waking, its deadline, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandlot.link.services import GuestStream
from sandlot.link.types import Display, LostReason, Output
from sandlot.model.errors import SandlotError
from sandlot.model.ports import ExitReason
from sandlot.model.specs import Limits, ProcessSpec, shell_argv
from tests.conformance.guest.conftest import open_sandbox

DIAL = """
import socket, sys
sys.path.insert(0, "/.sandlot/helpers")
import values
def dial(service, args):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(60)
    link.connect("/run/sandlot/guest.sock")
    link.sendall(values.encode_message({"op": "dial", "service": service, "args": args}))
    return link
"""


async def echo(stream: GuestStream, args: Mapping[str, Any]) -> None:
    """Gives back what it gets, its arguments first."""
    await stream.write(repr(dict(args)).encode() + b"\n")
    async for item in stream:
        assert isinstance(item, bytes)
        await stream.write(item)
    stream.end()


async def test_code_inside_reaches_a_service_of_the_host_over_a_stream(tmp_path: Path, isolation: str) -> None:
    async with open_sandbox(tmp_path, isolation=isolation, services={"echo": echo}) as inside:
        code = (
            DIAL + "import hashlib, threading\n"
            "body = bytes(range(256)) * 8000\n"
            "link = dial('echo', {'n': 1})\n"
            "file = link.makefile('rb')\n"
            "print(file.readline().decode().strip())\n"
            "def feed():\n"
            "    link.sendall(body)\n"
            "    link.shutdown(socket.SHUT_WR)\n"
            "thread = threading.Thread(target=feed); thread.start()\n"
            "print(file.read() == body); thread.join()\n"
            "print(dial('no-such-service', {}).recv(10))\n"
        )
        text, told, result = await inside.cell(code)
        assert result.status == "ok", told
        assert text == "{'n': 1}\nTrue\nb''\n"


async def test_at_rest_nothing_is_served_and_waking_makes_it_another(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor") as inside:
        await inside.cell("import os, random\nkept = 'kept'")
        process = await inside.link.start(ProcessSpec(shell_argv("while :; do echo tick; sleep 0.05; done"), timeout_s=None))
        await inside.link.quiesce()
        with pytest.raises(SandlotError):
            await inside.link.info()
        with pytest.raises(SandlotError):
            await process.result()
        await inside.link.wake(identity="sb-another", hostname="another", env={"LIFE": "two"}, pids=64, deadline_s=600)
        assert (await inside.link.info()).identity == "sb-another"
        assert await inside.sh("hostname; echo $LIFE") == "another\ntwo\n"
        _, told, _ = await inside.cell("kept, os.environ['LIFE']")
        assert isinstance(told[0], Display)
        assert told[0].data["text/plain"] == "('kept', 'two')"
        again = await inside.link.attach(process.id)
        async for item in again:
            assert isinstance(item, Output)
            assert b"tick" in item.data
            break
        assert await inside.link.signal(process.id, 9)


async def test_a_guest_ends_when_its_deadline_passes_unheard(tmp_path: Path, isolation: str) -> None:
    async with open_sandbox(tmp_path, isolation=isolation) as inside:
        await inside.link.set_deadline(1000)
        await inside.link.set_deadline(0.2)
        assert (await inside.instance.wait()).reason is ExitReason.EXITED
        assert (await inside.link.wait_lost()).reason is LostReason.EOF


async def test_guest_with_little_memory_works_and_ends_with_all_processes_when_asked(tmp_path: Path, isolation: str) -> None:
    async with open_sandbox(tmp_path, isolation=isolation, limits=Limits(memory_bytes=96 << 20, disk_bytes=32 << 20, pids=32)) as inside:
        assert await inside.sh("echo small") == "small\n"
        await inside.link.start(ProcessSpec(shell_argv("trap '' TERM; sleep 300"), timeout_s=None))
        await inside.link.shutdown()
        assert (await inside.instance.wait()).reason is ExitReason.EXITED

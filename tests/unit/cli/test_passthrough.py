"""Bytes and statuses of a program that runs elsewhere: through real descriptors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandlot.cli.passthrough import exit_status, failure_status, run_until_signal, standard_input, write_all
from sandlot.model.errors import ErrorCode, NotFoundError, from_code
from sandlot.sdk.models.processes import CommandResult


def test_the_status_is_the_programs_own(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for result, status in (
        (CommandResult(0), 0),
        (CommandResult(7), 7),
        (CommandResult(143, reason="signalled", signal=15), 143),
        (CommandResult(137, reason="timeout", signal=9), 124),
        (CommandResult(137, reason="pids", signal=9), 137),
        (CommandResult(137, reason="oom", signal=9), 137),
    ):
        with subtests.test(result=result, status=status):
            assert exit_status(result, 5) == status
            out, err = capsys.readouterr()
            assert out == ""
            assert bool(err) == (result.reason in {"timeout", "pids", "oom"})
            assert not err or err.startswith("sandlot: ")


def test_what_kept_a_program_from_running(subtests: pytest.Subtests) -> None:
    for error, status in (
        (from_code("program_not_found", "x"), 127),
        (from_code("permission_denied", "x"), 126),
        (from_code("working_directory_not_found", "x"), 125),
        (NotFoundError("x", code=ErrorCode.SANDBOX_NOT_FOUND), None),
        (from_code("sandbox_ended", "x", fields={"reason": "oom"}), 137),
        (from_code("sandbox_ended", "x", fields={"reason": "killed"}), None),
        (from_code("service_unavailable", "x"), None),
    ):
        with subtests.test(error=error, status=status):
            assert failure_status(error) == status


async def collected(descriptor: int) -> bytes:
    return b"".join([piece async for piece in standard_input(descriptor)])


async def test_a_pipe_is_read_to_its_end_as_it_comes() -> None:
    read, write = os.pipe()
    data = os.urandom(300_000)
    async with anyio.create_task_group() as group:
        group.start_soon(write_all, write, data)
        received = b""
        async for piece in standard_input(read):
            received += piece
            if len(received) == len(data):
                os.close(write)
    os.close(read)
    assert received == data


async def test_a_file_and_a_device_are_read_although_nobody_can_wait_for_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 200_000)
    for path, expected in ((tmp_path / "file", b"x" * 200_000), (Path("/dev/null"), b"")):
        descriptor = os.open(path, os.O_RDONLY)
        assert await collected(descriptor) == expected
        os.close(descriptor)


async def test_writing_waits_for_a_slow_reader_without_stopping_the_loop() -> None:
    read, write = os.pipe()
    data = os.urandom(1_000_000)
    received = bytearray()

    async def consume() -> None:
        while len(received) < len(data):
            await anyio.wait_readable(read)
            received.extend(os.read(read, 10_000))

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await write_all(write, data)
    os.close(read)
    os.close(write)
    assert bytes(received) == data


PROGRAM = """
import asyncio, sys
from sandlot.cli.passthrough import run_until_signal, write_all
async def main():
    try:
        print("ready", flush=True)
        {body}
    finally:
        print("cleaned", file=sys.stderr, flush=True)
    return 3
sys.exit(run_until_signal(main()))
"""


def program(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def reading_in_the_background() -> Iterator[None]:
    """Restore what this process does if it reads from its terminal in the background: ``run_until_signal`` changes it."""
    before = signal.getsignal(signal.SIGTTIN)
    yield
    signal.signal(signal.SIGTTIN, before)


@pytest.mark.usefixtures("reading_in_the_background")
def test_signal_cancels_the_coroutine_and_becomes_the_status(subtests: pytest.Subtests) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with subtests.test(number=number):
            cleaned: list[signal.Signals] = []

            async def main(number: signal.Signals, cleaned: list[signal.Signals]) -> int:
                try:
                    os.kill(os.getpid(), number)
                    await asyncio.Event().wait()
                finally:
                    cleaned.append(number)
                return 3

            assert run_until_signal(main(number, cleaned)) == 128 + number
            assert cleaned == [number]


def test_a_signal_stays_the_status_where_cleaning_up_fails() -> None:
    with program("try:\n            await asyncio.sleep(100)\n        finally:\n            raise OSError('no service')") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        _, error = running.communicate()
    assert "sandlot: interrupted" in error
    assert "no service" in error
    assert running.returncode == 143


def test_a_reader_that_is_gone_ends_it_as_sigpipe_would() -> None:
    with program("await asyncio.to_thread(sys.stdin.readline); await write_all(1, b'x' * 100_000)") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.readline() == "cleaned\n"
    assert running.returncode == 128 + signal.SIGPIPE


def test_read_that_is_cancelled_as_it_ends_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        read = loop.create_future()
        read.cancel()
        loop.call_soon(read.set_result, None)
        loop.call_soon(int, "no number")
        await asyncio.sleep(0)
        return 7

    assert run_until_signal(main()) == 7
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["invalid literal for int() with base 10: 'no number'"]

"""Identities of processes, and their ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.host.process_identity import Identity, identify, is_ending, is_exiting, open_process, read_start, wait_ended, wait_ended_within


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


def test_start_time_is_parsed_behind_any_name() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert read_start(f"17 (a b) c) (d) S {fields}") == 22
    for nonsense in ("", "17", "17 (sh) S 1 2"):
        with pytest.raises(ValueError, match="without a start time"):
            read_start(nonsense)


def test_process_is_ending_as_soon_as_the_kernel_ends_it(child: subprocess.Popen[bytes]) -> None:
    who = identify(child.pid)
    assert who is not None
    assert not is_ending(who)
    assert is_ending(Identity(child.pid, who.start_ticks - 1)), "another process had this pid"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(who), "it is a zombie"
    child.wait()
    assert is_ending(who)
    assert is_exiting("17 (a b) c) (d) R 1 17 17 0 -1 4194308 1")
    assert not is_exiting("17 (a b) c) (d) R 1 17 17 0 -1 4194304 1")
    with pytest.raises(ValueError, match="without flags"):
        is_exiting("17 (sh) S 1 2")


def test_identity_is_pid_and_start_time(child: subprocess.Popen[bytes]) -> None:
    who = identify(child.pid)
    assert who is not None
    assert who == identify(child.pid)
    assert who.start_ticks == int(Path(f"/proc/{child.pid}/stat").read_text().split()[21])
    handle = open_process(who)
    assert handle is not None
    os.close(handle)
    assert open_process(Identity(child.pid, who.start_ticks - 1)) is None, "another process had this pid"
    child.kill()
    child.wait()
    assert identify(child.pid) is None
    assert open_process(who) is None


async def test_several_callers_wait_for_one_end(child: subprocess.Popen[bytes]) -> None:
    handles = [os.pidfd_open(child.pid) for _ in range(3)]
    waiting = [asyncio.create_task(wait_ended(handle)) for handle in handles]
    spare = os.pidfd_open(child.pid)
    assert not await wait_ended_within(spare, 0.05)
    waiting[0].cancel()
    child.kill()
    await asyncio.gather(*waiting[1:])
    # The process has ended and is not reaped yet.
    again = os.pidfd_open(child.pid)
    assert await wait_ended_within(again, 10)
    for handle in (*handles, spare, again):
        os.close(handle)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]

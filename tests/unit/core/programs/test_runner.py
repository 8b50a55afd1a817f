"""Runs of programs: input, verdict, limits, and the removal of the sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.admission import SINGLE_USE_METADATA
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.errors import ErrorCode, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.programs import Comparison, ProgramParams, ProgramResult, ProgramStatus
from sandlot.model.sandboxes import LimitsChange
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.service import BASE, Bench, bench, detach_when_announced, serving
from tests.support.until import until

LIMITS = LimitsChange(pids=32768)

pytestmark = pytest.mark.real_guest  # needs real processes


def params(code: str, language: str = "python", **more: Any) -> ProgramParams:  # noqa: ANN401 - the fields of ProgramParams
    return ProgramParams(language, code, template="base", limits=LIMITS, **more)


async def run(at: Bench, code: str, language: str = "python", **more: Any) -> ProgramResult:  # noqa: ANN401
    return await at.node.programs.run(OPERATOR, params(code, language, **more))


async def test_empty_stdin_is_closed(at: Bench) -> None:
    assert (await run(at, "import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"


async def test_program_can_open_its_standard_streams_by_their_paths(at: Bench) -> None:
    code = "text = open('/dev/stdin').read()\nfor name in ('stdout', 'stderr'): open(f'/dev/{name}', 'w').write(text + name)"
    done = await run(at, code, stdin=b"to ")
    assert (done.status, done.stdout, done.stderr) == (ProgramStatus.COMPLETED, "to stdout", "to stderr"), done


@pytest.mark.parametrize("stream", [1, 2])
async def test_output_up_to_the_limit_is_kept_when_the_program_is_killed(at: Bench, stream: int) -> None:
    done = await run(at, f"yes >&{stream}", "bash", output_bytes=100_001)
    assert done.status is ProgramStatus.OUTPUT_LIMIT
    assert (len(done.stdout), len(done.stderr)) == ((100_001, 0) if stream == 1 else (0, 100_001))
    assert "100001 bytes" in done.detail
    assert done.signal == 9


@pytest.mark.parametrize("stream", [1, 2])
async def test_output_is_cut_at_the_limit_between_two_characters(at: Bench, stream: int) -> None:
    done = await run(at, f"import os\nwhile True: os.write({stream}, '☕'.encode() * 1000)", output_bytes=100_000)
    assert done.status is ProgramStatus.OUTPUT_LIMIT
    assert (done.stdout + done.stderr) == "☕" * 33_333


@pytest.mark.parametrize("comparison", Comparison)
@pytest.mark.parametrize("raw", [r"\xff", r"\xc0\x80", r"\xed\xa0\x80", r"\xe2\x98", r"1 2\xff\n"])
async def test_bytes_that_are_not_utf8_match_no_text(at: Bench, raw: str, comparison: Comparison) -> None:
    shown = (await run(at, f"printf '{raw}'", "bash")).stdout
    assert "\ufffd" in shown
    assert (await run(at, f"printf '{raw}'", "bash", expected_output=shown, comparison=comparison)).status is ProgramStatus.WRONG_ANSWER
    assert (await run(at, f"printf '{shown}'", "bash", expected_output=shown, comparison=comparison)).status is ProgramStatus.COMPLETED


async def test_background_process_that_floods_the_output_is_killed(at: Bench) -> None:
    done = await run(at, "setsid yes & sleep 60", "bash", output_bytes=1000)
    assert (done.status, len(done.stdout)) == (ProgramStatus.OUTPUT_LIMIT, 1000)


async def test_disconnected_client_leaves_no_sandbox(at: Bench) -> None:
    for moment in (0.0, 0.05, 0.3):
        leaving = asyncio.create_task(run(at, "sleep 60", "bash"))
        await asyncio.sleep(moment)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    await until(lambda: at.sandboxes.held == 0)
    assert at.driver.leftovers() == []


async def test_sandbox_is_marked_as_one_run_and_ends_by_itself(at: Bench) -> None:
    task = asyncio.create_task(run(at, "sleep 60", "bash", timeout_s=60, metadata={"whose": "mine"}))
    await until(lambda: any(sandbox.is_announced for sandbox in at.sandboxes.list(OPERATOR)))
    (sandbox,) = at.sandboxes.list(OPERATOR)
    assert dict(sandbox.metadata) == {"whose": "mine", **SINGLE_USE_METADATA}
    assert (sandbox.spec.timeout_s, sandbox.spec.network.mode) == (180, "none")
    task.cancel()
    await asyncio.wait({task})


async def test_sandbox_out_of_memory_is_a_result(at: Bench) -> None:
    task = asyncio.create_task(run(at, "echo before; sleep 60", "bash"))
    await _writing(at)
    (sandbox,) = at.sandboxes.list(OPERATOR)
    sandbox.request_end(Exit(ExitReason.OOM, "it took too much"))
    done = await task
    assert (done.status, done.stdout, done.exit_code, done.signal) == (ProgramStatus.MEMORY_EXCEEDED, "before\n", 137, 9)
    assert str(sandbox.spec.limits.memory_bytes) in done.detail


async def test_stopping_service_ends_the_run_with_an_error(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = MemoryDriver()
    async with serving(tmp_path, driver, keep=True) as service:
        stays = await service.internals.manager.create(OPERATOR, BASE)
        task = asyncio.create_task(service.node.programs.run(OPERATOR, params("sleep 60", "bash")))
        await until(lambda: any(sandbox.single_use and sandbox.is_announced for sandbox in service.internals.registry.list(OPERATOR)))
    with pytest.raises(SandboxEndedError, match="the service was stopped"):
        await task
    async with serving(tmp_path, driver) as service:
        assert [sandbox.id for sandbox in service.internals.registry.list(OPERATOR)] == [stays.id]
        await service.internals.registry.find(stays.id, OPERATOR).wait_reachable()
    assert driver.leftovers() == []


async def test_service_that_stops_when_the_sandbox_is_announced_ends_it(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    detached = detach_when_announced(monkeypatch)
    with pytest.raises(SandboxEndedError, match="the service was stopped"):
        await run(at, "sleep 60", "bash")
    await until(lambda: at.sandboxes.held == 0)
    assert [sandbox.detaching.is_set() for sandbox in detached] == [False]
    assert at.driver.leftovers() == []


async def test_oom_killed_process_is_reported(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    task = asyncio.create_task(run(at, "sleep 0.5; kill -9 $$", "bash"))
    await until(lambda: any(sandbox.is_announced for sandbox in at.sandboxes.list(OPERATOR)))
    (sandbox,) = at.sandboxes.list(OPERATOR)
    assert sandbox.instance is not None
    used = await sandbox.instance.usage()

    async def usage(*_: object) -> object:
        return replace(used, oom_kills=1)

    monkeypatch.setattr(type(sandbox.instance), "usage", usage)
    done = await task
    assert (done.status, done.exit_code) == (ProgramStatus.MEMORY_EXCEEDED, 137)


async def test_run_waits_for_capacity_for_a_limited_time(tmp_path: Path) -> None:
    async with bench(tmp_path, Settings(max_sandboxes=1)) as here:
        first = asyncio.create_task(run(here, "sleep 1; echo 1", "bash"))
        await until(lambda: here.sandboxes.held == 1)
        with pytest.raises(UnavailableError):
            await here.node.programs.run(OPERATOR, params("echo 2", "bash"), capacity_timeout_s=0)
        second = await here.node.programs.run(OPERATOR, params("echo 2", "bash"), capacity_timeout_s=60)
        assert second.stdout == "2\n"
        assert (await first).stdout == "1\n"


async def test_run_over_the_quota_creates_no_sandbox(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at.service.internals.execution_counter, "_quota_of", lambda _: Quota(executions_per_month=0))
    with pytest.raises(LimitError) as refused:
        await run(at, "echo 1", "bash")
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    assert at.sandboxes.list(OPERATOR, ended=True) == []


async def test_run_does_not_wait_for_a_stopping_service(at: Bench) -> None:
    at.sandboxes.refuse()
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError) as refused:
            await at.node.programs.run(OPERATOR, params("echo 1", "bash"), capacity_timeout_s=3600)
    assert refused.value.code is ErrorCode.SERVICE_UNAVAILABLE


async def test_lifetime_quota_limits_the_sandbox_of_a_run(at: Bench) -> None:
    principal = replace(OPERATOR, quota=replace(OPERATOR.quota, lifetime_s=30.0))
    assert (await at.node.programs.run(principal, params("echo 1", "bash", timeout_s=10))).stdout == "1\n"
    with pytest.raises(LimitError, match="at most 30 s"):
        await at.node.programs.run(principal, params("echo 1", "bash", timeout_s=31))


@pytest.mark.parametrize(
    "more",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": 3601},
        {"output_bytes": 0},
        {"output_bytes": 1 << 24},
        {"output_bytes": 10**400},
        {"tolerance": -1},
        {"env": {"a=b": "c"}},
        {"files": {"main.py": b""}},
        {"files": {"sub/../main.py": b""}},
        {"files": {"/workspace//main.py": b""}},
        {"files": {"a\0b": b""}},
        {"files": {f"{n}": b"" for n in range(101)}},
        {"code": "a\0b"},
        {"code": "\ud800"},
        {"code": "x" * ((4 << 20) + 1)},
    ],
)
def test_invalid_parameters_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(SandlotError):
        ProgramParams(**{"language": "python", "code": "", **more})


async def _writing(at: Bench) -> None:
    """Wait until the only run has written something."""
    await until(lambda: any(sandbox.is_announced for sandbox in at.sandboxes.list(OPERATOR)))

    async def written() -> bool:
        (sandbox,) = at.sandboxes.list(OPERATOR)
        return any(info.stdout_bytes for info in await at.node.processes.list(OPERATOR, sandbox.id))

    await until(written)

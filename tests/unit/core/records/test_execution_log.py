"""The log of runs: what it says of each, that nothing waits for it, and what becomes of it where the store fails or the service ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
import structlog

from sandlot.core.execution import changes
from sandlot.core.records import cell_results, write_behind
from sandlot.core.records.cell_results import decode
from sandlot.core.records.execution_log import MAX_BYTES, OUTPUT_BYTES, ExecutionLog, OpenLogEntry
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Keep, Retention
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal, Quota
from sandlot.model.buffer_budget import PART, BufferBudget
from sandlot.model.errors import ErrorCode, InternalError, LimitError, NotFoundError
from sandlot.model.executions import KILLED, CellError, CellResults, CellStarted, Cleared, Display, ExecutionOptions, Output, OutputGap
from sandlot.model.ids import NodeId, ProcessId, new_process_id, new_sandbox_id
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.repositories import Stored
from sandlot.model.specs import MIB, CellSpec, ProcessSpec, SandboxSpec, TemplateRef, User, shell_argv
from sandlot.store.executions import SqlExecutionRepository
from sandlot.store.store import SqlStore
from tests.support.clock import ManualClock
from tests.support.service import Bench
from tests.support.until import until

SOMEBODY = Principal(owner=OwnerId("0123456789ab"), name="somebody")


@pytest.fixture
async def still(clock: ManualClock) -> Sandbox:
    """A sandbox of which only its owner, its id and its state matter."""
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template=TemplateRef(LOCAL, "base"))
    return Sandbox(spec, owner=SOMEBODY.owner, name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)


class Failing(SqlExecutionRepository):
    """A table whose saves raise ``error`` if it is set."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.executions._database)  # noqa: SLF001 - the same table, but for its failures
        self.error: Exception | None = None

    async def save(self, records: Sequence[ExecutionRecord], results: Mapping[ExecutionId, bytes] = MappingProxyType({})) -> None:
        if self.error is not None:
            raise self.error
        await super().save(records, results)


def journal_of(table: SqlExecutionRepository, store: SqlStore, clock: ManualClock) -> tuple[ExecutionLog, Metrics]:
    metrics = Metrics()
    return ExecutionLog(table, NodeId("aaaa"), clock, metrics, Retention(store, Keep(), lambda _: Quota(), clock, metrics)), metrics


def disk_full() -> LimitError:
    return LimitError("The disk is full.", code=ErrorCode.NODE_DISK_FULL)


async def logged(at: Bench, id_: str) -> ExecutionRecord:
    return await at.node.history.execution(OPERATOR, id_)


async def test_entry_of_a_cell_has_output_and_exception(at: Bench, sandbox: Sandbox) -> None:
    done = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("print('out'); import sys; print('err', file=sys.stderr); 1/0"))
    found = await logged(at, done.outcome.execution)
    assert (found.kind, found.language, found.status, found.origin) == ("code", "python", "error", "native")
    assert (found.stdout, found.stderr, found.error) == ("out\n", "err\n", "ZeroDivisionError: division by zero")
    assert (found.owner, found.sandbox, found.argv, found.exit_code) == (sandbox.owner, sandbox.id, None, None)
    assert found.duration_s == done.outcome.duration_s


async def test_entry_of_a_command_has_exit_code_and_description(at: Bench, sandbox: Sandbox) -> None:
    done = await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=shell_argv("echo hi; exit 3")))
    found = await logged(at, done.outcome.process)
    assert (found.kind, found.argv, found.status, found.exit_code) == ("command", ("/bin/bash", "-c", "echo hi; exit 3"), "exited", 3)
    options = ExecutionOptions(origin="agentsandbox", language="bash", code="echo ho")
    done = await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("sh", "/tmp/x")), options=options)
    at.node.history.note_files(OPERATOR, done.outcome.process, 2)
    at.node.history.note_files(SOMEBODY, done.outcome.process, 3)  # ignored
    found = await logged(at, done.outcome.process)
    assert (found.kind, found.language, found.code, found.argv, found.origin) == ("code", "bash", "echo ho", None, "agentsandbox")
    assert found.files == 2


async def test_execution_of_a_disconnected_client_is_logged_as_killed(at: Bench, sandbox: Sandbox) -> None:
    run = await at.node.processes.start(sandbox, ProcessSpec(argv=("sleep", "1000")))
    await run.close()
    await until(lambda: is_killed(at, run.id))
    execution = await at.node.code.start(sandbox, CellSpec("print('x', flush=True); import time; time.sleep(1000)"))
    async for event in execution:
        if isinstance(event, Output):
            break
    await execution.close()
    await until(lambda: is_killed(at, execution.id))
    assert (await logged(at, execution.id)).stdout == "x\n"


async def is_killed(at: Bench, id_: str) -> bool:
    return (await logged(at, id_)).status == "killed"


@pytest.mark.real_guest
async def test_processes_of_the_service_are_not_logged(at: Bench, sandbox: Sandbox) -> None:
    tracker = await changes.track(sandbox, ["/tmp"], User.USER)
    tracker.close()
    assert (await at.node.history.executions(OPERATOR)).items == []


async def test_beginning_and_end_of_large_output_are_kept(at: Bench, sandbox: Sandbox) -> None:
    done = await at.node.processes.run(
        OPERATOR, sandbox.id, ProcessSpec(argv=shell_argv("printf begin; head -c 3000000 /dev/zero | tr '\\0' x; printf end"))
    )
    found = await logged(at, done.outcome.process)
    assert found.stdout.startswith("beginx")
    assert found.stdout.endswith("xend")
    assert found.stdout_omitted_bytes == 3_000_008 - OUTPUT_BYTES
    assert len(found.stdout) < OUTPUT_BYTES + 100


async def test_owner_sees_its_entries_newest_first(at: Bench, sandbox: Sandbox) -> None:
    history = at.node.history
    made = [(await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("true",)))).outcome.process for _ in range(3)]
    assert {str(record.id) for record in (await history.executions(OPERATOR, sandbox=sandbox.id)).items} == set(made)
    assert len((await history.executions(OPERATOR, limit=2)).items) == 2
    assert (await history.executions(SOMEBODY)).items == []
    for principal, id_ in ((SOMEBODY, made[0]), (OPERATOR, "f" * 32), (OPERATOR, "../x"), (OPERATOR, "x" * 5000)):
        with pytest.raises(NotFoundError) as refused:
            await history.execution(principal, id_)
        assert refused.value.code is ErrorCode.EXECUTION_NOT_FOUND


async def test_entries_wait_until_the_store_works_again(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    table = Failing(store)
    execution_log, metrics = journal_of(table, store, clock)
    table.error = disk_full()
    line = execution_log.begin(still, new_process_id(), argv=("true",))
    with structlog.testing.capture_logs() as said:
        assert not await execution_log.writer.flush()
    assert [entry["event"] for entry in said] == ["execution_log.not_written"]
    line.add(Output(1, 0, b"x"))
    line.end("exited", exit_code=0)
    table.error = None
    assert await execution_log.writer.flush()
    assert [(record.status, record.stdout) for record in await table.page(owner=None, sandbox=None, before=None, limit=9)] == [("exited", "x")]
    assert execution_log.memory.taken_bytes == 0
    assert b'sandlot_store_failures_total{what="executions"} 1.0' in metrics.text()


async def test_entries_beyond_the_limit_are_lost_with_a_warning(
    store: SqlStore, still: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.core.records.execution_log.MAX_ENTRIES", 3 * PART)
    table = Failing(store)
    execution_log, metrics = journal_of(table, store, clock)
    table.error = disk_full()
    for _ in range(5):
        execution_log.begin(still, new_process_id(), argv=("true",)).end("exited", exit_code=0)
    with structlog.testing.capture_logs() as said:
        await execution_log.aclose()
    assert [entry["entries"] for entry in said if entry["event"] == "execution_log.entries_lost"] == [4, 3]
    assert execution_log.memory.taken_bytes == 0
    assert b"sandlot_executions_lost_total 7.0" in metrics.text()


async def test_entry_that_the_store_never_takes_is_lost_alone(
    store: SqlStore, still: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Failing(store)
    execution_log, metrics = journal_of(table, store, clock)
    ids = [ExecutionId(new_process_id()) for _ in range(5)]
    save = table.save

    async def refuse(records: Sequence[ExecutionRecord], results: Mapping[ExecutionId, bytes]) -> None:
        if any(record.id == ids[2] for record in records):
            raise InternalError("It refused a statement.")
        await save(records, results)

    monkeypatch.setattr(table, "save", refuse)
    for id_ in ids:
        execution_log.begin(still, ProcessId(id_), argv=("true",))
    assert await execution_log.writer.flush()
    found = await store.executions.page(owner=None, sandbox=None, before=None, limit=9)
    assert {record.id for record in found} == set(ids) - {ids[2]}
    assert b"sandlot_executions_lost_total 1.0" in metrics.text()
    assert execution_log.memory.taken_bytes == 0


@pytest.mark.parametrize("bound", ["lines", "bytes"])
async def test_entries_of_one_owner_leave_room_for_others(
    store: SqlStore, still: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "lines":
        monkeypatch.setattr("sandlot.core.records.execution_log.MAX_ENTRIES", 4 * PART)
    else:
        monkeypatch.setattr("sandlot.core.records.execution_log.MAX_BYTES", 40_000)
    table = Failing(store)
    execution_log, _ = journal_of(table, store, clock)
    table.error = disk_full()
    for _ in range(100):
        entry = execution_log.begin(still, new_process_id(), argv=("true",))
        entry.add(Output(1, 0, b"x" * 10_000))
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template=TemplateRef(LOCAL, "base"))
    other = Sandbox(spec, owner=OwnerId("b" * 12), name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)
    last = new_process_id()
    entry = execution_log.begin(other, last, argv=("true",))
    entry.add(Output(1, 0, b"theirs"))
    entry.end("exited", exit_code=0)
    table.error = None
    assert await execution_log.writer.flush()
    found = await store.executions.get(ExecutionId(last))
    assert found is not None
    assert (found.status, found.stdout) == ("exited", "theirs")


async def test_output_beyond_the_limit_is_counted_and_not_kept(
    store: SqlStore, still: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.core.records.execution_log.MAX_BYTES", 100_000 * PART)
    execution_log, _ = journal_of(store.executions, store, clock)
    lines = [execution_log.begin(still, new_process_id(), argv=("true",)) for _ in range(10)]
    for entry in lines:
        for _ in range(20):
            entry.add(Output(1, 0, b"x" * 10_000))
            assert execution_log.memory.taken_bytes <= 100_000 + 20_000
        entry.add(OutputGap(channel=2, bytes=7, offset=0))
    for entry in lines:
        entry.end("exited", exit_code=0)
        assert await execution_log.writer.flush()
    found = await store.executions.page(owner=None, sandbox=None, before=None, limit=99)
    assert {(record.stdout.count("x") + record.stdout_omitted_bytes, record.stderr_omitted_bytes) for record in found} == {(200_000, 7)}
    assert execution_log.memory.taken_bytes == 0


def cell(execution_log: ExecutionLog, sandbox: Sandbox) -> OpenLogEntry:
    return execution_log.begin(sandbox, new_process_id(), ExecutionOptions(language="python", code="x"))


async def test_results_of_a_cell_are_written_with_its_entry_and_removed_with_it(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)
    entry = cell(execution_log, still)
    error = CellError("ValueError", "no", ("Traceback", "ValueError: no"))
    figure = Display({"text/plain": "<Figure>", "image/png": b"\x89PNG"}, main=True, metadata={"image/png": {"width": 3}})
    for event in (CellStarted(7), figure, error):
        entry.add(event)
    entry.end("error")
    assert await execution_log.writer.flush()
    record, results = await store.executions.get(ExecutionId(entry.id)), await store.executions.results(ExecutionId(entry.id))
    assert record is not None
    assert results is not None
    assert decode(results) == CellResults((figure,), 0, error)
    assert (record.execution_count, record.results_bytes, record.error) == (7, len(results), "ValueError: no")
    assert record.size_bytes > len(results)
    execution_log.set_files(entry.id, 3)
    assert await execution_log.writer.flush()
    assert await store.executions.results(ExecutionId(entry.id)) == results
    assert await store.executions.get(ExecutionId(entry.id)) == replace(record, files=3)
    assert execution_log.memory.taken_bytes == 0
    await store.executions.trim(still.owner, keep=Stored(0, 0))
    assert await store.executions.results(ExecutionId(entry.id)) is None


async def test_results_that_a_cell_updated_or_cleared_are_stored_in_their_last_form(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)

    async def stored(*events: Display | Cleared | Output) -> list[str | bytes]:
        entry = cell(execution_log, still)
        for event in events:
            entry.add(event)
        entry.end("ok")
        await execution_log.writer.flush()
        found = await store.executions.results(ExecutionId(entry.id))
        return [] if found is None else [shown.data["text/plain"] for shown in decode(found).results]

    def shown(text: str, *, update: bool = False) -> Display:
        return Display({"text/plain": text}, main=False, display_id="a", update=update)

    assert await stored(shown("1"), shown("2", update=True)) == ["2"]
    assert await stored(shown("1"), Cleared(wait=False)) == []
    assert await stored(shown("1"), Cleared(wait=True)) == ["1"]
    assert await stored(shown("1"), Cleared(wait=True), Output(1, 0, b"x")) == []
    assert execution_log.memory.taken_bytes == 0


async def test_results_beyond_the_limits_are_counted_and_leave_the_entry(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)
    entries = [cell(execution_log, still) for _ in range(6)]
    for entry in entries:
        for number in range(10):
            entry.add(Display({"text/plain": f"{number}", "image/png": bytes(MIB)}, main=False))
        assert execution_log.memory.taken_bytes <= MAX_BYTES // PART
    for entry in entries:
        entry.end("ok")
    assert await execution_log.writer.flush()
    kept = []
    for entry in entries:
        stored = await store.executions.results(ExecutionId(entry.id))
        assert stored is not None
        assert len(stored) <= cell_results.MAX_BYTES
        found = decode(stored)
        assert len(found.results) + found.omitted == 10
        kept.append(len(found.results))
    assert kept == [3, 3, 3, 3, 3, 0], "the memory of one owner has room for 15"
    assert execution_log.memory.taken_bytes == 0


async def test_entry_without_memory_for_its_results_keeps_its_output(
    store: SqlStore, still: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.core.records.execution_log.MAX_BYTES", 100_000 * PART)
    execution_log, _ = journal_of(store.executions, store, clock)
    entry = cell(execution_log, still)
    entry.add(Output(1, 0, b"out"))
    for _ in range(3):
        entry.add(Display({"text/plain": "x" * 60_000}, main=False))
    entry.end("ok")
    assert await execution_log.writer.flush()
    record, stored = await store.executions.get(ExecutionId(entry.id)), await store.executions.results(ExecutionId(entry.id))
    assert record is not None
    assert stored is not None
    assert (record.stdout, len(decode(stored).results), decode(stored).omitted) == ("out", 1, 2)


async def test_pending_entry_without_memory_for_its_results_counts_them(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)
    record = ExecutionRecord(ExecutionId(new_process_id()), still.owner, still.id, "code", clock.now(), "ok")
    execution_log.memory_of[still.owner].take_anyway(MAX_BYTES // PART - 100_000)
    execution_log.put(record, CellResults([Display({"a/b": "x" * 200_000}, main=False)], 1))
    execution_log.memory_of[still.owner].give(MAX_BYTES // PART - 100_000)
    assert await execution_log.writer.flush()
    stored = await store.executions.results(record.id)
    assert stored is not None
    assert decode(stored) == CellResults(omitted=2)


async def test_number_of_files_of_a_pending_entry_keeps_its_results(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)
    entry = cell(execution_log, still)
    entry.add(Display({"a/b": "x"}, main=False))
    entry.end("ok")
    execution_log.set_files(entry.id, 3)
    assert await execution_log.writer.flush()
    record, stored = await store.executions.get(ExecutionId(entry.id)), await store.executions.results(ExecutionId(entry.id))
    assert record is not None
    assert stored is not None
    assert (record.files, record.results_bytes, len(decode(stored).results)) == (3, len(stored), 1)


async def test_owner_reads_the_results_of_its_cells_only(at: Bench, sandbox: Sandbox) -> None:
    done = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("6 * 7"))
    found = await at.node.history.results(OPERATOR, done.outcome.execution)
    assert found == CellResults(tuple(done.results))
    with pytest.raises(NotFoundError):
        await at.node.history.results(SOMEBODY, done.outcome.execution)
    command = await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("true",)))
    assert await at.node.history.results(OPERATOR, command.outcome.process) == CellResults()


async def test_results_of_a_running_cell_can_be_read(at: Bench, sandbox: Sandbox) -> None:
    entry = cell(at.service.internals.execution_log, sandbox)
    entry.add(Display({"text/plain": "so far"}, main=False))
    assert [shown.data for shown in (await at.node.history.results(OPERATOR, entry.id)).results] == [{"text/plain": "so far"}]
    entry.end(KILLED)


async def test_entry_is_written_within_a_second(at: Bench, sandbox: Sandbox) -> None:
    execution_log, table = at.service.internals.execution_log, at.service.store.executions
    entry = execution_log.begin(sandbox, new_process_id(), argv=("true",))

    async def there() -> bool:
        return await table.get(ExecutionId(entry.id)) is not None

    await until(there)  # by itself: nobody has read the log
    assert write_behind.FLUSH_S < 1
    entry.end(KILLED)


async def test_executions_of_other_nodes_are_not_recovered(store: SqlStore, still: Sandbox, clock: ManualClock) -> None:
    execution_log, _ = journal_of(store.executions, store, clock)
    ours = ExecutionRecord(
        id=ExecutionId(new_process_id()),
        owner=still.owner,
        sandbox=still.id,
        kind="command",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        status="running",
    )
    theirs = replace(ours, id=ExecutionId(new_process_id()), sandbox=new_sandbox_id(NodeId("bbbb")))
    await store.executions.save([ours, theirs])
    assert await execution_log.unfinished() == [ours]


async def test_hanging_store_does_not_delay_an_execution(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = asyncio.Event()

    async def hang(_records: Sequence[ExecutionRecord], _results: Mapping[ExecutionId, bytes]) -> None:
        await hangs.wait()

    monkeypatch.setattr(at.service.store.executions, "save", hang)
    for _ in range(3):
        assert (await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("true",)))).outcome.exit_code == 0
        await asyncio.sleep(write_behind.FLUSH_S / 2)
    hangs.set()

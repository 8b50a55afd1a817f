"""The memory that is held for clients: never more than it may, and no sandbox takes all of it."""

from __future__ import annotations

import pytest

from sandlot.core.execution.output import OutputCollector
from sandlot.model.access import OwnerId
from sandlot.model.buffer_budget import PART, BufferBudget, BufferShares
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.executions import Display, Output, OutputGap
from sandlot.model.output_capture import COPIES, HEAD_BYTES, TAIL_BYTES


def test_bytes_are_taken_and_given_back() -> None:
    buffers = BufferBudget(100)
    buffers.take(60)
    assert not buffers.try_take(41)
    with pytest.raises(UnavailableError) as busy:
        buffers.take(41)
    assert (busy.value.code, busy.value.retryable, busy.value.fields["retry_after_s"]) == (ErrorCode.BUSY, True, 1)
    assert buffers.taken_bytes == 60
    buffers.give(20)
    buffers.take(60)
    assert buffers.taken_bytes == 100


def test_existing_data_is_counted_beyond_the_limit() -> None:
    buffers = BufferBudget(10)
    buffers.take_anyway(15)
    assert not buffers.try_take(1)
    assert buffers.try_take(0), "a request without data is not refused"
    buffers.give(15)
    assert buffers.try_take(10)


def test_share_is_limited_by_itself_and_by_the_whole() -> None:
    whole = BufferBudget(100)
    parts = [whole.part() for _ in range(PART + 1)]
    assert not parts[0].try_take(100 // PART + 1)
    for part in parts[:PART]:
        part.take(100 // PART)
    assert whole.taken_bytes == 100
    assert not parts[PART].try_take(1)
    parts[0].give(1)
    assert parts[PART].try_take(1)


def test_owner_holds_at_most_as_much_as_is_left_for_others() -> None:
    shares = BufferShares(120)
    first, second = shares.of(OwnerId("first")), shares.of(OwnerId("second"))
    assert not first.try_take(61)
    first.take(60)
    with pytest.raises(UnavailableError) as busy:
        first.take(1)
    assert busy.value.code is ErrorCode.BUSY
    second.take(30)
    assert not second.try_take(1)
    assert shares.of(OwnerId("third")).try_take(15)
    second.give(30)
    assert shares.of(OwnerId("third")) is not first
    assert first.part().room_bytes <= 0 < second.part().room_bytes


def test_responses_beyond_a_share_leave_half_of_the_budget_to_others() -> None:
    shares = BufferShares(120)
    first, second = shares.of(OwnerId("first")), shares.of(OwnerId("second"))
    first.take_anyway(1000)
    assert not first.try_take(1)
    assert second.try_take(30)
    first.give(1000)
    second.give(30)
    assert shares.taken_bytes == 0
    assert first.try_take(60)


def test_share_is_kept_while_it_is_used() -> None:
    shares, owner = BufferShares(120), OwnerId("first")
    sandbox = shares.of(owner).part()
    sandbox.take(20)
    assert shares.of(owner).taken_bytes == 20
    sandbox.give(20)
    assert shares.taken_bytes == 0


def test_output_beyond_the_budget_is_counted_and_not_kept() -> None:
    buffers = BufferBudget(10 * COPIES)
    output = OutputCollector(buffers)
    output.add(Output(1, 0, b"12345678"))
    output.add(Output(2, 0, b"abc"))
    output.add(Output(2, 3, b"de"))
    assert (output.captures[1].content(), output.captures[1].omitted) == (b"12345678", 0)
    assert output.captures[2].omitted == 3
    assert output.captures[2].content().endswith(b"de")
    assert buffers.taken_bytes == 10 * COPIES
    output.add(Display({"text/plain": "a result"}, main=True))
    assert (output.displays, output.omitted) == ([], 1)
    output.add(OutputGap(1, 5, 8))
    assert output.captures[1].omitted == 5
    output.close()
    output.close()
    assert buffers.taken_bytes == 0


def test_flood_takes_only_the_memory_that_is_kept() -> None:
    buffers = BufferBudget(1 << 30)
    output = OutputCollector(buffers)
    for number in range(64):
        output.add(Output(1, number << 16, bytes(1 << 16)))
    assert output.captures[1].held_bytes == HEAD_BYTES + TAIL_BYTES
    assert buffers.taken_bytes == COPIES * output.captures[1].held_bytes
    assert output.captures[1].omitted == (64 << 16) - HEAD_BYTES - TAIL_BYTES
    output.close()
    assert buffers.taken_bytes == 0

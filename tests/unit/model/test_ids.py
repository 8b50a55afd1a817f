"""Ids: fixed length, a safe alphabet, and the node that created them."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import ids
from sandlot.model.ids import IdSource


def source_of(random: Random) -> IdSource:
    return lambda count: bytes(random.randrange(256) for _ in range(count))


@given(st.randoms(use_true_random=False))
def test_node_id_has_its_form(random: Random) -> None:
    assert ids.NODE_ID.fullmatch(ids.new_node_id(source_of(random)))


@given(st.randoms(use_true_random=False))
def test_sandbox_id_has_24_characters_and_carries_its_node(random: Random) -> None:
    node = ids.new_node_id(source_of(random))

    sandbox = ids.new_sandbox_id(node, source_of(random))

    assert ids.SANDBOX_ID.fullmatch(sandbox)
    assert len(sandbox) == 24
    assert ids.node_of(sandbox) == node


@pytest.mark.parametrize(
    "create, pattern, length",
    [
        (lambda source: ids.new_snapshot_id(ids.NodeId("abcd"), source), ids.SNAPSHOT_ID, 26),
        (lambda source: ids.new_volume_id(ids.NodeId("abcd"), source), ids.VOLUME_ID, 25),
        (ids.new_file_id, ids.FILE_ID, 21),
        (ids.new_webhook_id, ids.WEBHOOK_ID, 19),
        (ids.new_process_id, ids.PROCESS_ID, 32),
        (ids.new_context_id, ids.CONTEXT_ID, 20),
    ],
    ids=["snapshot", "volume", "file", "webhook", "process", "context"],
)
def test_id_has_its_form_and_a_fixed_length(create: Callable[[IdSource], str], pattern: re.Pattern[str], length: int) -> None:
    created = create(source_of(Random(1)))

    assert pattern.fullmatch(created)
    assert len(created) == length

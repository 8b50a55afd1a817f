"""Ids: fixed length, safe in names, and carrying their node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.ids import NODE_ID, PROCESS_ID, SANDBOX_ID, new_node_id, new_process_id, new_sandbox_id, node_of


@given(st.randoms(use_true_random=False))
def test_ids_have_their_form_and_carry_their_node(random: object) -> None:
    def source(count: int) -> bytes:
        return bytes(random.randrange(256) for _ in range(count))  # type: ignore[attr-defined]

    node = new_node_id(source)
    sandbox = new_sandbox_id(node, source)
    assert NODE_ID.fullmatch(node)
    assert SANDBOX_ID.fullmatch(sandbox)
    assert len(sandbox) == 24
    assert node_of(sandbox) == node
    assert PROCESS_ID.fullmatch(new_process_id(source))

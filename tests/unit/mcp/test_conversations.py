"""Conversations: bounded, and apart from each other."""

from __future__ import annotations

from sandlot.mcp.conversations import Conversations


def test_conversations_used_longest_ago_are_forgotten() -> None:
    kept = Conversations(2)
    first, second = kept.get("a"), kept.get("b")
    assert kept.get("a") is first
    kept.get("c")
    assert len(kept) == 2
    assert kept.get("a") is first
    assert kept.get("b") is not second


def test_ended_conversation_is_returned_once() -> None:
    kept = Conversations(2)
    first = kept.get("a")
    assert kept.pop("a") is first
    assert kept.pop("a") is None

"""Sandboxes of sessions: bounded, and apart from each other."""

from __future__ import annotations

from sandlot.mcp.session_sandboxes import SessionSandboxes


def test_sessions_used_longest_ago_are_forgotten() -> None:
    kept = SessionSandboxes(2)
    first, second = kept.get("a"), kept.get("b")
    assert kept.get("a") is first
    kept.get("c")
    assert len(kept) == 2
    assert kept.get("a") is first
    assert kept.get("b") is not second


def test_sandbox_of_an_ended_session_is_returned_once() -> None:
    kept = SessionSandboxes(2)
    first = kept.get("a")
    assert kept.pop("a") is first
    assert kept.pop("a") is None

"""Sandlot for models: the tools of a sandbox for each SDK, and an agent loop.

The adapters are modules of the same names as their packages, such as ``sandlot.agents.anthropic``; each needs its package, and nothing here imports
an adapter.
"""

from __future__ import annotations

from sandlot.agents.conversation import AsyncSandboxTools, SandboxTools
from sandlot.agents.loop import (
    AgentEvent,
    AgentLimits,
    AgentRun,
    AnswerDiscarded,
    AnswerFinished,
    CallFinished,
    CallOutput,
    CallStarted,
    TextPiece,
    run,
    run_async,
)
from sandlot.agents.models.base import Answer, ToolCall, Usage
from sandlot.agents.rendering import show_transcript, transcript_to_html, transcript_to_markdown
from sandlot.agents.transcript import read_transcript

__all__ = [
    "AgentEvent",
    "AgentLimits",
    "AgentRun",
    "Answer",
    "AnswerDiscarded",
    "AnswerFinished",
    "AsyncSandboxTools",
    "CallFinished",
    "CallOutput",
    "CallStarted",
    "SandboxTools",
    "TextPiece",
    "ToolCall",
    "Usage",
    "read_transcript",
    "run",
    "run_async",
    "show_transcript",
    "transcript_to_html",
    "transcript_to_markdown",
]

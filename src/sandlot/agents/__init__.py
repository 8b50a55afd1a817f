"""Sandlot for models: the tools of a sandbox for each SDK, and an agent loop in the process of the caller. ``service`` runs agents in the service.

The adapters are modules of the same names as their packages, such as ``sandlot.agents.anthropic``; each needs its package, and nothing here imports
an adapter. The public names are imported on first use, so that a service that runs agents does not load the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from sandlot.agents.sandbox_tools import AsyncSandboxTools, SandboxTools
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


if not TYPE_CHECKING:  # a type checker would otherwise accept every name
    _MODULES = {
        "AgentEvent": "sandlot.agents.loop",
        "AgentLimits": "sandlot.agents.loop",
        "AgentRun": "sandlot.agents.loop",
        "Answer": "sandlot.agents.models.base",
        "AnswerDiscarded": "sandlot.agents.loop",
        "AnswerFinished": "sandlot.agents.loop",
        "AsyncSandboxTools": "sandlot.agents.sandbox_tools",
        "CallFinished": "sandlot.agents.loop",
        "CallOutput": "sandlot.agents.loop",
        "CallStarted": "sandlot.agents.loop",
        "SandboxTools": "sandlot.agents.sandbox_tools",
        "TextPiece": "sandlot.agents.loop",
        "ToolCall": "sandlot.agents.models.base",
        "Usage": "sandlot.agents.models.base",
        "read_transcript": "sandlot.agents.transcript",
        "run": "sandlot.agents.loop",
        "run_async": "sandlot.agents.loop",
        "show_transcript": "sandlot.agents.rendering",
        "transcript_to_html": "sandlot.agents.rendering",
        "transcript_to_markdown": "sandlot.agents.rendering",
    }

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'sandlot.agents' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - loaded only when a public name is used

        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})

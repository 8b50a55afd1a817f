"""Limits of the runs of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.model.specs import KIB, MIB

MAX_MESSAGE_BYTES: Final = 256 * KIB
"""Maximum size of a user's message in UTF-8."""
MAX_MODEL_TEXT_CHARS: Final = 256 * KIB
"""Maximum number of characters in a text of a model and in the arguments of a tool call."""
MAX_CONVERSATION_BYTES: Final = 32 * MIB
"""Size of the stored conversation with a model, images included, beyond which a session takes no more messages."""


@dataclass(frozen=True, slots=True)
class HostedRunLimits:
    """Limits of runs, which the operator sets.

    Args:
        model_requests: Maximum requests to the model in one run.
        tool_calls: Maximum tool calls in one run.
        run_s: Maximum seconds of one run.
        session_tokens: Maximum tokens of a session, read and written. None: no limit.
        session_cost_usd: Maximum price of the tokens of a session in US dollars, for models with configured prices. None: no limit.
        runs_per_key: Maximum active runs of one key.
        runs: Maximum active runs of the node.
        session_keep_s: Seconds without a new event after which a session is deleted.
    """

    model_requests: int = 50
    tool_calls: int = 100
    run_s: float = 1200.0
    session_tokens: int | None = None
    session_cost_usd: float | None = None
    runs_per_key: int = 4
    runs: int = 16
    session_keep_s: float = 30 * 86400.0

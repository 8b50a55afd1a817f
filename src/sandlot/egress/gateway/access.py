"""State that all connections of one sandbox share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sandlot.egress.gateway.activity import ActivityLog
from sandlot.egress.gateway.rate import RateLimit
from sandlot.egress.outbound.connector import Connector
from sandlot.egress.policy.decisions import PolicyDecisions
from sandlot.egress.policy.refusals import Refusal


@dataclass(slots=True)
class Access:
    """State that all connections of one sandbox share.

    Args:
        decisions: Present policy of the sandbox.
        rate: Rate limit of the bytes in both directions.
        connects: Limits the connections that are being opened.
        on_refused: Called with each refusal, and the step that has failed.
    """

    sandbox: str
    connector: Connector
    decisions: PolicyDecisions
    activity: ActivityLog
    rate: RateLimit | None
    connects: asyncio.Semaphore
    on_refused: Callable[[Refusal, str], object]

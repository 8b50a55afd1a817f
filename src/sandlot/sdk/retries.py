"""Whether a call is made again, and after how long. Pure.

Laws:
- A call is made again where its answer says ``retryable``: after the time that the answer gives (Retry-After), or where it gives none, after one
  that grows.
- What was certainly not sent is sent again for some seconds, where the service was there before: it may be about to come back.
- What was cut in the middle may have been done. It is repeated only where the service does it once however often it is asked (Idempotency-Key).
- A stream of events that goes on from where it was cut is asked for again, as long as something comes between two cuts.
- There is an end to each of them, and no two clients wait equally long, so that they do not come back all at once.
"""

from __future__ import annotations

import random

MAX_TRIES = 5
LONGEST_WAIT_S = 30.0
"""The longest single wait; a service that asks for more gets its error shown instead."""
RECONNECT_S = 30.0
"""Seconds for which a client waits for a service that it has reached before. A killed service is back within 2 s where something starts it; on a
host with four times as many busy processes as cores, 10 s were not enough."""

_FIRST_S, _MOST_S = 0.5, 8.0
_FIRST_CONNECT_S, _MOST_CONNECT_S = 0.05, 1.0
_SPREAD = 0.25


def roll() -> float:
    """A number from 0 to 1, for the waits."""
    return random.random()  # noqa: S311 - it spreads clients over time and protects nothing


def refused_wait_s(tries: int, *, retryable: bool, retry_after: str | None, luck: float) -> float | None:
    """How long to wait after an answer that was a refusal; None where the call is not made again.

    Args:
        tries: How often it was made, 1 and more.
        retryable: The service's word.
        retry_after: The header (RFC 9110, 10.2.3), in seconds; the service does not use its other form, a date.
        luck: Of :func:`roll`.
    """
    if not retryable or tries >= MAX_TRIES:
        return None
    asked_s = _seconds(retry_after)
    if asked_s is None:
        return min(_FIRST_S * 2.0 ** (tries - 1), _MOST_S) * (1 - _SPREAD * luck)
    return asked_s * (1 + _SPREAD * luck) if asked_s <= LONGEST_WAIT_S else None


def unreached_wait_s(tries: int, waited_s: float, *, met: bool, luck: float) -> float | None:
    """How long to wait after a connection that did not come about; None where it is not tried again.

    Args:
        tries: How often it was tried, 1 and more.
        waited_s: What was waited for it already.
        met: Whether the service has answered this client before.
        luck: Of :func:`roll`.
    """
    if not met or waited_s >= RECONNECT_S:
        return None
    return min(_FIRST_CONNECT_S * 2.0 ** (tries - 1), _MOST_CONNECT_S) * (1 - _SPREAD * luck)


def cut_wait_s(tries: int, *, once: bool, luck: float) -> float | None:
    """How long to wait after an answer that broke off; None where the call is not made again.

    Args:
        tries: How often it was made, 1 and more.
        once: Whether the service does it once however often it is asked.
        luck: Of :func:`roll`.
    """
    return refused_wait_s(tries, retryable=once, retry_after=None, luck=luck)


def _seconds(header: str | None) -> float | None:
    """A header's seconds; None where it has none that can be waited."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # not for NaN

"""Retry policies: how long to wait before a request is repeated. Pure.

- A refused request is repeated if its error is ``retryable``: after the time in ``Retry-After``, otherwise after growing times.
- A request that could not be sent is repeated for some seconds if the service was reached before, because it may be restarting.
- A request whose connection broke may have been carried out. It is repeated only if it is idempotent.
- An event stream is continued where it was cut, as long as each attempt receives something.
- Every policy ends, and waiting times are random, so that clients do not return all at the same time.
"""

from __future__ import annotations

import random

MAX_TRIES = 5
LONGEST_WAIT_S = 30.0
"""Longest single wait. If the service asks for a longer one, the error is raised."""
RECONNECT_S = 30.0
"""Seconds for which a client waits for a service that it has reached before. A supervisor restarts a killed service within 2 s; on a host with four
times as many busy processes as cores, 10 s were too short."""

_FIRST_S, _MOST_S = 0.5, 8.0
_FIRST_CONNECT_S, _MOST_CONNECT_S = 0.05, 1.0
_SPREAD = 0.25


def roll() -> float:
    """Return a random number from 0 to 1 for the waiting times."""
    return random.random()  # noqa: S311 - spreads clients over time


def refused_wait_s(tries: int, *, retryable: bool, retry_after: str | None, luck: float) -> float | None:
    """Return the seconds to wait after a refused request; None if it is not repeated.

    Args:
        tries: Number of attempts so far, at least 1.
        retryable: ``retryable`` of the error.
        retry_after: Header ``Retry-After`` (RFC 9110, 10.2.3) in seconds; the service does not send dates.
        luck: Result of :func:`roll`.
    """
    if not retryable or tries >= MAX_TRIES:
        return None
    asked_s = _seconds(retry_after)
    if asked_s is None:
        return min(_FIRST_S * 2.0 ** (tries - 1), _MOST_S) * (1 - _SPREAD * luck)
    return asked_s * (1 + _SPREAD * luck) if asked_s <= LONGEST_WAIT_S else None


def unreached_wait_s(tries: int, waited_s: float, *, met: bool, luck: float) -> float | None:
    """Return the seconds to wait after a failed connection; None if it is not tried again.

    Args:
        tries: Number of attempts so far, at least 1.
        waited_s: Seconds waited so far.
        met: True if the service has accepted a connection of this client before.
        luck: Result of :func:`roll`.
    """
    if not met or waited_s >= RECONNECT_S:
        return None
    return min(_FIRST_CONNECT_S * 2.0 ** (tries - 1), _MOST_CONNECT_S) * (1 - _SPREAD * luck)


def cut_wait_s(tries: int, *, once: bool, luck: float) -> float | None:
    """Return the seconds to wait after a lost connection; None if the request is not repeated.

    Args:
        tries: Number of attempts so far, at least 1.
        once: True if the service carries the request out once, however often it arrives.
        luck: Result of :func:`roll`.
    """
    return refused_wait_s(tries, retryable=once, retry_after=None, luck=luck)


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # also for NaN

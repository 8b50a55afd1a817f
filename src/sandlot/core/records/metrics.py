"""What a service counts and measures, for Prometheus (its text format, 0.0.4).

Law: No label has a value that a client or a sandbox chose: no ids, no names, no paths but those of routes. Each metric is a bounded number of
series, whoever asks for what.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sandlot.model.errors import ErrorCode
from sandlot.model.ports import ExitReason
from sandlot.model.states import State, is_terminal

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

CREATE_S = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 5, 15, 60, 300)
"""Of a create: containers take 0.05 s, gVisor 0.35 s, the first one of a template builds it."""
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
LAG_EVERY_S = 0.5
"""How often the loop's lag is measured."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNMATCHED = "unmatched"
"""The route of a request that has none."""
KINDS = frozenset({"code", "command"})
OUTCOMES = frozenset({"ok", "error", "timeout", "killed", "died", "exited", "signalled", "pids", "oom", "lost"})


class Metrics:
    """Metrics of one service, with a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._creates = Counter("sandlot_creates", "Sandboxes that were asked for.", ["source", "isolation", "outcome"], registry=registry)
        self._create_s = Histogram(
            "sandlot_create_seconds", "From the request to a running sandbox.", ["isolation"], buckets=CREATE_S, registry=registry
        )
        self._runs = Counter("sandlot_runs", "Runs of code and commands that ended.", ["kind", "outcome"], registry=registry)
        self._begun = Counter("sandlot_runs_begun", "Runs of code and commands that were begun.", ["kind"], registry=registry)
        self._failures = Counter("sandlot_failures", "Failures that clients were told, by code.", ["code"], registry=registry)
        self._requests = Counter(
            "sandlot_http_requests", "Requests by the template of their route.", ["method", "route", "status"], registry=registry
        )
        self._request_s = Histogram("sandlot_http_request_seconds", "Until the end of the answer.", ["route"], buckets=REQUEST_S, registry=registry)
        self._lag = Histogram("sandlot_event_loop_lag_seconds", "How late the event loop came.", buckets=LAG_S, registry=registry)
        self._store = Counter("sandlot_store_failures", "Writes that the store refused, beside requests.", ["what"], registry=registry)
        self._lost = Counter("sandlot_executions_lost", "Lines of the log of runs that were never written.", registry=registry)
        self._claims = Counter("sandlot_claims", "Sandboxes by how they came to their first answer.", ["path", "template"], registry=registry)
        self._refills = Counter("sandlot_pool_failures", "Sandboxes for pools that could not be made.", ["isolation"], registry=registry)
        self._evicted = Counter("sandlot_pool_evictions", "What waited in pools and had to go because its room was needed.", registry=registry)
        self._written = Counter("sandlot_template_snapshots", "Template snapshots: made, failed, or unusable.", ["outcome"], registry=registry)
        ProcessCollector(registry=registry)

    def count_sandboxes(self, states: Callable[[], Iterable[State]]) -> None:
        """Report the number of sandboxes by state from now on.

        Args:
            states: Returns the state of every sandbox.
        """
        self._registry.register(_Live(states))

    def created(self, isolation: str, seconds: float, *, source: str = "template") -> None:
        """A sandbox runs."""
        self._creates.labels(source, isolation, "ok").inc()
        self._create_s.labels(isolation).observe(seconds)

    def not_created(self, isolation: str, why: ExitReason, *, source: str = "template") -> None:
        """A sandbox that was begun did not come to run: it failed, or its client went away."""
        self._creates.labels(source, isolation, str(why)).inc()

    def execution_started(self, kind: str) -> None:
        """Something runs."""
        self._begun.labels(kind if kind in KINDS else OTHER).inc()

    def execution_ended(self, kind: str, outcome: str) -> None:
        """It has ended."""
        self._runs.labels(kind if kind in KINDS else OTHER, outcome if outcome in OUTCOMES else OTHER).inc()

    def failed(self, code: ErrorCode) -> None:
        """A client was told a failure."""
        self._failures.labels(str(code)).inc()

    def requested(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """A request was answered.

        Args:
            method: HTTP's.
            route: The template of its path; None where there is none.
            status: HTTP's; 0 where the client was gone before.
            seconds: Until the end of the answer.
        """
        known = route or UNMATCHED
        self._requests.labels(method if method in METHODS else OTHER, known, str(status)).inc()
        self._request_s.labels(known).observe(seconds)

    def store_failed(self, what: str, lost: int = 0) -> None:
        """The store refused a write that no request waits for.

        Args:
            what: ``executions``, ``retention`` and the like.
            lost: Lines of the log of runs that are given up for it.
        """
        self._store.labels(what).inc()
        self._lost.inc(lost)

    def claimed(self, path: str, template: str) -> None:
        """A sandbox has come to its first answer.

        Args:
            path: ``hot``, ``blank``, ``direct`` or ``boot``.
            template: What it was made from: one of those that there are.
        """
        self._claims.labels(path, template).inc()

    def refill_failed(self, isolation: str) -> None:
        """Something for a pool could not be made."""
        self._refills.labels(isolation).inc()

    def evicted(self) -> None:
        """Something that waited in a pool had to go."""
        self._evicted.inc()

    def template_snapshot(self, outcome: str) -> None:
        """What became of a template snapshot: ``made``, ``failed``, ``unusable``."""
        self._written.labels(outcome).inc()

    def count_pools(self, sizes: Callable[[], Mapping[tuple[str, str, str], int]]) -> None:
        """Tell what the pools hold.

        Args:
            sizes: Gives it: (template, isolation, what) -> how many; nothing of that is a client's choice.
        """
        self._registry.register(_Pools(sizes))

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, again and again; until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.observe(max(0.0, loop.time() - due_s))

    def count_packages(self, counted: Callable[[], Mapping[str, int]]) -> None:
        """Tell what the package cache has counted.

        Args:
            counted: Gives it, by name; the name of what is bytes ends in ``_bytes``.
        """
        self._registry.register(_Packages(counted))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)


class _Live(Collector):
    """Sandboxes by state, counted when they are asked for.

    Args:
        states: Gives the state of every sandbox that there is now.
    """

    def __init__(self, states: Callable[[], Iterable[State]]) -> None:
        self._states = states

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Without counting: the registry asks when this is registered."""
        return [self._family()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The numbers of this moment."""
        family, found = self._family(), Tally(self._states())
        for state in State:
            if not is_terminal(state):
                family.add_metric([str(state)], found[state])
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily("sandlot_sandboxes", "Sandboxes that live.", labels=["state"])


class _Pools(Collector):
    """What pools hold, counted when it is asked for.

    Args:
        sizes: Gives it.
    """

    def __init__(self, sizes: Callable[[], Mapping[tuple[str, str, str], int]]) -> None:
        self._sizes = sizes

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Without counting."""
        return [self._family()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The numbers of this moment."""
        family = self._family()
        for labels, number in sorted(self._sizes().items()):
            family.add_metric(list(labels), number)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "sandlot_pool", "What pools hold: ready, filling, blank; and how many are wanted.", labels=["template", "isolation", "what"]
        )


class _Packages(Collector):
    """What the package cache has counted.

    Args:
        counted: Gives it.
    """

    def __init__(self, counted: Callable[[], Mapping[str, int]]) -> None:
        self._counted = counted

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Without counting."""
        return self._families()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The numbers of this moment."""
        events, sizes = self._families()
        for name, number in self._counted().items():
            is_size = name.endswith("_bytes")
            (sizes if is_size else events).add_metric([name.removesuffix("_bytes") if is_size else name], number)
        yield events
        yield sizes

    @staticmethod
    def _families() -> tuple[CounterMetricFamily, CounterMetricFamily]:
        return (
            CounterMetricFamily("sandlot_packages", "What the package cache did.", labels=["what"]),
            CounterMetricFamily("sandlot_packages_bytes", "Bytes that it took from upstream and gave to sandboxes.", labels=["what"]),
        )

"""Metrics of a service for Prometheus, in its text format 0.0.4.

Invariant: Clients and sandboxes choose no label values. Labels contain neither ids nor names that a client chose. A request is
labelled with its route template, not with its path. Clients therefore cannot increase the number of series.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandlot.model.errors import ErrorCode
from sandlot.model.ports import ExitReason
from sandlot.model.states import State, is_terminal

CREATE_S = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 5, 15, 60, 300)
"""Histogram buckets for the duration of create requests in seconds. A container starts in 0.05 s, a gVisor sandbox in 0.35 s. The first sandbox of a
template waits until the template is built."""
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
LAG_EVERY_S = 0.5
"""Seconds between two measurements of the event loop's lag."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNMATCHED = "unmatched"
"""Label of a request that matches no route."""
KINDS = frozenset({"code", "command"})
OUTCOMES = frozenset({"ok", "error", "timeout", "killed", "died", "exited", "signalled", "pids", "oom", "lost"})


class Metrics:
    """All metrics of one service, in their own Prometheus registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._creates = Counter("sandlot_creates", "Create requests for sandboxes.", ["source", "isolation", "outcome"], registry=registry)
        self._create_s = Histogram(
            "sandlot_create_seconds", "Seconds from the request to a running sandbox.", ["isolation"], buckets=CREATE_S, registry=registry
        )
        self._runs = Counter("sandlot_runs", "Executions of code and commands that ended.", ["kind", "outcome"], registry=registry)
        self._begun = Counter("sandlot_runs_begun", "Executions of code and commands that started.", ["kind"], registry=registry)
        self._failures = Counter("sandlot_failures", "Errors in responses, by code.", ["code"], registry=registry)
        self._requests = Counter(
            "sandlot_http_requests", "Requests by the template of their route.", ["method", "route", "status"], registry=registry
        )
        self._request_s = Histogram(
            "sandlot_http_request_seconds", "Seconds until the response ends.", ["route"], buckets=REQUEST_S, registry=registry
        )
        self._lag = Histogram("sandlot_event_loop_lag_seconds", "Lag of the event loop.", buckets=LAG_S, registry=registry)
        self._store = Counter("sandlot_store_failures", "Background writes that the store refused.", ["what"], registry=registry)
        self._lost = Counter("sandlot_executions_lost", "Entries of the execution log that were never written.", registry=registry)
        self._claims = Counter("sandlot_claims", "Sandboxes by the way in which they started.", ["path", "template"], registry=registry)
        self._refills = Counter("sandlot_pool_failures", "Sandboxes that could not be made for a pool.", ["isolation"], registry=registry)
        self._evicted = Counter("sandlot_pool_evictions", "Pooled sandboxes that were removed for a request that needed room.", registry=registry)
        self._written = Counter("sandlot_template_snapshots", "Template snapshots: made, failed, or unusable.", ["outcome"], registry=registry)
        ProcessCollector(registry=registry)

    def count_sandboxes(self, states: Callable[[], Iterable[State]]) -> None:
        """Add the number of sandboxes in each state to the metrics.

        Args:
            states: Returns the states of all current sandboxes.
        """

        def by_state() -> Iterator[tuple[list[str], int]]:
            found = Tally(states())
            return (([str(state)], found[state]) for state in State if not is_terminal(state))

        gauge = partial(GaugeMetricFamily, "sandlot_sandboxes", "Live sandboxes by state.", labels=["state"])
        self._registry.register(_ReadAtScrape(gauge, by_state))

    def created(self, source: str, isolation: str, seconds: float) -> None:
        """Count a create request that succeeded.

        Args:
            source: Source of the sandbox: ``template``, ``snapshot`` or ``fork``.
            isolation: Isolation of the sandbox.
            seconds: Seconds from the request to a running sandbox.
        """
        self._creates.labels(source, isolation, "ok").inc()
        self._create_s.labels(isolation).observe(seconds)

    def not_created(self, source: str, isolation: str, why: ExitReason) -> None:
        """Count a create request that was admitted but failed, or whose client disconnected."""
        self._creates.labels(source, isolation, str(why)).inc()

    def execution_started(self, kind: str) -> None:
        """Count an execution that starts. Kinds other than ``code`` and ``command`` are counted as ``other``."""
        self._begun.labels(kind if kind in KINDS else OTHER).inc()

    def execution_ended(self, kind: str, outcome: str) -> None:
        """Count an execution that ended. An unknown outcome is counted as ``other``."""
        self._runs.labels(kind if kind in KINDS else OTHER, outcome if outcome in OUTCOMES else OTHER).inc()

    def failed(self, code: ErrorCode) -> None:
        """Count an error response."""
        self._failures.labels(str(code)).inc()

    def requested(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count a request and its duration.

        Args:
            method: HTTP method.
            route: Template of the path; None if no route matches.
            status: HTTP status; 0 if the client disconnected before the response.
            seconds: Seconds until the end of the response.
        """
        known = route or UNMATCHED
        self._requests.labels(method if method in METHODS else OTHER, known, str(status)).inc()
        self._request_s.labels(known).observe(seconds)

    def store_failed(self, what: str, lost: int = 0) -> None:
        """Count a background write that the store refused.

        Args:
            what: Kind of the written rows, such as ``executions``, or ``retention`` for the removal of old rows.
            lost: Number of entries of the execution log that are lost because of the failure.
        """
        self._store.labels(what).inc()
        self._lost.inc(lost)

    def claimed(self, path: str, template: str) -> None:
        """Count the start of a sandbox.

        Args:
            path: Start path: ``warm``, ``prepared``, ``restored`` or ``booted``.
            template: Name of an existing template.
        """
        self._claims.labels(path, template).inc()

    def refill_failed(self, isolation: str) -> None:
        """Count a warm or prepared sandbox that could not be made for a pool."""
        self._refills.labels(isolation).inc()

    def evicted(self) -> None:
        """Count a warm or prepared sandbox that was removed because its resources were needed."""
        self._evicted.inc()

    def template_snapshot(self, outcome: str) -> None:
        """Count a template snapshot by its outcome: ``made``, ``failed`` or ``unusable``."""
        self._written.labels(outcome).inc()

    def count_pools(self, sizes: Callable[[], Mapping[tuple[str, str, str], int]]) -> None:
        """Add the sizes of the pools to the metrics.

        Args:
            sizes: Returns (template, isolation, part of the pool) -> number of sandboxes. Clients choose none of these labels.
        """
        text = "Sandboxes of pools: ready, being made, prepared, and the target number."
        gauge = partial(GaugeMetricFamily, "sandlot_pool", text, labels=["template", "isolation", "what"])
        self._registry.register(_ReadAtScrape(gauge, lambda: sorted(sizes().items())))

    async def watch_loop(self) -> None:
        """Measure the lag of the event loop every ``LAG_EVERY_S`` seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.observe(max(0.0, loop.time() - due_s))

    def count_packages(self, counted: Callable[[], Mapping[str, int]]) -> None:
        """Add the counters of the package cache to the metrics.

        Args:
            counted: Returns the counters as name -> value. Names of counters that count bytes end in ``_bytes``.
        """

        def events() -> Iterator[tuple[list[str], int]]:
            return (([name], number) for name, number in counted().items() if not name.endswith("_bytes"))

        def sizes() -> Iterator[tuple[list[str], int]]:
            return (([name.removesuffix("_bytes")], number) for name, number in counted().items() if name.endswith("_bytes"))

        text = "Bytes that the package cache read from upstream and sent to sandboxes."
        counter = partial(CounterMetricFamily, labels=["what"])
        self._registry.register(_ReadAtScrape(partial(counter, "sandlot_packages", "Events of the package cache."), events))
        self._registry.register(_ReadAtScrape(partial(counter, "sandlot_packages_bytes", text), sizes))

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class _ReadAtScrape(Collector):
    """One metric whose values are read at each scrape.

    Args:
        create: Creates the metric without values.
        read: Returns pairs of label values and the value of the metric for these labels.
    """

    def __init__(
        self, create: Callable[[], GaugeMetricFamily | CounterMetricFamily], read: Callable[[], Iterable[tuple[Sequence[str], int]]]
    ) -> None:
        self._create = create
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return the metric without values. The registry calls this method when the metric is registered."""
        return [self._create()]

    def collect(self) -> Iterator[Metric]:
        """Return the metric with its current values."""
        metric = self._create()
        for labels, number in self._read():
            metric.add_metric(labels, number)
        yield metric

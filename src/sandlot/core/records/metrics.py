"""Metrics of a service for Prometheus, in its text format 0.0.4.

Invariant: Clients and sandboxes choose no label values. Labels contain neither ids nor names that a client chose. A request is
labelled with its route template, not with its path. Clients therefore cannot increase the number of series.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

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
OUTCOMES = ("ok", "error", "exited", "signalled", "timeout", "pids", "oom", "killed", "died", "lost")


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric as scrapes and the reference page describe it.

    Args:
        name: Name, without the suffix ``_total`` of a counter.
        kind: Type of the metric.
        help: Counted or measured things.
        labels: Names of the labels, with their possible values.
        buckets: Upper bounds of a histogram's buckets.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


_ISOLATION = "`gvisor`, `container` or another driver"
_TEMPLATE = "built-in template, or `custom`"
_KIND = "`code`, `command` or `other`"

METRICS: Final = (
    MetricDefinition(
        "sandlot_creates",
        "counter",
        "Create requests for sandboxes that were admitted.",
        {
            "source": "`template`, `snapshot` or `fork`",
            "isolation": _ISOLATION,
            "outcome": "`ok`, or the reason why the sandbox did not start: " + ", ".join(f"`{reason}`" for reason in ExitReason),
        },
    ),
    MetricDefinition(
        "sandlot_create_seconds", "histogram", "Seconds from the create request to a running sandbox.", {"isolation": _ISOLATION}, CREATE_S
    ),
    MetricDefinition(
        "sandlot_claims",
        "counter",
        "Started sandboxes, by start path.",
        {"path": "`warm`, `prepared`, `restored` or `booted`", "template": _TEMPLATE},
    ),
    MetricDefinition(
        "sandlot_pool",
        "gauge",
        "Sandboxes of warm pools.",
        {"template": _TEMPLATE, "isolation": _ISOLATION, "what": "`ready`, `filling` (being started), `prepared`, or `wanted` (target number)"},
    ),
    MetricDefinition("sandlot_pool_failures", "counter", "Pool entries that could not be made.", {"isolation": _ISOLATION}),
    MetricDefinition("sandlot_pool_evictions", "counter", "Pool entries that were removed because other sandboxes needed their resources."),
    MetricDefinition("sandlot_template_snapshots", "counter", "Template snapshots.", {"outcome": "`made`, `failed`, or `unusable` at a restore"}),
    MetricDefinition(
        "sandlot_sandboxes", "gauge", "Live sandboxes.", {"state": ", ".join(f"`{state}`" for state in State if not is_terminal(state))}
    ),
    MetricDefinition("sandlot_runs_begun", "counter", "Executions of code and commands that started.", {"kind": _KIND}),
    MetricDefinition(
        "sandlot_runs",
        "counter",
        "Executions of code and commands that ended.",
        {"kind": _KIND, "outcome": ", ".join(f"`{outcome}`" for outcome in (*OUTCOMES, OTHER))},
    ),
    MetricDefinition("sandlot_failures", "counter", "Error responses.", {"code": "error code"}),
    MetricDefinition(
        "sandlot_http_requests",
        "counter",
        "Requests.",
        {
            "method": "HTTP method, or `other`",
            "route": "template of the path, such as `/v1/sandboxes/{sandbox}`, or `unmatched`",
            "status": "HTTP status, or 0 if the client had disconnected",
        },
    ),
    MetricDefinition(
        "sandlot_http_request_seconds",
        "histogram",
        "Seconds until the end of the response. A stream counts with its whole duration.",
        {"route": "template of the path, or `unmatched`"},
        REQUEST_S,
    ),
    MetricDefinition("sandlot_event_loop_lag_seconds", "histogram", "Delay of the event loop in seconds, measured twice a second.", buckets=LAG_S),
    MetricDefinition(
        "sandlot_store_failures",
        "counter",
        "Background writes that the store refused.",
        {"what": "`executions`, `retention` (removal of old rows), or `defect` (a background task failed unexpectedly)"},
    ),
    MetricDefinition("sandlot_executions_lost", "counter", "Entries of the execution log that were lost."),
    MetricDefinition(
        "sandlot_packages",
        "counter",
        "Events of the package cache.",
        {
            "what": "`hits` (served from the cache), `misses` (fetched from upstream), `stale` (expired pages, because upstream did not respond), "
            "`refused` (by the network mode), `errors`, `mismatches` (wrong digest), `evictions`, `upstream_requests`"
        },
    ),
    MetricDefinition(
        "sandlot_packages_bytes", "counter", "Bytes of the package cache.", {"what": "`upstream` (received), or `served` (sent to sandboxes)"}
    ),
)
_BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Metrics:
    """All metrics of one service, in their own Prometheus registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._creates = self._counter("sandlot_creates")
        self._create_s = self._histogram("sandlot_create_seconds")
        self._runs = self._counter("sandlot_runs")
        self._begun = self._counter("sandlot_runs_begun")
        self._failures = self._counter("sandlot_failures")
        self._requests = self._counter("sandlot_http_requests")
        self._request_s = self._histogram("sandlot_http_request_seconds")
        self._lag = self._histogram("sandlot_event_loop_lag_seconds")
        self._store = self._counter("sandlot_store_failures")
        self._lost = self._counter("sandlot_executions_lost")
        self._claims = self._counter("sandlot_claims")
        self._refills = self._counter("sandlot_pool_failures")
        self._evicted = self._counter("sandlot_pool_evictions")
        self._written = self._counter("sandlot_template_snapshots")
        ProcessCollector(registry=self._registry)

    def count_sandboxes(self, states: Callable[[], Iterable[State]]) -> None:
        """Add the number of sandboxes in each state to the metrics.

        Args:
            states: Returns the states of all current sandboxes.
        """

        def by_state() -> Iterator[tuple[list[str], int]]:
            found = Tally(states())
            return (([str(state)], found[state]) for state in State if not is_terminal(state))

        self._registry.register(_ReadAtScrape("sandlot_sandboxes", by_state))

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
        self._registry.register(_ReadAtScrape("sandlot_pool", lambda: sorted(sizes().items())))

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

        self._registry.register(_ReadAtScrape("sandlot_packages", events))
        self._registry.register(_ReadAtScrape("sandlot_packages_bytes", sizes))

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str) -> Counter:
        metric = _BY_NAME[name]
        return Counter(name, metric.help, list(metric.labels), registry=self._registry)

    def _histogram(self, name: str) -> Histogram:
        metric = _BY_NAME[name]
        return Histogram(name, metric.help, list(metric.labels), buckets=metric.buckets, registry=self._registry)


class _ReadAtScrape(Collector):
    """One metric whose values are read at each scrape.

    Args:
        name: Name of the metric in :data:`METRICS`.
        read: Returns pairs of label values and the value of the metric for these labels.
    """

    def __init__(self, name: str, read: Callable[[], Iterable[tuple[Sequence[str], int]]]) -> None:
        self._definition = _BY_NAME[name]
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return the metric without values. The registry calls this method when the metric is registered."""
        return [self._empty()]

    def collect(self) -> Iterator[Metric]:
        """Return the metric with its current values."""
        metric = self._empty()
        for labels, number in self._read():
            metric.add_metric(labels, number)
        yield metric

    def _empty(self) -> GaugeMetricFamily | CounterMetricFamily:
        family = GaugeMetricFamily if self._definition.kind == "gauge" else CounterMetricFamily
        return family(self._definition.name, self._definition.help, labels=list(self._definition.labels))

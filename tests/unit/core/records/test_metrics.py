"""Metrics: counted, in the text format of Prometheus, with labels that no client chooses."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from sandlot.core.records import metrics
from sandlot.core.records.metrics import Metrics
from tests.support.until import until


def found(of: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric's series, by their labels in order."""
    return {
        tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(of.text().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_labels_have_no_values_chosen_by_clients() -> None:
    counted = Metrics()
    counted.execution_started('evil"\n')
    counted.execution_ended("evil", "<script>")
    counted.requested("BREW", None, 404, 0.1)
    assert found(counted, "sandlot_runs_total") == {("other", "other"): 1}
    assert found(counted, "sandlot_http_requests_total") == {("other", "unmatched", "404"): 1}


def test_scrape_has_every_defined_metric_and_no_other() -> None:
    counted = Metrics()
    counted.count_sandboxes(list)
    counted.count_pools(dict)
    counted.count_packages(dict)
    families = [family for family in text_string_to_metric_families(counted.text().decode()) if family.name.startswith("sandlot_")]
    assert {(family.name, family.type) for family in families if not family.name.endswith("_created")} == {
        (metric.name, metric.kind) for metric in metrics.METRICS
    }


async def test_lag_of_the_event_loop_is_measured() -> None:
    counted = Metrics()
    task = asyncio.create_task(counted.watch_loop())
    try:
        await until(lambda: found(counted, "sandlot_event_loop_lag_seconds_count") == {(): 1})
    finally:
        task.cancel()
    assert metrics.LAG_EVERY_S < 1


def test_package_cache_has_two_metrics() -> None:
    numbers = {"hits": 1, "upstream_bytes": 7}
    counted = Metrics()
    counted.count_packages(lambda: numbers)
    numbers["hits"] = 2
    assert found(counted, "sandlot_packages_total") == {("hits",): 2}
    assert found(counted, "sandlot_packages_bytes_total") == {("upstream",): 7}

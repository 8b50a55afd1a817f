"""What holds for every test.

- Async tests run on asyncio, the event loop that the service and the SDK are made for.
- Hypothesis sets no deadline: no test asserts a time.
- In CI a skipped test is a failure, because a promise that nobody checked is none. Where the reason lies in the machine (no
  KVM, no cgroup v2), the test says so by ``@pytest.mark.may_skip(reason)``.
- A service that a test starts keeps no pool unless the test says so: what is made ahead would be counted as a leak, and takes time from others.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import hypothesis
import pytest

hypothesis.settings.register_profile("sandlot", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sandlot")

os.environ.setdefault("SANDLOT_POOLS", "none")

IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("may_skip") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI skips only what is marked may_skip: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} is skipped as a whole, and CI skips only single tests that are marked may_skip: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)

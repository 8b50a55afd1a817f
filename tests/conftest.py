"""Rules for every test.

- Async tests run on asyncio, the event loop of the service and the SDK.
- Hypothesis sets no deadline: no test asserts a time.
- An async test that hangs is cancelled before its timeout. pytest-timeout alone would leave it on the loop that its fixtures need.
- In CI a skipped test is a failure, because a promise that nobody checked is none. A test whose reason lies in the machine (no KVM, no
  cgroup v2) has ``@pytest.mark.may_skip(reason)``.
- A service that a test starts keeps no pool unless the test asks for one: warm sandboxes would be counted as leaks and take time.
- Tests in ``SLOW_FOLDERS`` and those marked ``real_guest`` are marked ``slow``, except those marked ``smoke``: ``scripts/test`` leaves
  them to ``scripts/test --all``.
- Modules are started in the order of ``FIRST``, so that no long module is started last. Those of ``BUSY`` are spread among the other slow ones, so
  that few of them run at once. ``--random-order`` replaces this order.
- The garbage collector leaves out what exists when the tests have been collected, more than a million objects: with them, each collection
  would take half a second.
- Programs that tests start inherit no ignored and no blocked signals. A shell ignores SIGINT and SIGQUIT in a script's background jobs, nohup(1)
  ignores SIGHUP, perf(1) blocks SIGWINCH, and exec(2) passes that on: such programs could not be interrupted, or would not see a new size.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping

import hypothesis
import pytest

from tests.support import marks

pytest.register_assert_rewrite("sandlot.testing")  # its suites are tests

# The same examples in every run: a failure then belongs to the change that is tested. tests/soak/test_properties.py draws random ones.
hypothesis.settings.register_profile("sandlot", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile("sandlot")

gc.disable()  # while tests are collected
os.environ.setdefault("SANDLOT_POOLS", "none")
# Many services of tests share one disk. With the default, each disk of a sandbox takes all its space of it (tests/security/test_full_disk.py).
os.environ.setdefault("SANDLOT_DISK_RATIO", "4")
# The large image takes minutes to build, and these tests need NumPy, pandas and Matplotlib only (tests/soak/test_templates.py has the others).
os.environ.setdefault("SANDLOT_TEMPLATE_ALIASES", "code-interpreter=code-interpreter-slim")
os.environ["SANDLOT_CONFIG"] = os.devnull  # not the settings of this machine

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, lambda *_: None), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)  # exec(2) replaces a handler by the default action
signal.pthread_sigmask(signal.SIG_SETMASK, ())

SLOW_FOLDERS = ("tests/compat", "tests/conformance", "tests/network", "tests/security")
SLOWEST = ("tests/service", "tests/conformance", "tests/compat", "tests/network")
FIRST = (*SLOWEST, "tests/meta", "tests/unit/guest", "tests/unit/server", "tests/unit/core")
"""Folders whose modules take longest, longest first."""
BUSY = "tests/security"
"""Folder whose tests use up the processors on purpose. Beside several of them, other tests exceed their deadlines."""

IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}

FOR_FIXTURES_S = 20.0
"""Part of a test's timeout that is left to its fixtures: they clean up after a test that hung."""
_begun_s = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_slow = item.nodeid.startswith(SLOW_FOLDERS) or item.get_closest_marker("real_guest") is not None
        if is_slow and item.get_closest_marker("smoke") is None:
            item.add_marker("slow")
    places = _places(dict.fromkeys(_module(item) for item in items))
    items.sort(key=lambda item: places[_module(item)])


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _places(modules: Iterable[str]) -> Mapping[str, float]:
    """Return the place of each module in the run: from 0 to 1 for slow ones, after these for the others."""
    ranked = sorted(modules, key=lambda module: next((rank for rank, folder in enumerate(FIRST) if module.startswith(folder)), len(FIRST)))
    busy = [module for module in ranked if module.startswith(BUSY)]
    slow = [module for module in ranked if module.startswith(SLOWEST)]
    places = {module: float(place) for place, module in enumerate(ranked, 1)}
    for group in (busy, slow):
        places.update((module, place / len(group)) for place, module in enumerate(group))
    return places


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_begun_s] = time.monotonic()
    marks.real_guest = item.get_closest_marker("real_guest") is not None
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if inspect.iscoroutinefunction(pyfuncitem.obj) and (allowed_s := _timeout_s(pyfuncitem)):
        left_s = allowed_s - FOR_FIXTURES_S - (time.monotonic() - pyfuncitem.stash[_begun_s])
        pyfuncitem.obj = _bounded(pyfuncitem.obj, max(1.0, left_s))


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout") or 0)


def _bounded(test: Callable[..., Awaitable[None]], most_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*args: object, **named: object) -> None:
        async with asyncio.timeout(most_s):
            await test(*args, **named)

    return bounded


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

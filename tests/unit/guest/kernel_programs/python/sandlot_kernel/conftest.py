"""Fixtures: one kernel of each shell for each test module. A kernel stays usable after any cell, which most of these tests check."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator
from types import ModuleType

import pytest

from sandlot.guest.kernels.context import FLUSH_REQUEST_S
from tests.support.kernels import Process, ship

IMPORTS = "import os, sys, time, threading, subprocess, asyncio"


@pytest.fixture(params=["ipython", "plain"])
def kernel(request: pytest.FixtureRequest) -> Process:
    running: Process = request.getfixturevalue(request.param)
    running.run(IMPORTS)
    return running


@pytest.fixture(scope="module")
def ipython(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), flush_after_s=FLUSH_REQUEST_S)
    yield running
    running.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), "--plain", flush_after_s=None)  # as when the guest starts a kernel directly
    yield running
    running.close()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], ModuleType]]:
    """Import the modules of the kernel as in a sandbox, where ``values`` is shipped beside them."""
    folder = str(ship(tmp_path_factory.mktemp("shipped")).parent)
    sys.path.insert(0, folder)
    yield lambda name: importlib.import_module(f"sandlot_kernel.{name}")
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandlot_kernel"]:
        del sys.modules[name]

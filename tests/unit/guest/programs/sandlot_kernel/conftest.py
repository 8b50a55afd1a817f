"""One kernel for each module of tests: cells leave it usable, whatever they do; that is what most of these tests are about."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator
from types import ModuleType

import pytest

from sandlot.guest.kernels.context import BELL_S
from tests.support.kernels import Process, ship


@pytest.fixture(scope="module", params=["ipython", "plain"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    flags = ["--plain"] if request.param == "plain" else []
    running = Process(tmp_path_factory.mktemp("kernel"), *flags, rings_s=None if flags else BELL_S)  # None as where the guest starts one by itself
    running.run("import os, sys, time, threading, subprocess, asyncio")
    yield running
    running.close()


@pytest.fixture(scope="module")
def ipython(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), rings_s=BELL_S)
    yield running
    running.close()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], ModuleType]]:
    """Imports the kernel's modules as they lie in a sandbox, where ``values`` is beside them."""
    folder = str(ship(tmp_path_factory.mktemp("shipped")).parent)
    sys.path.insert(0, folder)
    yield lambda name: importlib.import_module(f"sandlot_kernel.{name}")
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandlot_kernel"]:
        del sys.modules[name]

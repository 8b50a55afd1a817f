"""One kernel for each module of tests: cells leave it usable, whatever they do; that is what most of these tests are about."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.kernels import Process


@pytest.fixture(scope="module", params=["ipython", "plain"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), *(["--plain"] if request.param == "plain" else []))
    running.run("import os, sys, time, threading, subprocess, asyncio")
    yield running
    running.close()


@pytest.fixture(scope="module")
def ipython(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"))
    yield running
    running.close()

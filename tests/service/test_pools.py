"""Warm pools and template snapshots: bursts, deaths, kills at any moment, and two services with one cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.core.pools.template_snapshot_cache import IMAGE, MANIFEST
from sandlot.sdk import Client
from sandlot.sdk.models.pools import PoolInfo
from tests.support.cache import CACHE_DIR
from tests.support.localservice import TEMPLATE, LocalService, local_service
from tests.support.tcpservice import tcp_service

PATIENCE_S = 240.0
SMALL = {"memory": "256M", "cpus": 1.0, "disk": "256M"}
"""What these tests' pools hold: a kind of their own, whose snapshot nobody else makes or uses."""


def wait_for(condition: Callable[[], object], service: LocalService) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, (service.client.pools.list(), service.log())
        time.sleep(0.1)


@contextmanager
def pool(service: LocalService, warm: int, **more: object) -> Iterator[PoolInfo]:
    """A pool that is full; removed in the end."""
    made = service.client.pools.create(TEMPLATE, warm=warm, max=warm, **{**SMALL, **more})  # type: ignore[arg-type] # options
    try:
        wait_for(lambda: service.client.pools.get(made.id).ready == warm, service)
        yield made
    finally:
        service.client.pools.delete(made.id)


def create(service: LocalService) -> Sandbox:
    return service.create(TEMPLATE, **SMALL)


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache directory with the machine's images and no template snapshot."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-cache-"))
    for kind in ("images", "interpreters", "guests", "roots", "root-images", "locks", "tmp"):
        if (CACHE_DIR / kind).exists():
            (folder / kind).symlink_to(CACHE_DIR / kind)
    yield folder
    shutil.rmtree(folder)


def snapshots(cache: Path) -> list[Path]:
    """Whole ones."""
    return [path for path in (cache / "snapshots").glob("*") if (path / MANIFEST).exists()]


def half_made(cache: Path) -> list[Path]:
    return list((cache / "snapshots/tmp").glob("*"))


def test_burst_is_served_from_the_pool_and_then_by_booting(service: LocalService) -> None:
    with pool(service, 2) as made:
        with ThreadPoolExecutor(4) as threads:
            boxes = list(threads.map(lambda _: create(service), range(4)))
        service.client.pools.update(made.id, warm=0)
        claims = service.client.pools.get(made.id).claims
        assert claims["warm"] >= 2
        assert claims["warm"] + claims["restored"] + claims["prepared"] == 4
        assert len({box.id for box in boxes}) == 4
        assert {box.run_code("print(6 * 7)").stdout for box in boxes} == {"42\n"}
        assert len({box.files.read("/proc/sys/kernel/random/boot_id") for box in boxes}) == 4
        for box in boxes:
            box.kill()


@pytest.mark.slow
def test_prepared_sandbox_is_restored_from_the_snapshot_of_its_template(service: LocalService) -> None:
    made = service.client.pools.create(TEMPLATE, warm=0, max=0, prepared=1, **SMALL)  # type: ignore[arg-type] # options
    wait_for(lambda: service.client.pools.get(made.id).prepared_ready == 1, service)
    with create(service) as box:
        waiting = box.commands.run("pgrep -f python/kernel.py | wc -l").stdout
        assert int(waiting) >= 1, "its kernel was restored with it, also where the image has nothing that takes its time to be imported"
        assert box.run_code("print(6 * 7)").stdout == "42\n"
        assert service.client.pools.get(made.id).claims["prepared"] == 1
    service.client.pools.delete(made.id)


@pytest.mark.slow
def test_warm_sandbox_that_dies_is_replaced(service: LocalService) -> None:
    with pool(service, 1) as made:
        before = service.refs()
        for pids in Path("/sys/fs/cgroup").glob(f"**/{next(iter(before))}/cgroup.procs"):
            for pid in pids.read_text("ascii").split():
                os.kill(int(pid), signal.SIGKILL)
            break
        with create(service) as box:  # whether or not it has been noticed by now
            assert box.run_code("print(6 * 7)").stdout == "42\n"
        wait_for(lambda: service.client.pools.get(made.id).ready == 1, service)
        assert service.refs() - before


@pytest.mark.slow
def test_template_snapshot_is_made_once_and_replaced_if_stale_or_broken(cache: Path) -> None:
    env = {"SANDLOT_CACHE_DIR": str(cache)}
    with local_service(env) as one, local_service(env) as other:
        pools = [each.client.pools.create(TEMPLATE, warm=1, max=1, **SMALL) for each in (one, other)]  # type: ignore[arg-type] # options
        for each, made in zip((one, other), pools, strict=True):
            wait_for(lambda each=each, made=made: each.client.pools.get(made.id).ready == 1, each)  # type: ignore[misc]
        (whole,) = snapshots(cache)
        words = json.loads((whole / MANIFEST).read_text("utf-8"))
        assert words["spec"]["template"]["name"] == TEMPLATE
        assert words["inputs"]["memory_bytes"] == 256 << 20
        logs = [sum(record.get("event") == "template_snapshot.written" for record in each.records()) for each in (one, other)]
        assert sorted(logs) == [0, 1]
        for each, made in zip((one, other), pools, strict=True):
            with create(each) as box:
                assert box.run_code("print(6 * 7)").stdout == "42\n"
            assert each.client.pools.get(made.id).claims["warm"] == 1
            each.client.pools.delete(made.id)
        stale = whole.with_name("0" * 64)
        shutil.copytree(whole, stale)  # of the same look, and made of something else
        (stale / MANIFEST).write_text(json.dumps({**words, "inputs": {}}), "utf-8")
        for file in (whole / IMAGE).glob("pages*.img"):
            file.write_bytes(b"x" * 4096)
        assert other.end() == 0, other.log()
        other.start()
        with pool(other, 1), create(other) as box:
            assert box.run_code("print(6 * 7)").stdout == "42\n"
    (now,) = snapshots(cache)
    assert now.name == whole.name
    assert (now / IMAGE / "pages.img").stat().st_size > 4096


@pytest.mark.slow
def test_pool_of_a_key_survives_kills_and_a_stop_and_is_deleted_with_its_key(cache: Path) -> None:
    with (
        tcp_service({"SANDLOT_CACHE_DIR": str(cache), "SANDLOT_POOLS": "none"}) as service,
        Client(url=service.url, api_key=service.key("anne")) as anne,
    ):
        made = anne.pools.create(TEMPLATE, warm=1, max=1, **SMALL)  # type: ignore[arg-type] # options

        def is_full() -> bool:
            return anne.pools.get(made.id).ready == 1

        # Killed while its template snapshot is made, and while a warm sandbox is claimed.
        wait_for(lambda: half_made(cache), service)
        service.end(signal.SIGKILL)
        service.start()
        wait_for(is_full, service)
        claimed: list[str] = []
        claiming = threading.Thread(target=_claim, args=(anne, claimed))
        claiming.start()
        time.sleep(0.01)
        service.end(signal.SIGKILL)
        claiming.join()
        service.start()
        wait_for(is_full, service)
        assert half_made(cache) == []
        assert len(snapshots(cache)) == 1
        assert anne.pools.get(made.id).owner == made.owner is not None
        alive = {info.id for info in anne.sandboxes.list()}
        assert set(claimed) <= alive
        for each in alive:
            with Sandbox.connect(each, client=anne) as box:
                assert box.run_code("print(6 * 7)").stdout == "42\n"

        # A stop ends the warm sandboxes and leaves claimed ones.
        with Sandbox.create(TEMPLATE, client=anne, **SMALL) as box:  # type: ignore[arg-type] # options
            assert anne.pools.get(made.id).claims["warm"] == 1
            box.run_code("kept = 42")
            assert service.end() == 0, service.log()
            assert len(service.refs()) == 1
            service.start()
            assert anne.pools.get(made.id).claims["warm"] == 0
            assert box.run_code("kept").text == "42"
            wait_for(is_full, service)

        service.client.keys.delete("anne")
        wait_for(lambda: service.client.pools.list() == [], service)
        wait_for(lambda: snapshots(cache) == [], service)  # it was nobody else's


def _claim(client: Client, claimed: list[str]) -> None:
    with suppress(Exception):  # the service is killed meanwhile
        claimed.append(Sandbox.create(TEMPLATE, client=client, **SMALL).id)  # type: ignore[arg-type] # options

"""The composition root: a service out of settings, one at a time, with the drivers and templates that there are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from sandlot.drivers.registry import driver_names
from sandlot.host.blocking import outlast_cancellation
from sandlot.images.store import ImageStore
from sandlot.model.access import INTERNAL, LOCAL, OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, UnavailableError
from sandlot.model.ids import NodeId
from sandlot.model.network import NetworkMode, NetworkPolicy, network_entries
from sandlot.model.network_activity import RefusalReason
from sandlot.model.specs import TemplateRef
from sandlot.protocol import schema
from sandlot.server import composition
from sandlot.server.composition import open_service, own_drivers
from sandlot.server.image_templates import ImageTemplates
from sandlot.server.offline_keys import with_keys
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.bare import BareDriver
from tests.support.cache import CACHE_DIR
from tests.support.service import BASE, BOUNDLESS, bench, serving
from tests.support.until import until

SETTINGS = Settings(cache_dir=CACHE_DIR)


async def test_one_service_at_a_time_and_the_same_node_every_time(folder: Path) -> None:
    settings = replace(SETTINGS, data_dir=folder / "data")
    async with open_service(settings) as first:
        with pytest.raises(ConflictError):
            await open_service(settings).__aenter__()
        node = first.node.id
    async with open_service(settings) as again:
        assert again.node.id == node


async def test_directory_of_another_format_is_refused_before_anything_is_opened(folder: Path) -> None:
    settings = replace(SETTINGS, data_dir=folder / "data")
    async with open_service(settings, drivers={"gvisor": MemoryDriver()}):
        pass
    (folder / "data/format").write_text("999\n")
    for file in (folder / "data").glob("sandlot.db*"):
        file.unlink()
    with pytest.raises(HostError, match="has format 999"):
        await open_service(settings).__aenter__()
    with pytest.raises(HostError, match="has format 999"):
        await with_keys(settings, lambda api_keys: api_keys.list())
    assert list((folder / "data").glob("sandlot.db*")) == []


@pytest.mark.real_guest
async def test_another_database_is_refused_and_nothing_is_removed(folder: Path) -> None:
    below, data = folder / "driver", folder / "data"
    below.mkdir()
    driver = BareDriver(below)
    async with serving(folder, driver, keep=True) as service:
        await service.internals.manager.create(OPERATOR, BASE)
        await until(lambda: bool(driver.kept_in_sweeps))
        identity = (data / "store").read_text()
    left, sweeps = driver.leftovers(), len(driver.kept_in_sweeps)
    assert left
    for file in data.glob("sandlot.db*"):
        file.rename(folder / file.name)
    with pytest.raises(HostError, match="another database") as refused:
        async with serving(folder, driver):
            raise AssertionError
    assert str(data / "store") in (refused.value.hint or "")
    assert (driver.leftovers(), len(driver.kept_in_sweeps)) == (left, sweeps)
    (data / "store").unlink()
    async with serving(folder, driver):
        await until(lambda: len(driver.kept_in_sweeps) > sweeps)
    assert (data / "store").read_text() != identity
    await driver.booted[0].destroy()
    assert driver.leftovers() == []


async def test_what_an_earlier_one_left_is_swept(folder: Path) -> None:
    driver = MemoryDriver()
    swept = driver.faults.hold("sweep")
    async with open_service(replace(SETTINGS, data_dir=folder / "data"), drivers={"gvisor": driver}):
        await driver.faults.reach("sweep")
        swept.set()
    assert driver.kept_in_sweeps == [frozenset()]


async def test_a_sweep_that_fails_keeps_no_service_from_serving(folder: Path) -> None:
    driver = MemoryDriver()
    driver.faults.raises["sweep"] = [OSError("no")]
    async with open_service(replace(SETTINGS, data_dir=folder / "data"), drivers={"gvisor": driver}) as service:
        assert (await service.internals.reservations.capacity()).sandboxes == 0


def test_every_installed_driver_is_there() -> None:
    drivers = own_drivers(SETTINGS, NodeId("aaaa"))
    assert tuple(drivers) == driver_names()
    assert all(driver.name == name for name, driver in drivers.items())


async def test_only_the_service_finds_internal_images(tmp_path: Path) -> None:
    templates = ImageTemplates(ImageStore(tmp_path))
    assert await templates.find(INTERNAL, "builder") == TemplateRef(LOCAL, "builder")
    assert await templates.find(OPERATOR, "builder") is None
    assert "builder" not in {each.name for each in await templates.list(OPERATOR)}


async def test_templates_are_the_recipes_and_bring_their_environment() -> None:
    templates = ImageTemplates(ImageStore(CACHE_DIR))
    assert {each.name for each in await templates.list(OPERATOR)} >= {"base", "code-interpreter"}
    ref = await templates.find(OPERATOR, "base")
    assert ref == TemplateRef(LOCAL, "base")
    base = await templates.build(ref, images=False)
    assert base.root.require_tree().is_dir()
    assert "/usr/bin" in base.env["PATH"]
    assert await templates.at(replace(ref, digest=base.root.digest)) == base


async def test_what_is_not_built_yet_has_no_digest(tmp_path: Path) -> None:
    assert {each.digest for each in await ImageTemplates(ImageStore(tmp_path)).list(OPERATOR)} == {None}


async def test_a_service_that_ends_does_not_wait_for_a_build(folder: Path) -> None:
    settings = replace(SETTINGS, data_dir=folder / "data", cache_dir=folder / "cache")
    below = folder / "driver"
    below.mkdir()
    async with open_service(settings, drivers={"gvisor": MemoryDriver()}, read_host=lambda: BOUNDLESS) as service:
        creating = asyncio.create_task(service.internals.manager.create(OPERATOR, BASE))
        await until((folder / "cache").exists)
        # Whoever waits for it can be told what for.
        while not any(each.name == "base" and each.building for each in await service.node.templates.list(OPERATOR)):
            assert not creating.done()
            await asyncio.sleep(0.01)
    with pytest.raises(UnavailableError):
        await creating
    await asyncio.get_running_loop().shutdown_default_executor()
    assert ImageStore(folder / "cache").find("base") is None


async def test_stop_does_not_wait_for_a_store_that_does_not_respond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "LAST_WRITE_S", 0.2)
    responds, requested = asyncio.Event(), asyncio.Event()
    before = asyncio.all_tasks()

    async def hang(*_: object) -> None:
        requested.set()
        await outlast_cancellation(responds.wait())  # like a transaction that has begun: no cancellation ends it
        raise UnavailableError("The database does not respond.", code=ErrorCode.SERVICE_UNAVAILABLE)

    async with asyncio.timeout(60):
        async with bench(tmp_path) as at:
            monkeypatch.setattr(at.service.store.executions, "add_monthly_counts", hang)
            at.service.internals.execution_counter.count(LOCAL)
            await requested.wait()
        responds.set()
        await until(lambda: asyncio.all_tasks() <= before)


async def test_rule_that_allows_an_own_address_is_refused(tmp_path: Path) -> None:
    rules = NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["127.0.0.2"]))
    for private, is_allowed in ((("127.0.0.0/8",), False), (("127.0.0.2/32",), True)):
        settings = Settings(network_private=tuple(map(ip_network, private)))
        async with bench(tmp_path / private[0].replace("/", "-"), settings=settings) as at:
            try:
                sandbox = await at.service.node.sandboxes.create(OPERATOR, replace(BASE, network=rules))
            except InvalidRequestError:
                assert not is_allowed
            else:
                assert (is_allowed, sandbox.spec.network) == (True, rules)


async def test_sandbox_reaches_other_hosts_through_the_gateway_under_its_policy(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        sandbox = await at.service.node.sandboxes.create(OPERATOR, replace(BASE, network=NetworkPolicy(NetworkMode.ALLOWLIST)))
        found = at.sandboxes.find(sandbox.id, OPERATOR)
        stream = at.driver.guest(found.require_instance().ref).open_service(schema.CONNECT, {"host": "example.com", "port": 22})
        assert await stream.read() is None
        assert stream.reset is not None
        (refusal,) = (await at.service.node.network.get(OPERATOR, sandbox.id)).activity.refusals
        assert (refusal.host, refusal.port, refusal.reason) == ("example.com", 22, RefusalReason.HOST_NOT_ALLOWED)
        approved = await at.service.node.network.approve(OPERATOR, sandbox.id, refusal.id)
        assert [entry.rule for entry in approved.spec.network.entries] == ["example.com:22"]

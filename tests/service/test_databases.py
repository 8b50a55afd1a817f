"""Whole services on a real PostgreSQL: one that ends and comes back, and two nodes that share a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.model.access import OPERATOR, Principal, Quota
from sandlot.model.errors import HostError, LimitError, NotFoundError
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.server.composition import RunningService
from sandlot.server.settings import Settings
from tests.support.postgres import Cluster, cluster
from tests.support.service import BASE, bench, client
from tests.support.until import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def settings(postgres: Cluster) -> Settings:
    return Settings(database_url=postgres.database())


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir(exist_ok=True)
    return made


def principal(service: RunningService, secret: str) -> Principal:
    found = service.api_keys.verify(secret)
    assert found is not None
    return found


@pytest.mark.real_guest
async def test_service_on_postgresql_stores_and_lists_everything(tmp_path: Path, settings: Settings) -> None:
    async with bench(tmp_path, settings) as at, client(at.service) as http:
        box = (await http.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}, "metadata": {"team": "red"}})).json()
        done = (await http.post(f"/v1/sandboxes/{box['id']}/processes", json={"command": "printf 'a\\0b'"})).json()
        assert done["stdout"] == "a\0b"
        kept = (await http.post("/v1/files?filename=x.bin", content=b"\0" * 100_000)).json()
        assert (await http.get(f"/v1/files/{kept['id']}/content")).content == b"\0" * 100_000
        (ran,) = (await http.get("/v1/executions")).json()["executions"]
        assert (ran["status"], ran["stdout"]) == ("exited", "a\0b")
        assert (await http.delete(f"/v1/sandboxes/{box['id']}")).status_code == 204
        ended = (await http.get("/v1/sandboxes", params={"state": "stopped", "metadata": "team=red"})).json()["sandboxes"]
        assert [each["id"] for each in ended] == [box["id"]]
        events = (await http.get("/v1/events")).json()["events"]
        assert [each["sequence"] for each in events] == list(range(1, len(events) + 1))
        assert {"sandbox.created", "sandbox.ended"} <= {each["type"] for each in events}
        # Whatever an id is, the database takes it as one that is not there.
        for path in ("/v1/sandboxes/%00", "/v1/executions/%00", "/v1/files/%00", "/v1/events?sandbox=%00", "/v1/executions?sandbox=%00"):
            assert (await http.get(path)).status_code in {200, 400, 404}, path


async def test_nodes_of_one_database_share_keys_and_counts_and_no_sandboxes(tmp_path: Path, settings: Settings) -> None:
    async with bench(folder(tmp_path, "one"), settings) as one, bench(folder(tmp_path, "two"), settings) as two:
        assert one.service.node.id != two.service.node.id
        record, secret = await one.service.api_keys.create("shared", quota=Quota(executions_per_month=1))
        await until(lambda: two.service.api_keys.verify(secret) is not None)
        who = principal(two.service, secret)
        sandbox = await two.sandboxes.create(who, BASE)
        two.service.internals.execution_counter.count(sandbox.owner)
        await two.service.internals.execution_counter.writer.flush()
        await one.service.internals.execution_counter.writer.flush()
        assert one.service.internals.execution_counter.used(record.id) == 1
        mine = await one.sandboxes.create(who, BASE)
        with pytest.raises(LimitError):
            one.service.internals.execution_counter.count(mine.owner)
        assert [each.id for each in one.sandboxes.list(OPERATOR)] == [mine.id]
        with pytest.raises(NotFoundError):
            await one.sandboxes.load(sandbox.id, OPERATOR)
        await one.service.api_keys.revoke("shared")
        await until(lambda: two.service.api_keys.verify(secret) is None)


async def test_restarted_node_settles_its_own_sandboxes_and_no_others(tmp_path: Path, settings: Settings) -> None:
    async with bench(folder(tmp_path, "one"), settings) as other:
        theirs = await other.sandboxes.create(OPERATOR, BASE)
        async with bench(folder(tmp_path, "two"), settings) as at:
            ours = await at.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", limits=BASE.limits, metadata={"a": "b"}))
        async with bench(folder(tmp_path, "two"), settings) as again:
            found = await again.sandboxes.load(ours.id, OPERATOR)
            assert found.ended.is_set()
            assert dict(found.metadata) == {"a": "b"}
            assert again.sandboxes.list(OPERATOR) == []
        assert [each.id for each in other.sandboxes.list(OPERATOR)] == [theirs.id]
        assert not theirs.ended.is_set()


async def test_data_directory_belongs_to_one_database(tmp_path: Path, settings: Settings, postgres: Cluster) -> None:
    async with bench(folder(tmp_path, "one"), settings), bench(folder(tmp_path, "two"), settings):
        pass
    assert (tmp_path / "one" / "data" / "store").read_text() == (tmp_path / "two" / "data" / "store").read_text()
    with pytest.raises(HostError, match="another database"):
        async with bench(folder(tmp_path, "one"), Settings(database_url=postgres.database())):
            raise AssertionError

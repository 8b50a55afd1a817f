"""``sandlot key``, with a running service and without one."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sandlot.cli.main import dispatch
from sandlot.model.access import UNBOUNDED, Quota
from sandlot.model.network import NetworkMode
from sandlot.model.specs import GIB
from sandlot.sdk import Client, ForbiddenError
from sandlot.server.composition import open_service
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from sandlot.web import listener
from tests.support.node import MemoryTemplates, NoPackages
from tests.support.service import Bench, bench

BOUNDS = ["--max-sandboxes", "3", "--max-lifetime", "600", "--max-cpus", "2.5", "--max-memory", "8G", "--max-disk", "20G"]
BOUNDS += ["--max-upload", "1M", "--max-executions", "1000", "--max-pools", "2", "--max-network", "none", "--public-ports"]
STORED = (
    "--max-stored-executions",
    "--max-stored-execution-size",
    "--max-stored-files",
    "--max-stored-file-size",
    "--max-hibernated",
    "--max-templates",
    "--max-template-size",
)
BOUNDS += [word for option, value in zip(STORED, ("5", "6M", "7", "8M", "9", "10", "11M"), strict=True) for word in (option, value)]
BOUND = Quota(
    sandboxes=3,
    lifetime_s=600,
    cpus=2.5,
    memory_bytes=8 * GIB,
    disk_bytes=20 * GIB,
    upload_bytes=1 << 20,
    executions_per_month=1000,
    stored_executions=5,
    stored_execution_bytes=6 << 20,
    stored_files=7,
    stored_file_bytes=8 << 20,
    hibernated_sandboxes=9,
    templates=10,
    template_bytes=11 << 20,
    pools=2,
    network=NetworkMode.NONE,
    public_ports=True,
)


class Command:
    """``sandlot`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self._capsys.readouterr()
        assert dispatch(["key", *arguments]) == status
        out, err = self._capsys.readouterr()
        assert (status == 0) or err.startswith("sandlot: ")
        return out


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Without a service."""
    for name in [name for name in os.environ if name.startswith("SANDLOT_") and name != "SANDLOT_CONFIG"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(tmp_path / "data"))
    return Command(capsys)


@pytest.fixture
async def at(tmp_path: Path, keys: Command) -> AsyncIterator[Bench]:
    """With one."""
    del keys
    # Its log would be on the command's standard output, which is this process's.
    with capture_logs():
        async with bench(tmp_path) as made, serve_in_background(made.service, [listener.unix_socket(made.service.settings.socket)]):
            yield made


def everything(keys: Command) -> None:
    """What is tried in both cases."""
    secret = keys("create", "plain").splitlines()[-1]
    assert secret.startswith("sandlot_")
    made = json.loads(keys("create", "bound", *BOUNDS, "--json"))
    assert made["quota"] == asdict(BOUND)
    assert made["operator"] is False
    boss = json.loads(keys("create", "boss", "--operator", "--json"))
    assert (boss["operator"], boss["quota"]) == (True, asdict(UNBOUNDED))
    unbounded = [word for option in ("--max-sandboxes", "--max-pools", *STORED) for word in (option, "-1")] + ["--public-ports"]
    free = json.loads(keys("create", "free", *unbounded, "--json"))
    assert (free["operator"], free["quota"]) == (False, asdict(UNBOUNDED))
    e2b = json.loads(keys("create", "old", "--e2b", "--expires", "2999-01-01T00:00:00Z", "--json"))
    assert re.fullmatch("e2b_[0-9a-f]{64}", e2b["key"])
    assert e2b["expires_at"] == "2999-01-01T00:00:00+00:00"
    assert keys("update", "old", "--name", "older", "--expires", "never", "--max-cpus", "1", "--max-sandboxes", "-1").strip() == e2b["id"]
    updated = json.loads(keys("update", e2b["id"], "--max-memory", "1G", "--no-installs", "--expires", "1d", "--json"))
    assert (updated["name"], updated["quota"]) == ("older", asdict(Quota(sandboxes=None, cpus=1, memory_bytes=GIB, installs=False)))
    assert abs(datetime.fromisoformat(updated["expires_at"]) - datetime.now(UTC) - timedelta(days=1)) < timedelta(hours=1)
    assert json.loads(keys("update", "older", "--max-memory", "-1", "--json"))["expires_at"] == updated["expires_at"]
    keys("update", "old", status=1)
    keys("update", "older", "--name", "plain", status=1)
    keys("update", "older", "--expires", "soon", status=2)
    keys("rm", "older")
    keys("create", "plain", status=1)
    keys("create", "no name", status=1)
    keys("create", "x", "--max-network", "open", status=2)
    keys("create", "x", "--max-memory", "much", status=2)
    listed = json.loads(keys("ls", "--json"))
    assert [each["name"] for each in listed] == ["plain", "bound", "boss", "free"]
    assert secret not in json.dumps(listed)
    stored = "stored_executions=10000,stored_execution=256M,stored_files=10000,stored_file=10G,hibernated_sandboxes=100"
    lines = [line.split() for line in keys("ls").splitlines()]
    assert lines[0] == ["ID", "NAME", "OPERATOR", "CREATED", "EXPIRES", "QUOTA"]
    assert [(line[1], line[2], line[5]) for line in lines[1:]] == [
        ("plain", "no", f"sandboxes=50,{stored},templates=50,template=50G,pools=4,public_ports=no"),
        (
            "bound",
            "no",
            (
                "sandboxes=3,lifetime=600,cpus=2.5,memory=8G,disk=20G,upload=1M,executions_per_month=1000,"
                "stored_executions=5,stored_execution=6M,stored_files=7,stored_file=8M,hibernated_sandboxes=9,templates=10,template=11M,pools=2,network=none"
            ),
        ),
        ("boss", "yes", "-"),
        ("free", "no", "-"),
    ]
    assert keys("rm", "plain").strip() == listed[0]["id"]
    keys("rm", "plain", status=1)
    assert keys("ls", "-q").split() == [each["id"] for each in listed[1:]]
    assert keys("rm", listed[1]["id"]).strip() == listed[1]["id"]
    assert [each["name"] for each in json.loads(keys("ls", "--json"))] == ["boss", "free"]


def test_without_a_service(keys: Command) -> None:
    assert keys("ls") == ""
    everything(keys)


async def test_with_a_service(at: Bench, keys: Command) -> None:
    await asyncio.to_thread(everything, keys)
    assert [record.name for record in await at.service.api_keys.list()] == ["boss", "free"]


async def test_with_a_service_a_key_holds_at_once(at: Bench, keys: Command) -> None:
    secret = (await asyncio.to_thread(keys, "create", "a")).splitlines()[-1]
    assert at.service.api_keys.verify(secret) is not None
    await asyncio.to_thread(keys, "rm", "a")
    assert at.service.api_keys.verify(secret) is None


async def test_whoami_shows_quota_and_usage(at: Bench, keys: Command) -> None:
    del at
    assert json.loads(await asyncio.to_thread(keys, "whoami", "--json"))["id"] == "local"
    lines = [line.split() for line in (await asyncio.to_thread(keys, "whoami")).splitlines()]
    assert ["operator", "yes"] in lines
    assert ["sandboxes", "0", "no", "limit"] in lines


async def test_the_synchronous_client_has_the_same_verbs_and_the_right_to_them_is_asked_for(at: Bench) -> None:
    tcp = listener.tcp_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    _, plain = await at.service.api_keys.create("plain", quota=Quota(sandboxes=7))
    _, boss = await at.service.api_keys.create("boss", operator=True)

    def use() -> None:
        with Client(url=url, api_key=plain) as client:
            me = client.keys.get_current()
            assert (me.name, me.operator, me.quota) == ("plain", False, Quota(sandboxes=7))
            with pytest.raises(ForbiddenError):
                client.keys.list()
        with Client(url=url, api_key=boss) as client:
            assert [each.name for each in client.keys.list()] == ["plain", "boss"]
            assert client.keys.create("third").key.startswith("sandlot_")
            client.keys.delete("third")

    async with serve_in_background(at.service, [tcp]):
        await asyncio.to_thread(use)


def test_a_change_on_the_store_is_seen_by_a_service_within_a_second(tmp_path: Path, keys: Command) -> None:
    async def seen() -> None:
        settings = Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", pools=())
        drivers = {"gvisor": MemoryDriver()}
        # It listens on no socket, so the command writes to the database.
        async with open_service(settings, drivers=drivers, templates=MemoryTemplates(), packages=NoPackages()) as service:
            secret = (await asyncio.to_thread(keys, "create", "late")).splitlines()[-1]
            while service.api_keys.verify(secret) is None:  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.01)

    asyncio.run(seen())

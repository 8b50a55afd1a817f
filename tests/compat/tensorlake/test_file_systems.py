"""File systems of sandboxes: those that they are made with, and those that Tensorlake's own client puts in and takes out while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from tensorlake.sandbox import AsyncSandboxClient, RemoteAPIError, Sandbox, SandboxClient, SandboxNotFoundError
from tensorlake.sandbox.models import FileSystemMount

from sandlot.model.specs import MIB
from tests.compat.tensorlake.asking import status, until_so
from tests.support.cases import cases
from tests.support.tcpservice import TcpService


@pytest.fixture
def shelf(service: TcpService, key: str) -> Iterator[str]:
    """A volume, of which nobody has anything in the end."""
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as http:
        made = http.post("/v1/volumes", json={"name": "lasting", "size_bytes": 64 * MIB})
        assert made.status_code == 201, made.text
        yield "lasting"
        assert http.delete("/v1/volumes/lasting").status_code == 204


def test_volumes_are_file_systems(client: SandboxClient, service: TcpService, key: str) -> None:
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as http:
        made = http.post("/v1/volumes", json={"name": "shelf", "size_bytes": 64 * MIB})
        assert made.status_code == 201, made.text
        mount = FileSystemMount(file_system_id="shelf", mount_path="/mnt/shelf")
        with client.create_and_connect(memory_mb=256, file_systems=[mount]) as box:
            assert box.run("sh", ["-c", "echo kept > /mnt/shelf/file"], user="root").exit_code == 0
            assert [(each.mount_path, each.read_only) for each in box.info().file_systems] == [("/mnt/shelf", False)]
        read_only = FileSystemMount(file_system_id="shelf", mount_path="/mnt/other", read_only=True)
        with client.create_and_connect(memory_mb=256, file_systems=[read_only]) as box:
            done = box.run("sh", ["-c", "cat /mnt/other/file; echo x > /mnt/other/file"], user="root")
            assert (done.stdout, done.exit_code != 0) == ("kept", True)
        with pytest.raises(RemoteAPIError, match="404"):
            client.create(file_systems=[FileSystemMount(file_system_id="nowhere", mount_path="/mnt/x")])
        assert http.delete("/v1/volumes/shelf").status_code == 204


def test_file_system_is_attached_to_and_detached_from_a_running_sandbox(client: SandboxClient, box: Sandbox, shelf: str) -> None:
    told = box.attach_file_system(shelf, "/mnt/shelf")
    assert [(each.file_system_id, each.mount_path, each.read_only) for each in told.file_systems] == [(shelf, "/mnt/shelf", False)]
    assert box.run("sh", ["-c", "echo kept > /mnt/shelf/file; cat /mnt/shelf/file"]).stdout == "kept"
    assert [each.file_system_id for each in box.list_file_systems()] == [shelf]
    assert box.detach_file_system("/mnt/shelf").file_systems == []
    assert box.run("ls", ["-A", "/mnt/shelf"]).stdout == ""
    assert status(lambda: client.attach_file_system(box.sandbox_id, shelf, "/proc/x")) == 400
    assert box.attach_file_system(shelf, "/mnt/other", read_only=True).file_systems[0].read_only
    done = box.run("sh", ["-c", "cat /mnt/other/file; echo x > /mnt/other/file"], user="root")
    assert (done.stdout, done.exit_code != 0) == ("kept", True)
    box.detach_file_system("/mnt/other")


def test_file_system_in_use_is_not_detached(client: SandboxClient, box: Sandbox, shelf: str) -> None:
    box.attach_file_system(shelf, "/mnt/shelf")
    box.attach_file_system(shelf, "/mnt/shelf")
    holder = box.start_process("sh", ["-c", "exec 3>>/mnt/shelf/file; echo held; sleep 1000"])
    until_so(lambda: "held" in "".join(box.get_stdout(holder.pid).lines))
    assert status(lambda: client.detach_file_system(box.sandbox_id, "/mnt/shelf")) == 409
    assert status(lambda: client.attach_file_system(box.sandbox_id, shelf, "/mnt/elsewhere")) == 409
    assert [each.mount_path for each in box.list_file_systems()] == ["/mnt/shelf"]
    box.kill_process(holder.pid)
    box.follow_output(holder.pid)
    assert box.detach_file_system("/mnt/shelf").file_systems == []


@cases("field", [{"prefetch": True}, {"owner": "root"}, {"read_only": True, "snapshot_id": "s"}])
def test_unsupported_mount_options_are_refused(client: SandboxClient, box: Sandbox, shelf: str, field: dict[str, object]) -> None:
    assert status(lambda: client.attach_file_system(box.sandbox_id, shelf, "/mnt/shelf", **field)) == 400
    assert box.list_file_systems() == []


def test_missing_and_foreign_file_systems_are_not_found(client: SandboxClient, stranger: SandboxClient, box: Sandbox, shelf: str) -> None:
    with stranger.create_and_connect(memory_mb=256) as theirs:
        works: tuple[Callable[[], object], ...] = (
            lambda: client.attach_file_system(box.sandbox_id, "nowhere", "/mnt/x"),
            lambda: client.detach_file_system(box.sandbox_id, "/mnt/x"),
            lambda: stranger.attach_file_system(box.sandbox_id, shelf, "/mnt/x"),
            lambda: stranger.detach_file_system(box.sandbox_id, "/mnt/x"),
            lambda: stranger.attach_file_system(theirs.sandbox_id, shelf, "/mnt/x"),
        )
        for work in works:
            with pytest.raises(SandboxNotFoundError):
                work()


def test_file_systems_work_from_another_host(box: Sandbox, url: str, key: str, shelf: str) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {key}"}) as http:
        place = f"{url}/sandboxes/{box.sandbox_id}/file_systems"
        put = http.post(place, json={"file_system_id": shelf, "mount_path": "/mnt/shelf"})
        assert (put.status_code, put.json()["file_systems"][0]["mount_path"]) == (200, "/mnt/shelf")
        assert box.run("touch", ["/mnt/shelf/file"]).exit_code == 0
        taken = http.request("DELETE", place, json={"mount_path": "/mnt/shelf"})
        assert (taken.status_code, taken.json()["file_systems"]) == (200, [])


async def test_async_classes_handle_file_systems(url: str, key: str, box: Sandbox, shelf: str) -> None:
    with pytest.deprecated_call():
        client = AsyncSandboxClient(api_url=url, api_key=key)
    async with client, await client.connect(box.sandbox_id) as same:
        assert [each.mount_path for each in (await client.attach_file_system(box.sandbox_id, shelf, "/mnt/a")).file_systems] == ["/mnt/a"]
        assert (await same.run("sh", ["-c", "echo kept > /mnt/a/file"])).exit_code == 0
        assert (await client.detach_file_system(box.sandbox_id, "/mnt/a")).file_systems == []
        assert [each.mount_path for each in (await same.attach_file_system(shelf, "/mnt/b", read_only=True)).file_systems] == ["/mnt/b"]
        assert (await same.run("cat", ["/mnt/b/file"])).stdout == "kept"
        assert (await same.detach_file_system("/mnt/b")).file_systems == []

"""AgentSandbox's routes on a service in the test's process: what its own client never sends, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import structlog

from sandlot.compat.agentsandbox import run_files, translate
from sandlot.core.execution import changes
from sandlot.core.files import files
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, UnavailableError
from sandlot.model.files import ChangedFile
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import User
from sandlot.server.settings import Settings
from tests.support.cases import cases
from tests.support.service import bench, client, detach_when_announced
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/agentsandbox"


@pytest.fixture
async def session(http: httpx.AsyncClient) -> str:
    return str(ok(await http.post(f"{HERE}/v1/sessions", json={}), 200)["session_id"])


def refused(response: httpx.Response, status: int) -> str:
    """The message of a failure, which must be one in the vendor's shape."""
    assert response.headers["content-type"] == "application/json"
    error = ok(response, status)["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert error["code"]
    return str(error["message"])


@cases("method, path", [("POST", "/v1/api-keys"), ("GET", "/oauth/authorize"), ("POST", "/oauth/token")])
async def test_unsupported_calls_are_refused_in_the_vendors_format(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert "sandlot key create" in refused(await http.request(method, HERE + path, json={"name": "x"}), 501)


async def test_wrong_methods_paths_and_bodies_are_refused_in_the_vendors_format(http: httpx.AsyncClient) -> None:
    assert "POST" in refused(await http.put(f"{HERE}/v1/execute", json={}), 405)
    assert "docs/explanation/compatibility-apis.md" in refused(await http.get(f"{HERE}/v1/nope"), 404)
    for method in ("GET", "DELETE"):
        refused(await http.request(method, f"{HERE}/v1/sessions/"), 404)  # a client's delete("") has deleted nothing
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"code": 1}', b'"x"', b"[" * 5000):
        refused(await http.post(f"{HERE}/v1/execute", content=content, headers={"Content-Type": "application/json"}), 422)
    refused(await http.post(f"{HERE}/v1/execute", content=b"{}", headers={"Content-Type": "text/plain"}), 422)
    assert "8388608" in refused(await http.post(f"{HERE}/v1/execute", content=b"x" * 9_000_000), 413)
    assert "form" in refused(await http.post(f"{HERE}/v1/files", content=b"x", headers={"Content-Type": "text/plain"}), 422)


async def test_internal_error_has_the_vendors_format_and_no_details(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(SandboxRegistry, "page", fails)
    with structlog.testing.capture_logs() as logged:
        message = refused(await http.get(f"{HERE}/v1/sessions"), 500)
    assert "secret" not in message
    assert "request.defect" in {line["event"] for line in logged}


async def test_full_service_responds_503_with_retry_after(folder: Path) -> None:
    async with bench(folder, settings=replace(Settings(), max_sandboxes=1)) as at, client(at.service) as http:
        ok(await http.post(f"{HERE}/v1/sessions"), 200)
        for path, body in (("sessions", {}), ("execute", {"code": "1"})):
            response = await http.post(f"{HERE}/v1/{path}", json=body)
            assert "1 sandboxes" in refused(response, 503)
            assert int(response.headers["retry-after"]) > 0


async def test_session_whose_files_cannot_be_injected_is_removed(at: SharedBench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise UnavailableError("no")

    file = ok(await http.post(f"{HERE}/v1/files", files={"file": ("a", b"a")}), 200)["file_id"]
    refused(await http.post(f"{HERE}/v1/sessions", json={"file_ids": [file, "file-none"]}), 404)
    assert at.sandboxes.held == 0
    monkeypatch.setattr(type(at.service.node.file_store), "inject", fails)
    assert (await http.post(f"{HERE}/v1/sessions", json={"file_ids": [file]})).status_code >= 500
    await until(lambda: at.sandboxes.held == 0)


async def test_session_is_found_by_its_id_only(http: httpx.AsyncClient, session: str) -> None:
    ok(await http.patch(f"/v1/sandboxes/{session}", json={"name": "mine"}))
    refused(await http.get(f"{HERE}/v1/sessions/mine"), 404)
    assert ok(await http.get(f"{HERE}/v1/sessions/{session}")) == {"session_id": session, "created": False}


async def test_outputs_in_a_large_tree_are_kept(http: httpx.AsyncClient, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracked: list[object] = []

    class Tracker:
        async def report(self) -> tuple[list[ChangedFile], bool]:
            return [ChangedFile("/output/a", created=True, size_bytes=1, modified_ns=0)], False

        def close(self) -> None:
            tracked.append("closed")

    async def track(_: object, folders: object, user: User) -> Tracker:
        tracked.extend([folders, user])
        return Tracker()

    monkeypatch.setattr(run_files, "FEW_DIRECTORIES", 1)
    monkeypatch.setattr(changes, "track", track)
    code = {"code": "echo 1 > /output/a; echo 2 > /output/b", "language": "bash", "session_id": session}
    told = ok(await http.post(f"{HERE}/v1/execute", json=code))
    assert ([file["filename"] for file in told["files"]], tracked) == (["a"], [run_files.DIRECTORIES, User.USER, "closed"])


async def test_disconnect_ends_the_run_and_keeps_the_session(at: SharedBench, http: httpx.AsyncClient, session: str) -> None:
    for body in ({"code": "sleep 1000", "language": "bash", "session_id": session}, {"code": "sleep 1000", "language": "bash"}):
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{HERE}/v1/execute", json=body, timeout=1)
    await until(lambda: at.sandboxes.held == 1)

    async def ended() -> bool:
        listed = ok(await http.get(f"/v1/sandboxes/{session}/processes"), 200)["processes"]
        return not any(each["running"] for each in listed)

    await until(ended)


async def test_service_that_stops_when_the_sandbox_of_a_run_is_announced_ends_it(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    detached = detach_when_announced(monkeypatch)
    await http.post(f"{HERE}/v1/execute", json={"code": "sleep 1000", "language": "bash"})
    (sandbox,) = detached
    assert not sandbox.detaching.is_set()
    await sandbox.ended.wait()
    assert sandbox.exit == Exit(ExitReason.KILLED, "the service was stopped")


async def test_run_is_ended_before_its_client_times_out(http: httpx.AsyncClient, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "CLIENT_TIMEOUT_S", run_files.RESPONSE_MARGIN_S + 2)
    code = "echo begun; echo made > file; sleep 1000 & sleep 1000"
    told = ok(await http.post(f"{HERE}/v1/execute", json={"code": code, "language": "bash", "session_id": session}), 200)
    assert (told["return_code"], told["stdout"]) == (124, "begun\n")
    assert "killed this run after 2 seconds" in told["stderr"]
    assert [file["filename"] for file in told["files"]] == ["file"]


async def test_short_code_runs_in_a_session_with_a_full_disk(http: httpx.AsyncClient, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise LimitError("The disk of the sandbox is full.", code=ErrorCode.DISK_FULL)

    monkeypatch.setattr(files, "write", full)
    for language, code in (("bash", "echo 2"), ("python", "print(1 + 1)")):
        told = ok(await http.post(f"{HERE}/v1/execute", json={"code": code, "language": language, "session_id": session}), 200)
        assert (told["stdout"], told["stderr"]) == ("2\n", "")
    assert "full" in refused(await http.post(f"{HERE}/v1/execute", json={"code": "#" * 200_000, "session_id": session}), 507)


async def test_failed_preparation_leaves_no_program_file(at: SharedBench, http: httpx.AsyncClient, session: str) -> None:
    file = ok(await http.post(f"{HERE}/v1/files", files={"file": ("a", b"a")}), 200)["file_id"]
    ran = {"language": "bash", "session_id": session}

    async def fails(*_: object, **__: object) -> None:
        await asyncio.sleep(0.5)  # the program, which is written meanwhile, is there by now
        raise UnavailableError("no", code=ErrorCode.BUSY)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(at.service.node.file_store), "inject", fails)
        refused(await http.post(f"{HERE}/v1/execute", json={"code": "touch ran", "file_ids": [file], **ran}), 503)
    (sandbox,) = at.sandboxes.list(OPERATOR)

    async def alone() -> bool:
        return not (await files.listing(sandbox, translate.PROGRAMS, user=User.ROOT)).entries

    await until(alone)
    told = ok(await http.post(f"{HERE}/v1/execute", json={"code": "ls -A", "file_ids": [file], **ran}), 200)
    assert (told["stdout"], told["return_code"]) == ("a\n", 0)


async def test_interrupted_upload_leaves_no_file(http: httpx.AsyncClient) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 100_000

    refused(await http.post(f"{HERE}/v1/files", content=cut(), headers={"Content-Type": "multipart/form-data; boundary=b"}), 422)
    refused(await http.post(f"{HERE}/v1/files?session_id=sb-none", files={"file": ("a", b"a")}), 404)
    assert ok(await http.get(f"{HERE}/v1/files"), 200)["total"] == 0


async def test_html_file_is_downloaded_as_an_attachment(http: httpx.AsyncClient) -> None:
    page = b"<script>alert(1)</script>"
    file = ok(await http.post(f"{HERE}/v1/files", files={"file": ('a"b é.html', page, "text/html")}), 200)["file_id"]
    response = await http.get(f"{HERE}/v1/files/{file}")
    assert response.content == page
    assert response.headers["content-length"] == str(len(page))
    assert response.headers["content-disposition"].startswith("attachment;")
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_end_of_the_sandbox_is_reported_in_the_runs_result(http: httpx.AsyncClient, at: SharedBench, session: str) -> None:
    run = asyncio.create_task(http.post(f"{HERE}/v1/execute", json={"code": "echo $$ > pid; sleep 1000", "language": "bash", "session_id": session}))
    (sandbox,) = at.sandboxes.list(OPERATOR)
    await until(lambda: _is_there(sandbox, "/workspace/pid"))
    await at.sandboxes.kill(OPERATOR, session)
    told = ok(await run, 200)
    assert told["return_code"] == 137
    assert "has ended" in told["stderr"]
    assert "killed by request" in refused(await http.post(f"{HERE}/v1/execute", json={"code": "1", "session_id": session}), 404)
    assert ok(await http.get(f"{HERE}/v1/sessions"), 200) == {"sessions": []}


async def _is_there(sandbox: Sandbox, path: str) -> bool:
    with suppress(NotFoundError):
        return bool(await files.stat(sandbox, path, user=User.USER))
    return False

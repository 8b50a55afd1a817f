"""A sandbox's inside on a service in the test's process: what E2B's clients never send, whose sandbox is whose, and what ends."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.compat.e2b import API
from sandlot.compat.e2b.envd import connect_rpc, filesystem, signed_urls
from sandlot.compat.e2b.envd.routes import router
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Quota
from tests.meta.test_fields import request_fields
from tests.support.until import until
from tests.unit.compat.e2b.speaking import FILES, HERE, PROCESS, Inside, Json, b64, envelope, output, started, unpacked
from tests.unit.compat.shared import SharedBench
from tests.unit.compat.test_vendor import VALUES

STREAMING = (f"{PROCESS}/Start", f"{PROCESS}/Connect", f"{FILES}/WatchDir", f"{PROCESS}/StreamInput")
UNARY = tuple(
    sorted(HERE + route.path for route in router.routes if route.path.startswith(("/process", "/filesystem")) and HERE + route.path not in STREAMING)  # type: ignore[attr-defined]
)
FIELDS = st.sampled_from(sorted({name for _, name in request_fields(API)}))
BODIES = st.dictionaries(FIELDS, VALUES | st.dictionaries(FIELDS, VALUES | st.dictionaries(FIELDS, VALUES, max_size=3), max_size=3), max_size=4)
CONTENT = BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=100)


@pytest.fixture
async def sandbox(at: SharedBench) -> Sandbox:
    return await at.sandbox()


@pytest.fixture
async def inside(http: httpx.AsyncClient, sandbox: Sandbox) -> AsyncIterator[Inside]:
    yield Inside(http, sandbox.id)
    await until(lambda: sandbox.activity.held == 0)


async def pids(inside: Inside) -> list[int]:
    return [each["pid"] for each in (await inside.ask(f"{PROCESS}/List", {}))["processes"]]


async def test_health_reports_the_sandbox_named_in_the_header(http: httpx.AsyncClient, at: SharedBench, inside: Inside) -> None:
    assert (await http.get(f"{HERE}/health", headers=inside.headers)).status_code == 204
    unknown = await http.get(f"{HERE}/health", headers={"E2b-Sandbox-Id": "sb-none-0000000000000000"})
    assert (unknown.status_code, unknown.json()["code"]) == (502, 502)
    assert "was not found" in unknown.json()["message"]
    nobody = await http.get(f"{HERE}/health")
    assert (nobody.status_code, nobody.json()["code"]) == (400, 400)
    await at.sandboxes.pause(OPERATOR, inside.sandbox)
    assert (await http.get(f"{HERE}/health", headers=inside.headers)).status_code == 502
    assert at.sandboxes.find(inside.sandbox, OPERATOR).state == "paused", "it is not resumed by being looked at"
    await at.sandboxes.kill(OPERATOR, inside.sandbox)
    assert "was not found" in (await http.get(f"{HERE}/health", headers=inside.headers)).json()["message"]
    assert "was not found" in await inside.refused(f"{PROCESS}/List", {}, "unavailable", 502)
    error = await inside.failed(f"{PROCESS}/Start", started("true"))
    assert (error["code"], "was not found" in error["message"]) == ("unavailable", True)


async def test_malformed_envelopes_get_connect_errors(inside: Inside) -> None:
    right = envelope(started("true"))
    for method in STREAMING:
        for body, code in (
            (b"", "invalid_argument"),
            (right[:3], "invalid_argument"),
            (right[:-1], "invalid_argument"),
            (envelope(b"{"), "invalid_argument"),
            (envelope(b"[]"), "invalid_argument"),
            (envelope(b"\xff"), "invalid_argument"),
            (envelope(b"[" * 5000), "invalid_argument"),
            (envelope({"surplus": 1}), "invalid_argument"),
            (envelope({}, flags=1), "unimplemented"),
            (envelope({}, flags=2), "invalid_argument"),
            (envelope({}, flags=255), "invalid_argument"),
            (b"\0\xff\xff\xff\xff", "resource_exhausted"),
        ):
            error = await inside.failed(method, body=body)
            assert (error["code"], bool(error["message"])) == (code, True), (method, body[:20])
    for method in set(STREAMING) - {f"{PROCESS}/StreamInput"}:
        assert (await inside.failed(method, body=right + right))["code"] == "invalid_argument"
    assert await pids(inside) == []


async def test_malformed_unary_messages_are_refused(inside: Inside) -> None:
    for method in UNARY:
        for body in (b"{", b"[]", b"null", b"\xff", b"[" * 5000, b'"x"', {"surplus": 1}, {f"x{number}": 1 for number in range(500)}):
            assert await inside.refused(method, body, "invalid_argument", 400)
        assert await inside.refused(method, {}, "unimplemented", 501, **{"Content-Type": "application/proto"})
        assert await inside.refused(method, {}, "unimplemented", 501, **{"Content-Type": connect_rpc.STREAM})
        assert (await inside.http.get(method, headers=inside.headers)).status_code == 405
    large = await inside.http.post(UNARY[0], content=b"{}" + b" " * 9_000_000, headers={**inside.headers, "Content-Type": connect_rpc.UNARY})
    assert (large.status_code, large.json()["code"]) == (413, 413)
    assert (await inside.http.post(f"{PROCESS}/Nothing", content=b"{}", headers=inside.headers)).json()["code"] == 404


async def test_malformed_headers_are_refused(inside: Inside) -> None:
    for header in ({"Connect-Timeout-Ms": "soon"}, {"Keepalive-Ping-Interval": "-1"}, {"Keepalive-Ping-Interval": "0"}):
        assert await inside.refused(f"{PROCESS}/List", {}, "invalid_argument", 400, **header)
    for user in ("no-such-user", "us er", "user:\xff", ""):
        basic = f"Basic {b64(f'{user}:'.encode('latin-1'))}"
        status = 200 if not user else 401
        answer = await inside.http.post(f"{FILES}/Stat", json={"path": "/"}, headers={**inside.headers, "Authorization": basic})
        assert answer.status_code == status, answer.text
    assert await inside.refused(f"{FILES}/Stat", {"path": "/"}, "unauthenticated", 401, Authorization="Basic %%%")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(UNARY), content=CONTENT)
async def test_any_unary_request_gets_json_and_no_internal_error(inside: Inside, method: str, content: bytes) -> None:
    headers = {**inside.headers, "Content-Type": connect_rpc.UNARY, "Connect-Timeout-Ms": "1000"}
    answer = await inside.http.post(method, content=content, headers=headers)
    assert answer.status_code not in {500, 502}, answer.text
    assert answer.headers["content-type"] == connect_rpc.UNARY
    assert isinstance(answer.json(), dict)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(STREAMING), content=CONTENT.map(envelope) | st.binary(max_size=100))
async def test_any_stream_request_ends_with_an_end_of_stream_envelope(inside: Inside, method: str, content: bytes) -> None:
    _, last = await inside.all(method, body=content, **{"Connect-Timeout-Ms": "100"})
    assert last == {} or last["error"]["code"] not in {"internal", "unavailable", "unknown"}, last


async def test_terminal_takes_input_and_sizes_only_as_a_terminal(inside: Inside) -> None:
    async with inside.following(f"{PROCESS}/Start", started("cat", pty={"size": {}})) as told:
        pid = (await anext(told))["event"]["start"]["pid"]
        assert await inside.refused(f"{PROCESS}/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"x")}}, "invalid_argument", 400)
        assert await inside.refused(f"{PROCESS}/CloseStdin", {"process": {"pid": pid}}, "already_exists", 409)
        assert await inside.ask(f"{PROCESS}/Update", {"process": {"pid": pid}}) == {}
        assert await inside.ask(f"{PROCESS}/Update", {"process": {"pid": pid}, "pty": {"size": {"rows": 5, "cols": 6}}}) == {}
        assert await inside.ask(f"{PROCESS}/SendInput", {"process": {"pid": pid}, "input": {"pty": b64(b"x\n")}}) == {}
        assert base64.b64decode((await anext(told))["event"]["data"]["pty"]).startswith(b"x")
        await inside.ask(f"{PROCESS}/SendSignal", {"process": {"pid": pid}, "signal": 9})


async def test_disconnect_leaves_the_command_running(inside: Inside, sandbox: Sandbox) -> None:
    async with inside.following(f"{PROCESS}/Start", started("sleep", "1000", tag="t")) as told:
        pid = (await anext(told))["event"]["start"]["pid"]
    await until(lambda: sandbox.activity.held == 0)
    assert await pids(inside) == [pid]
    told_of, last = await inside.all(f"{PROCESS}/Connect", {"process": {"pid": pid}}, body=None, **{"Connect-Timeout-Ms": "200"})
    assert (told_of, last["error"]["code"]) == ([{"event": {"start": {"pid": pid}}}], "deadline_exceeded")
    assert await pids(inside) == [pid], "a stream's timeout is not the command's"
    for signal in ("SIGNAL_UNSPECIFIED", "SIGHUP", 1, 0):
        assert await inside.refused(f"{PROCESS}/SendSignal", {"process": {"tag": "t"}, "signal": signal}, "unimplemented", 501)
    for nobody in ({"tag": "u"}, {"pid": 0}, {"pid": 4194305}, {"pid": 99_999_999}, {"pid": (1 << 32) - 1}):
        assert await inside.refused(f"{PROCESS}/SendSignal", {"process": nobody, "signal": 9}, "not_found", 404)
    assert await inside.refused(f"{PROCESS}/SendSignal", {"process": {"tag": "t", "pid": pid}, "signal": 15}, "invalid_argument", 400)
    assert await inside.refused(f"{PROCESS}/SendSignal", {"process": {}, "signal": 15}, "invalid_argument", 400)
    assert await inside.ask(f"{PROCESS}/SendSignal", {"process": {"tag": "t"}, "signal": 15}) == {}

    async def none() -> bool:
        return await pids(inside) == []

    await until(none)
    assert (await inside.failed(f"{PROCESS}/Connect", {"process": {"pid": pid}}))["code"] == "not_found"


async def test_streamed_input_is_reassembled_and_accounted(at: SharedBench, inside: Inside) -> None:
    buffers = at.service.node.buffers
    async with inside.following(f"{PROCESS}/Start", started("cat", stdin=True)) as told:
        select = {"process": {"pid": (await anext(told))["event"]["start"]["pid"]}}
        wrongs: Sequence[Sequence[Json]] = (
            [{"data": {"input": {"stdin": ""}}}],
            [{"keepalive": {}}],
            [{"start": select}, {"start": select}],
            [{"start": select}, {"data": {"input": {"pty": ""}}}],
            [{"start": select}, {"data": {"input": {"stdin": "%"}}}],
            [{"start": select}, {"data": {"input": {"stdin": "", "pty": ""}}}],
            [{"start": select}, {}],
            [{"start": select, "keepalive": {}}],
            [],
        )
        for wrong in wrongs:
            assert (await inside.failed(f"{PROCESS}/StreamInput", *wrong))["code"] == "invalid_argument", wrong
        assert (await inside.failed(f"{PROCESS}/StreamInput", {"start": {"process": {"pid": 4194304}}}))["code"] == "not_found"
        arrived, reached = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield envelope({"start": select}) + envelope({"keepalive": {}})
            whole = envelope({"data": {"input": {"stdin": b64(b"y" * 300_000)}}})
            yield whole[:390_000]
            reached.set()
            await arrived.wait()
            yield whole[390_000:]

        headers = {**inside.headers, "Content-Type": connect_rpc.STREAM}
        sending = asyncio.create_task(inside.http.post(f"{PROCESS}/StreamInput", content=body(), headers=headers))
        await reached.wait()
        before = 1000  # of the note of the process
        await until(lambda: buffers.taken_bytes > 300_000)
        arrived.set()
        assert unpacked((await sending).content) == [(0, {}), (2, {})]
        assert buffers.taken_bytes < before
        assert await inside.ask(f"{PROCESS}/CloseStdin", select) == {}
        assert len(output([each async for each in told if "event" in each], "stdout")) == 300_000


async def test_blocked_input_ends_at_its_timeout(inside: Inside) -> None:
    async with inside.following(f"{PROCESS}/Start", started("sleep", "1000", stdin=True)) as told:
        select = {"process": {"pid": (await anext(told))["event"]["start"]["pid"]}}
        data = {**select, "input": {"stdin": b64(bytes(2_000_000))}}
        assert await inside.refused(f"{PROCESS}/SendInput", data, "deadline_exceeded", 408, **{"Connect-Timeout-Ms": "500"})
        await inside.ask(f"{PROCESS}/SendSignal", {**select, "signal": 9})


async def test_recursive_listing_is_bounded(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    await inside.run("sh", "-c", "mkdir -p d/e; touch d/1 d/e/2 d/e/3")
    names = [each["name"] for each in (await inside.ask(f"{FILES}/ListDir", {"path": "d", "depth": 4294967295}))["entries"]]
    assert names == ["1", "e", "2", "3"]
    monkeypatch.setattr(filesystem, "MAX_ENTRIES", 3)
    assert await inside.refused(f"{FILES}/ListDir", {"path": "d", "depth": 2}, "resource_exhausted", 429)
    assert await inside.refused(f"{FILES}/ListDir", {"path": "d", "depth": 4294967296}, "invalid_argument", 400)
    assert await inside.refused(f"{FILES}/ListDir", {"path": "d/1"}, "invalid_argument", 400)


async def send(inside: Inside, status: int, content: bytes = b"", path: str | None = "f", **headers: str) -> httpx.Response:
    query = {} if path is None else {"path": path}
    answer = await inside.http.post(f"{HERE}/files", params=query, content=content, headers={**inside.headers, **headers})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    if status != 200:
        assert answer.json()["code"] == status
    return answer


async def test_malformed_uploads_leave_the_old_file(inside: Inside) -> None:
    await send(inside, 200, b"old")
    packed = gzip.compress(b"new" * 1000)
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    await send(inside, 400, packed[:-5], **{"Content-Encoding": "gzip"})
    await send(inside, 400, b"no gzip", **{"Content-Encoding": "gzip"})
    await send(inside, 400, packed + b"more", **{"Content-Encoding": "gzip"})
    await send(inside, 400, b"", **{"Content-Encoding": "gzip"})
    await send(inside, 400, b"x", **{"Content-Encoding": "br"})
    await send(inside, 400, b"x", path=None)
    await send(inside, 400, b"x", path="f\0")
    await send(inside, 400, b"--x--\r\n", **form)
    await send(inside, 400, b"no form", **form)
    await send(inside, 501, packed, **form, **{"Content-Encoding": "gzip"})
    await send(inside, 400, b"x", **{"X-Metadata-": "b"})
    two = [("file", ("a", b"1")), ("file", ("b", b"2"))]
    both = await inside.http.post(f"{HERE}/files", params={"path": "other"}, files=two, headers=inside.headers)
    assert both.status_code == 400
    assert (await inside.http.get(f"{HERE}/files", params={"path": "f"}, headers=inside.headers)).content == b"old"
    await send(inside, 200, packed + gzip.compress(b"two"), **{"Content-Encoding": "gzip"})
    assert (await inside.http.get(f"{HERE}/files", params={"path": "f"}, headers=inside.headers)).content == b"new" * 1000 + b"two"
    await send(inside, 200, b"x", **{"Content-Encoding": "identity"})
    for query in ({"path": "f", "username": "nobody"}, {"path": "f", "surplus": "1"}, {"path": "nothing"}, {"path": "/"}, {}):
        answer = await inside.http.get(f"{HERE}/files", params=query, headers=inside.headers)
        assert answer.json()["code"] == answer.status_code
        assert answer.status_code in {400, 401, 404}


async def test_written_files_and_created_directories_belong_to_the_user(inside: Inside) -> None:
    await send(inside, 200, b"x", "/opt/of-user/a/file")
    await inside.ask(f"{FILES}/MakeDir", {"path": "/opt/of-user/b/c"})
    await inside.ask(f"{FILES}/Move", {"source": "/opt/of-user/a/file", "destination": "/opt/of-user/d/moved"})
    for path in ("/opt/of-user", "/opt/of-user/a", "/opt/of-user/b/c", "/opt/of-user/d", "/opt/of-user/d/moved"):
        assert (await inside.ask(f"{FILES}/Stat", {"path": path}))["entry"]["owner"] == "user", path
    assert (await inside.ask(f"{FILES}/Stat", {"path": "/opt"}))["entry"]["owner"] == "root"


async def test_compressed_uploads_count_their_unpacked_size(at: SharedBench, sandbox: Sandbox) -> None:
    _, secret = await at.service.api_keys.create("small", quota=Quota(upload_bytes=100_000))
    async with at.client(secret) as http:
        made = (await http.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})).json()["id"]
        inside = Inside(http, made)
        await send(inside, 429, gzip.compress(bytes(10_000_000)), **{"Content-Encoding": "gzip"})
        await send(inside, 200, gzip.compress(bytes(99_000)), **{"Content-Encoding": "gzip"})
    assert sandbox.id != made


async def test_tokens_and_signatures_open_only_their_sandbox(at: SharedBench, sandbox: Sandbox) -> None:
    other = await at.sandbox()
    token = at.service.node.tokens.sandbox_token(OPERATOR, sandbox.id)
    await at.service.api_keys.create("somebody")
    async with at.client() as http:
        shown = {"X-Access-Token": token}
        await Inside(http, sandbox.id, **shown).ask(f"{PROCESS}/List", {})
        for wrong in (Inside(http, other.id, **shown), Inside(http, sandbox.id, **{"X-Access-Token": token + "x"}), Inside(http, sandbox.id)):
            answer = await http.post(f"{PROCESS}/List", content=b"{}", headers={**wrong.headers, "Content-Type": connect_rpc.UNARY})
            assert (answer.status_code, answer.json()["code"]) == (401, 401)
        for path in (f"/v1/sandboxes/{sandbox.id}", f"{HERE}/sandboxes/{sandbox.id}", "/files", "/healthz/../v1/sandboxes"):
            assert (await http.get(path, headers={**shown, "E2b-Sandbox-Id": other.id})).status_code in {401, 404}


async def test_signed_url_is_refused_after_its_expiration(at: SharedBench, sandbox: Sandbox, inside: Inside) -> None:
    await send(inside, 200, b"content")
    token, now = at.service.node.tokens.sandbox_token(OPERATOR, sandbox.id), int(at.service.internals.clock.now().timestamp())
    async with at.client() as http:
        for expires, status in ((now + 600, 200), (now - 1, 401)):
            signature = signed_urls.signature("f", "read", "", token, str(expires))
            query = {"path": "f", "signature": signature, "signature_expiration": str(expires)}
            assert (await http.get("/files", params=query)).status_code == status

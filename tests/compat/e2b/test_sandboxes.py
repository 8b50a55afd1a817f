"""E2B's control plane by E2B's own client against a real service: sandboxes from their making to their end, and what is kept of them.

The client is the vendor's package from PyPI, unmodified, sync and async, over TCP with a key; sandboxes are real, on gVisor. What its classes do not
call is asked for by the client that is generated from E2B's document, which is part of the package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
)
from e2b.api.client.api.sandboxes import (
    get_sandboxes,
    get_sandboxes_metrics,
    get_sandboxes_sandbox_id_logs,
    get_v_2_sandboxes_sandbox_id_logs,
    post_sandboxes,
    post_sandboxes_sandbox_id_connect,
    post_sandboxes_sandbox_id_refreshes,
    post_sandboxes_sandbox_id_resume,
)
from e2b.api.client.api.templates import get_templates, get_templates_aliases_alias, get_templates_template_id, get_v2_templates
from e2b.api.client.client import AuthenticatedClient
from e2b.api.client.models import ConnectSandbox, NewSandbox, ResumedSandbox, SandboxRefreshRequest
from e2b.api.client_sync import get_api_client
from e2b.connection_config import ConnectionConfig

from tests.support.cases import cases
from tests.support.tcpservice import TcpService
from tests.support.traces import settle

Opts = dict[str, Any]

INDEX = "exec 3<>/dev/tcp/127.0.0.1/4479 && printf 'GET /pypi/simple/six/ HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | cut -d' ' -f2"
"""Asks the package index for something: an HTTP status, or nothing where nobody listens."""


@pytest.fixture(scope="module")
def service(gvisor_service: TcpService) -> TcpService:
    return gvisor_service


def opts_of(service: TcpService, key: str) -> Opts:
    return {"api_key": key, "api_url": f"{service.url}/e2b", "sandbox_url": f"{service.url}/e2b"}


@pytest.fixture(scope="module")
def opts(service: TcpService) -> Opts:
    return opts_of(service, service.key("sandboxes", "--e2b"))


@pytest.fixture(scope="module")
def stranger(service: TcpService) -> Opts:
    return opts_of(service, service.key("stranger"))


@pytest.fixture(scope="module")
def api(opts: Opts) -> AuthenticatedClient:
    return get_api_client(ConnectionConfig(**opts))


@pytest.fixture(scope="module")
def sandbox(opts: Opts) -> Iterator[Sandbox]:
    """One sandbox that tests share."""
    made = Sandbox.create(timeout=600, metadata={"who": "shared", "odd name&": "c=d %"}, envs={"COLOUR": "green"}, **opts)
    yield made
    made.kill()


def test_create_options_hold_inside_the_sandbox(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo $COLOUR in $PWD as $(id -un)").stdout == "green in /home/user as user\n"
    assert sandbox.commands.run(INDEX).stdout.strip() not in {"", "403"}
    told = sandbox.get_info()
    assert (told.sandbox_id, told.template_id, told.name) == (sandbox.sandbox_id, "base", "base")
    assert told.metadata == {"who": "shared", "odd name&": "c=d %"}
    assert (told.state, told.cpu_count, told.memory_mb, told.envd_version) == (SandboxState.RUNNING, 1, 1024, "0.6.4")
    assert timedelta(seconds=500) < told.end_at - datetime.now(UTC) <= timedelta(seconds=600)
    assert (told.lifecycle, told.allow_internet_access) == ({"on_timeout": "kill", "auto_resume": False}, None)
    assert sandbox.is_running()


def test_sandbox_without_internet_reaches_nothing(opts: Opts) -> None:
    of_older_clients = {"deny_out": ["0.0.0.0/0"], "allow_public_traffic": True}
    for asked in ({"allow_internet_access": False}, {"network": {"deny_out": ["0.0.0.0/0"]}}, {"network": of_older_clients}):
        with Sandbox.create(**asked, **opts) as closed:
            assert closed.commands.run(f"{INDEX} || true").stdout.strip() in {"", "403"}
            assert closed.get_info().allow_internet_access is False


def test_update_replaces_the_whole_network(opts: Opts) -> None:
    with Sandbox.create(allow_internet_access=True, **opts) as sandbox:
        for change, reaches_index, network in (
            ({"allow_internet_access": False}, False, {"allow_out": [], "deny_out": ["0.0.0.0/0"]}),
            ({}, True, {"allow_out": [], "deny_out": ["0.0.0.0/0"]}),
            (
                {"allow_out": ["*.example.com", "8.8.8.8"], "deny_out": ["0.0.0.0/0"]},
                False,
                {"allow_out": ["*.example.com", "8.8.8.8"], "deny_out": ["0.0.0.0/0"]},
            ),
            ({"allow_internet_access": True}, True, {"allow_out": [], "deny_out": ["0.0.0.0/0"]}),
        ):
            sandbox.update_network(change)
            assert (sandbox.commands.run(f"{INDEX} || true").stdout.strip() not in {"", "403"}) is reaches_index
            assert sandbox.get_info().network == {**network, "allow_public_traffic": False}, (
                "all traffic is denied, because the key may not open the internet"
            )


def test_ports_are_public_by_default_where_the_key_may_have_public_ports(service: TcpService, opts: Opts) -> None:
    public = opts_of(service, service.key("public", "--public-ports"))
    networks: list[tuple[Opts, Any, bool]] = [
        (public, {}, True),
        (public, {"allow_public_traffic": True}, True),
        (public, {"allow_public_traffic": False}, False),
        (opts, {"allow_public_traffic": True}, False),
    ]
    for key, asked, is_public in networks:
        with Sandbox.create(network=asked, **key) as sandbox:
            assert sandbox.get_info().network["allow_public_traffic"] is is_public
            sandbox.update_network({"allow_internet_access": False})
            assert sandbox.get_info().network["allow_public_traffic"] is is_public, "an update of the network does not open ports"
            assert service.client.sandboxes.get(sandbox.sandbox_id).public_ports is is_public


def test_masked_host_is_stored_returned_and_checked(service: TcpService, opts: Opts) -> None:
    with Sandbox.create(network={"mask_request_host": "${PORT}-app.example.com"}, **opts) as sandbox:
        sandbox.update_network({"allow_internet_access": False})
        assert sandbox.get_info().network["mask_request_host"] == "${PORT}-app.example.com"
        assert service.client.sandboxes.get(sandbox.sandbox_id).mask_request_host == "${PORT}-app.example.com"
    with pytest.raises(SandboxException, match=r"\$\{PORT\}-app\.example\.com") as refused:
        Sandbox.create(network={"mask_request_host": "a b"}, **opts)
    assert refused.value.status_code == 400


def test_invalid_networks_are_refused(opts: Opts) -> None:
    networks: list[Any] = [{"allow_out": ["example.com"]}, {"deny_out": ["example.com"]}, {"allow_out": ["10.0.0.1"]}]
    for network in networks:
        with pytest.raises(SandboxException) as refused:
            Sandbox.create(network=network, **opts)
        assert refused.value.status_code == 400


@cases(
    "asked",
    [
        {"network": {"dns_servers": ["8.8.8.8"]}},
        {"iam": {"tokens": {"aws": {"audience": "x", "token_type": "JWT-SVID"}}}},
    ],
)
def test_unenforced_options_are_refused(opts: Opts, asked: dict[str, Any]) -> None:
    with pytest.raises(SandboxException) as refused:
        Sandbox.create(**asked, **opts)
    assert refused.value.status_code == 501


def test_invalid_requests_are_refused(opts: Opts) -> None:
    with pytest.raises(SandboxException, match=r"base, .*code-interpreter-v1") as refused:
        Sandbox.create("no-such-template", **opts)
    assert refused.value.status_code == 404
    with pytest.raises(SandboxException, match=r"'sandlot\.api' cannot be set"):
        Sandbox.create(metadata={"sandlot.api": "x"}, **opts)
    with pytest.raises(AuthenticationException):
        Sandbox.create(**{**opts, "api_key": "e2b_0000"})


def test_volumes_are_mounted_by_name(service: TcpService, opts: Opts) -> None:
    with httpx.Client(headers={"X-API-KEY": opts["api_key"]}) as http:
        volume = http.post(f"{service.url}/v1/volumes", json={"name": "shared"}).raise_for_status().json()["id"]
        for says, expected in (("echo kept > /mnt/v/file", ""), ("cat /mnt/v/file", "kept\n")):
            with Sandbox.create(volume_mounts={"/mnt/v": "shared"}, **opts) as made:
                assert made.commands.run(says).stdout == expected
                assert made.get_info().volume_mounts == [{"name": "shared", "path": "/mnt/v"}]
        with pytest.raises(SandboxException) as absent:
            Sandbox.create(volume_mounts={"/mnt/v": "none"}, **opts)
        assert absent.value.status_code == 404
        assert http.delete(f"{service.url}/v1/volumes/{volume}").status_code == 204


def test_idempotency_key_prevents_a_second_sandbox(opts: Opts) -> None:
    once, again = (Sandbox.create(idempotency_key="k-1", **opts) for _ in range(2))
    assert once.sandbox_id == again.sandbox_id
    once.kill()


def test_idempotency_key_is_known_after_the_quota_of_public_ports_has_changed(service: TcpService) -> None:
    public = opts_of(service, service.key("changing", "--public-ports"))
    once = Sandbox.create(idempotency_key="k-2", **public)
    service.client.keys.update("changing", quota=replace(service.client.keys.get("changing").quota, public_ports=False))
    again = Sandbox.create(idempotency_key="k-2", **public)
    assert once.sandbox_id == again.sandbox_id
    once.kill()


def test_sandboxes_are_listed_with_filters_and_pages(opts: Opts, sandbox: Sandbox) -> None:
    younger = Sandbox.create(metadata={"who": "younger"}, **opts)

    def ids(limit: int = 100, order: Literal["asc", "desc"] = "desc", **query: Any) -> list[str]:  # noqa: ANN401 - E2B's
        pages = Sandbox.list(SandboxQuery(**query), limit=limit, order=order, **opts)
        found = []
        while pages.has_next:
            found += [each.sandbox_id for each in pages.next_items()]
        return found

    both = [younger.sandbox_id, sandbox.sandbox_id]
    assert ids() == ids(limit=1) == both
    assert ids(order="asc", limit=1) == both[::-1]
    assert ids(metadata={"odd name&": "c=d %"}) == [sandbox.sandbox_id]
    assert ids(metadata={"who": "shared", "odd name&": "c"}) == []
    assert ids(state=[SandboxState.PAUSED]) == []
    assert ids(state=[SandboxState.PAUSED, SandboxState.RUNNING], template="base") == both
    assert ids(template="code-interpreter") == []
    assert ids(started_after=younger.get_info().started_at) == [younger.sandbox_id]
    younger.kill()
    assert ids() == [sandbox.sandbox_id]


def test_insecure_sandbox_has_a_token_too(opts: Opts) -> None:
    with Sandbox.create(secure=False, **opts) as made:
        assert made.commands.run("echo hello").stdout == "hello\n"
        headers = {"E2b-Sandbox-Id": made.sandbox_id, "Content-Type": "application/json"}
        url = f"{opts['sandbox_url']}/process.Process/List"
        assert httpx.post(url, content=b"{}", headers=headers).status_code == 401


def test_gateway_that_does_not_start_leaves_no_sandbox(opts: Opts) -> None:
    mark = {"gateway": "absent"}
    with pytest.raises(SandboxException, match="Failed to start MCP gateway"):
        Sandbox.create("base", metadata=mark, mcp=cast("Any", {"some": {}}), **opts)
    assert Sandbox.list(SandboxQuery(metadata=mark), **opts).next_items() == []


def test_kill_ends_a_sandbox_once(opts: Opts) -> None:
    made = Sandbox.create(**opts)
    assert [made.kill(), made.kill(), made.is_running()] == [True, False, False]
    with pytest.raises(SandboxNotRunningException):
        made.commands.run("true")
    with pytest.raises(NotFoundException):
        made.get_info()
    with pytest.raises(NotFoundException):
        made.set_timeout(60)
    with pytest.raises(NotFoundException):
        Sandbox.connect(made.sandbox_id, **opts)


def test_timeout_ends_or_pauses_a_sandbox(opts: Opts) -> None:
    ended = Sandbox.create(timeout=1, **opts)
    settle(ended.is_running, expected=False)
    ending = Sandbox.create(timeout=600, **opts)
    pausing = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True}, **opts)
    assert pausing.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
    resting = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": False}, **opts)
    pausing.commands.run("echo kept > /tmp/kept")
    for each in (ending, pausing, resting):
        each.set_timeout(1)
    settle(ending.is_running, expected=False)
    settle(lambda: [each.get_info().state for each in (pausing, resting)], [SandboxState.PAUSED] * 2)
    with pytest.raises(SandboxNotRunningException):
        resting.commands.run("true")
    resting.kill()
    assert not pausing.is_running()
    assert pausing.commands.run("cat /tmp/kept").stdout == "kept\n"  # which has resumed it
    assert pausing.get_info().state is SandboxState.RUNNING
    pausing.kill()


def test_paused_sandbox_resumes_where_it_was(opts: Opts) -> None:
    made = Sandbox.create(timeout=60, **opts)
    running = made.commands.run("sleep 600", background=True)
    assert [made.pause(strict=True), made.pause()] == [True, False]
    assert made.get_info().state is SandboxState.PAUSED
    assert not made.is_running()
    with pytest.raises(SandboxNotRunningException):
        made.commands.run("true")
    again = Sandbox.connect(made.sandbox_id, timeout=500, **opts)
    assert running.pid in {each.pid for each in again.commands.list()}
    assert again.get_info().end_at - datetime.now(UTC) > timedelta(seconds=400)
    Sandbox.connect(made.sandbox_id, timeout=1, **opts)  # which shortens nothing
    assert again.get_info().end_at - datetime.now(UTC) > timedelta(seconds=390)
    again.kill()


BOOT = "cat /proc/sys/kernel/random/boot_id"


def test_pause_without_memory_keeps_the_files(opts: Opts) -> None:
    made = Sandbox.create(timeout=60, envs={"COLOUR": "green"}, **opts)
    made.files.write("kept", "by the user")
    made.commands.run("echo by root > /etc/kept && rm /etc/motd", user="root")
    made.commands.run("sleep 600", background=True)
    first = made.commands.run(BOOT).stdout
    assert made.pause(mode="filesystem")
    assert (made.is_running(), made.get_info().state) == (False, SandboxState.PAUSED)
    made.connect()
    assert made.commands.run("cat kept /etc/kept; echo $COLOUR; ls /etc/motd; true").stdout == "by the userby root\ngreen\n"
    assert "sleep 600" not in str(made.commands.list())
    assert (second := made.commands.run(BOOT).stdout) != first
    made.commands.run("sleep 600", background=True)
    assert made.pause()
    again = Sandbox.connect(made.sandbox_id, on_resume="reboot", **opts)
    assert (again.files.read("kept"), "sleep 600" in str(again.commands.list())) == ("by the user", False)
    assert again.commands.run(BOOT).stdout not in {first, second}
    again.kill()


def test_timeout_without_memory_keeps_the_files(opts: Opts) -> None:
    made = Sandbox.create(timeout=600, lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}}, **opts)
    made.files.write("kept", "by the user")
    made.commands.run("sleep 600", background=True)
    first = made.commands.run(BOOT).stdout
    made.set_timeout(1)
    settle(lambda: made.get_info().state, SandboxState.PAUSED)
    assert made.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    made.connect()
    assert (made.files.read("kept"), "sleep 600" in str(made.commands.list())) == ("by the user", False)
    assert made.commands.run(BOOT).stdout != first
    made.kill()


def test_calls_of_older_clients_are_served(api: AuthenticatedClient, opts: Opts, sandbox: Sandbox) -> None:
    assert re.fullmatch("e2b_[0-9a-f]{64}", opts["api_key"])  # they refuse other keys
    made = post_sandboxes.sync_detailed(client=api, body=NewSandbox(template_id="base", metadata={"old": "1"}, secure=True)).parsed
    id_ = made.sandbox_id  # type: ignore[union-attr]
    listed = get_sandboxes.sync_detailed(client=api, metadata="old=1").parsed
    assert [each.sandbox_id for each in listed] == [id_]  # type: ignore[union-attr]

    def left() -> timedelta:
        return Sandbox.get_info(id_, **opts).end_at - datetime.now(UTC)

    assert left() <= timedelta(seconds=15)
    assert post_sandboxes_sandbox_id_refreshes.sync_detailed(id_, client=api, body=SandboxRefreshRequest(duration=100)).status_code == 204
    assert left() > timedelta(seconds=60)
    connected = post_sandboxes_sandbox_id_connect.sync_detailed(id_, client=api, body=ConnectSandbox(timeout=200))
    assert connected.status_code == 200
    assert left() > timedelta(seconds=160)
    resume = ResumedSandbox(timeout=300, auto_pause=True)
    assert post_sandboxes_sandbox_id_resume.sync_detailed(id_, client=api, body=resume).status_code == 409
    Sandbox.pause(id_, **opts)
    assert get_sandboxes.sync_detailed(client=api, metadata="old=1").parsed == []
    assert post_sandboxes_sandbox_id_resume.sync_detailed(id_, client=api, body=resume).status_code == 201
    assert left() > timedelta(seconds=250)
    assert Sandbox.get_info(id_, **opts).lifecycle == {"on_timeout": "pause", "auto_resume": False}
    assert Sandbox.kill(id_, **opts)
    assert sandbox.is_running()


def test_snapshots_can_be_used_as_templates(opts: Opts, stranger: Opts, sandbox: Sandbox) -> None:
    sandbox.commands.run("echo kept > /tmp/kept")
    running = sandbox.commands.run("sleep 600", background=True)
    whole, files = sandbox.create_snapshot(name="snap-whole"), sandbox.create_snapshot(mode="filesystem")
    running.kill()
    assert (whole.names, files.names) == (["snap-whole"], [])

    def listed(**query: Any) -> list[str]:  # noqa: ANN401 - E2B's
        pages = Sandbox.list_snapshots(**query, **opts)
        found = []
        while pages.has_next:
            found += [each.snapshot_id for each in pages.next_items()]
        return found

    assert listed() == listed(limit=1) == listed(sandbox_id=sandbox.sandbox_id) == [whole.snapshot_id, files.snapshot_id]
    assert listed(name="snap-whole") == [whole.snapshot_id]
    assert listed(sandbox_id="sb-none") == []
    for name in (whole.snapshot_id, "snap-whole", files.snapshot_id):
        with Sandbox.create(name, timeout=60, metadata={"of": name}, envs={"COLOUR": "red"}, **opts) as made:
            told = made.get_info()
            assert (told.template_id, told.metadata) == (name, {"of": name})
            assert made.commands.run("cat /tmp/kept; echo $COLOUR").stdout == "kept\nred\n"
            assert ("sleep 600" in str(made.commands.list())) == (name != files.snapshot_id)
    with pytest.raises(SandboxException, match="no template or snapshot"):
        Sandbox.create(whole.snapshot_id, **stranger)
    assert Sandbox.delete_snapshot(whole.snapshot_id, **stranger) is False
    assert [Sandbox.delete_snapshot(each.snapshot_id, **opts) for each in (whole, files, whole)] == [True, True, False]
    with pytest.raises(SandboxException, match="the service's own"):
        Sandbox.delete_snapshot("base", **opts)


def test_forks_continue_from_the_sandboxs_state(opts: Opts) -> None:
    with Sandbox.create(metadata={"of": "fork"}, **opts) as parent:
        running = parent.commands.run("sleep 600", background=True)
        children = parent.fork(timeout=120, count=2)
        assert len(children) == 2
        for child in children:
            assert isinstance(child, Sandbox)
            assert running.pid in {each.pid for each in child.commands.list()}
            told = child.get_info()
            assert (told.template_id, told.metadata) == ("base", {"of": "fork"})
            assert timedelta(seconds=60) < told.end_at - datetime.now(UTC) <= timedelta(seconds=120)
            child.kill()


def test_metrics_are_current(api: AuthenticatedClient, sandbox: Sandbox) -> None:
    (now,) = sandbox.get_metrics()
    assert (now.cpu_count, now.mem_total, now.disk_total) == (1, 1 << 30, 5 << 30)
    assert 0 < now.mem_used < now.mem_total
    assert now.cpu_used_pct > 0
    assert sandbox.get_metrics(end=datetime.now(UTC) - timedelta(hours=1)) == []
    many = get_sandboxes_metrics.sync_detailed(client=api, sandbox_ids=[sandbox.sandbox_id, "sb-none"]).parsed
    assert set(many.sandboxes) == {sandbox.sandbox_id}  # type: ignore[union-attr]


def test_logs_contain_the_output_of_runs(api: AuthenticatedClient, sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException):
        sandbox.commands.run("echo logged-out; echo logged-err >&2; exit 3")

    def lines() -> list[str]:
        found = get_v_2_sandboxes_sandbox_id_logs.sync_detailed(sandbox.sandbox_id, client=api, search="logged-").parsed
        return [each.message for each in found.logs if not each.message.startswith("command ")]  # type: ignore[union-attr]

    settle(lines, ["logged-out", "logged-err"])
    old = get_sandboxes_sandbox_id_logs.sync_detailed(sandbox.sandbox_id, client=api).parsed
    assert "logged-out" in [each.line for each in old.logs]  # type: ignore[union-attr]


def test_templates_are_those_of_the_service(api: AuthenticatedClient) -> None:
    for listed in (get_templates, get_v2_templates):
        found = {each.template_id: each for each in listed.sync_detailed(client=api).parsed}
        assert {"base", "code-interpreter"} <= set(found)
        assert "code-interpreter-v1" in found["code-interpreter"].aliases
    one = get_templates_template_id.sync_detailed("code-interpreter-v1", client=api).parsed
    assert (one.template_id, one.envd_version) == ("code-interpreter", "0.6.4")  # type: ignore[union-attr]
    alias = get_templates_aliases_alias.sync_detailed("code-interpreter-v1", client=api).parsed
    assert alias.template_id == "code-interpreter"  # type: ignore[union-attr]
    assert get_templates_aliases_alias.sync_detailed("none", client=api).status_code == 404


def test_unsupported_calls_are_refused_in_the_vendors_format(opts: Opts) -> None:
    with httpx.Client(base_url=opts["api_url"], headers={"X-API-KEY": opts["api_key"]}) as http:
        for method, path in (
            ("POST", "/templates"),
            *(("GET", "/volumes"), ("POST", "/volumes"), ("GET", "/secrets"), ("POST", "/secrets"), ("GET", "/teams")),
            *(("GET", "/volumes/v"), ("DELETE", "/volumes/v"), ("GET", "/secrets/s"), ("POST", "/secrets/s"), ("DELETE", "/secrets/s")),
        ):
            answer = http.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (501, 501), path
            assert answer.json()["message"]


def test_another_key_finds_nothing(opts: Opts, stranger: Opts, sandbox: Sandbox) -> None:
    id_ = sandbox.sandbox_id
    assert Sandbox.list(**stranger).next_items() == []
    assert Sandbox.kill(id_, **stranger) is False
    for ask in (Sandbox.get_info, Sandbox.connect, Sandbox.pause, Sandbox.get_metrics, Sandbox.create_snapshot, Sandbox.fork):
        with pytest.raises(NotFoundException):
            ask(id_, **stranger)
    stolen = {"X-Access-Token": sandbox.connection_config.sandbox_headers["X-Access-Token"], "E2b-Sandbox-Id": id_}
    with httpx.Client(base_url=opts["api_url"], headers=stolen) as http:
        assert http.get("/health").status_code == 204
        assert http.get(f"/sandboxes/{id_}").status_code == 401  # a token is no key
        assert http.get("/health", headers={"E2b-Sandbox-Id": "sb-none"}).status_code == 401


async def test_async_client_does_the_same(opts: Opts) -> None:
    made = await AsyncSandbox.create(timeout=60, metadata={"how": "async"}, **opts)
    found = await AsyncSandbox.list(SandboxQuery(metadata={"how": "async"}), **opts).next_items()
    assert [each.sandbox_id for each in found] == [made.sandbox_id]
    assert await made.pause()
    assert not await made.is_running()
    again = await AsyncSandbox.connect(made.sandbox_id, **opts)
    assert (await again.commands.run("echo on")).stdout == "on\n"
    snapshot = await again.create_snapshot(mode="filesystem")
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id, **opts)
    assert len(await again.get_metrics()) == 1
    assert [await again.kill(), await again.kill()] == [True, False]

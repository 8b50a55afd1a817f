"""What is refused, and how E2B's clients are told: fields that mean nothing here, calls that there are not, ports, and whether to ask again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import RateLimitException, Sandbox, Secret, Volume
from e2b.exceptions import (
    NotEnoughSpaceException,
    SandboxException,
    ServiceBusyException,
    VolumeException,
)

from tests.compat.e2b.conftest import Options
from tests.support.cases import cases
from tests.support.tcpservice import TcpService, tcp_service
from tests.support.traces import settle
from tests.support.until import until


@pytest.fixture(scope="module")
def http(options: Options) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=options["api_url"], headers={"X-API-KEY": options["api_key"]}) as made:
        yield made


def refused(answer: httpx.Response, word: str) -> None:
    """It was, in E2B's shape, and with a message that has that word."""
    assert (answer.status_code, set(answer.json()), answer.json()["code"]) == (501, {"code", "message"}, 501), answer.text
    assert word in answer.json()["message"], answer.text


@cases(
    "field, value, word",
    [
        ("iam", {"tokens": {"aws": {"audience": "x"}}}, "identity"),
        ("iam", {"other": True}, "identity"),
        ("dnsServers", ["8.8.8.8"], "network"),
        ("egressProxy", {"address": "x"}, "network"),
        ("httpsPorts", [443], "network"),
        ("rules", {"x": []}, "network"),
    ],
)
def test_unsupported_fields_are_refused_by_name(http: httpx.Client, sandbox: Sandbox, field: str, value: object, word: str) -> None:
    of_network = word == "network"
    asked = {"network": {field: value}} if of_network else {field: value}
    refused(http.post("/v2/sandboxes", json={"templateID": "base", **asked}), word)
    if of_network:
        refused(http.put(f"/sandboxes/{sandbox.sandbox_id}/network", json={field: value}), word)


def test_unsupported_fields_are_accepted_with_their_neutral_values(http: httpx.Client) -> None:
    network = {"allowOut": [], "denyOut": [], "allowPublicTraffic": False, "dnsServers": [], "egressProxy": {}, "httpsPorts": [], "rules": {}}
    asked = {"templateID": "base", "autoPauseMemory": True, "secure": True, "iam": {"tokens": {}}, "network": network}
    made = http.post("/v2/sandboxes", json=asked)
    assert made.status_code == 201, made.text
    http.delete(f"/sandboxes/{made.json()['sandboxID']}")


def test_volume_and_secret_calls_are_refused(options: Options) -> None:
    for_control: dict[str, Any] = {"api_key": options["api_key"], "api_url": options["api_url"]}
    for ask in (
        Volume.list,
        lambda **opts: Volume.create("v", **opts),
        lambda **opts: Volume.get_info("v", **opts),
        lambda **opts: Volume.destroy("v", **opts),
    ):
        with pytest.raises((VolumeException, SandboxException), match="501"):
            ask(**for_control)
    for ask in (
        lambda **opts: Secret.list(**opts).next_items(),
        lambda **opts: Secret.create("s", "value", **opts),
        lambda **opts: Secret.get_info("s", **opts),
        lambda **opts: Secret.update("s", value="other", **opts),
        lambda **opts: Secret.destroy("s", **opts),
    ):
        with pytest.raises(Exception, match="501"):
            ask(**for_control)


def test_other_volume_secret_and_build_paths_get_errors_in_e2b_format(http: httpx.Client) -> None:
    for method, path, status in (
        *(("GET", "/templates/base/files/abc", 404), ("POST", "/v2/templates/base/builds/b", 400), ("GET", "/templates/base/builds/b/status", 404)),
        *(("POST", "/secrets/s", 501), ("GET", "/templates/base/builds/b/logs", 404), ("GET", "/templates/base/tags/count", 404)),
        *(("PATCH", "/templates/base", 405), ("PATCH", "/v2/templates/base", 404), ("GET", "/default-templates", 404), ("PUT", "/volumes/v", 405)),
        *(("GET", "/volumecontent/v/path", 404), ("PUT", "/volumecontent/v/file", 404), ("GET", "/api-keys", 404), ("POST", "/access-tokens", 404)),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), path
        assert (set(answer.json()), answer.json()["code"]) == ({"code", "message"}, status), path


def test_other_ports_are_not_served_as_e2b_servers(http: httpx.Client, sandbox: Sandbox) -> None:
    inside = {"E2b-Sandbox-Id": sandbox.sandbox_id}
    for path, port, other in (("/health", "49983", "49999"), ("/files?path=/etc/passwd", "49983", "3000"), ("/contexts", "49999", "49983")):
        assert http.get(path, headers={**inside, "E2b-Sandbox-Port": port}).status_code in {200, 204}
        assert http.get(path, headers=inside).status_code in {200, 204}
        refused(http.get(path, headers={**inside, "E2b-Sandbox-Port": other}), other)
    rpc = http.post("/process.Process/List", json={}, headers={**inside, "E2b-Sandbox-Port": "8080"})
    assert (rpc.status_code, rpc.json()["code"]) == (501, "unimplemented")


def answered(service: TcpService, status: int) -> int:
    """How often a create was answered like that."""
    return sum(each.get("path") == "/e2b/v2/sandboxes" and each.get("status") == status for each in service.records())


def test_client_does_not_retry_an_exceeded_zero_quota(service: TcpService, url: str) -> None:
    key = service.key("nothing", "--max-sandboxes", "0")
    before = answered(service, 429)
    with pytest.raises(RateLimitException):
        Sandbox.create(api_key=key, api_url=url, sandbox_url=url)
    said = httpx.post(f"{url}/v2/sandboxes", json={"templateID": "base"}, headers={"X-API-KEY": key})
    settle(lambda: any(each.get("request") == said.headers["x-request-id"] for each in service.records()), expected=True)  # the log is behind
    assert answered(service, 429) == before + 2
    assert (said.headers["should-retry"], "retry-after" in said.headers) == ("false", False)


async def test_client_retries_an_exceeded_quota(service: TcpService, url: str) -> None:
    key = service.key("one", "--max-sandboxes", "1")
    opts: dict[str, Any] = {"api_key": key, "api_url": url, "sandbox_url": url}
    first, second = Sandbox.create(timeout=60, **opts), []
    before = answered(service, 429)
    asking = threading.Thread(target=lambda: second.append(Sandbox.create(timeout=60, **opts)))
    asking.start()
    await until(lambda: answered(service, 429) == before + 1)
    first.kill()
    asking.join()
    assert answered(service, 429) == before + 1
    assert second[0].is_running()
    second[0].kill()


def test_full_service_raises_busy() -> None:
    with tcp_service({"SANDLOT_MAX_SANDBOXES": "1"}, isolation="container") as service:
        opts: dict[str, Any] = {"api_key": service.key("busy"), "api_url": f"{service.url}/e2b", "sandbox_url": f"{service.url}/e2b"}
        first = Sandbox.create(timeout=60, **opts)
        with pytest.raises(ServiceBusyException):
            Sandbox.create(timeout=60, request_timeout=5, **opts)
        settle(lambda: answered(service, 503) > 0, expected=True)
        first.kill()


def test_full_disk_raises_not_enough_space(url: str, options: Options) -> None:
    limits = {"disk_bytes": 64 << 20}
    made = httpx.post(
        f"{url.removesuffix('/e2b')}/v1/sandboxes", json={"template": "base", "limits": limits}, headers={"X-API-KEY": options["api_key"]}
    )
    box = Sandbox.connect(made.raise_for_status().json()["id"], **options)
    with pytest.raises(NotEnoughSpaceException):
        box.files.write("large", bytes(100 << 20))
    assert not box.files.exists("large")
    box.files.write("small", "x")
    box.kill()

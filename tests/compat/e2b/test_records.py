"""What E2B's clients look up: lists and their pages, logs and metrics, by every word that they choose by."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from e2b import Sandbox
from e2b.api.client.api.sandboxes import get_sandboxes_metrics, get_sandboxes_sandbox_id_logs, get_v_2_sandboxes_sandbox_id_logs
from e2b.api.client.api.templates import get_templates, get_v2_templates
from e2b.api.client.client import AuthenticatedClient
from e2b.api.client.models import LogLevel, LogsDirection
from e2b.api.client_sync import get_api_client
from e2b.connection_config import ConnectionConfig

from tests.compat.e2b.conftest import Options
from tests.support.tcpservice import TcpService
from tests.support.traces import settle


@pytest.fixture(scope="module")
def own(service: TcpService, url: str) -> Options:
    """A tenant who has what these tests make, and nothing else."""
    return {"api_key": service.key("records"), "api_url": url, "sandbox_url": url}


@pytest.fixture(scope="module")
def api(own: Options) -> AuthenticatedClient:
    return get_api_client(ConnectionConfig(**own))


@pytest.fixture(scope="module")
def boxes(own: Options) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two, oldest first."""
    older, younger = (Sandbox.create(timeout=600, **own) for _ in range(2))
    yield older, younger
    older.kill()
    younger.kill()


def parsed(answer: Any) -> Any:  # noqa: ANN401 - E2B's
    """What it holds, whichever of its types that is."""
    return answer.parsed


def sizes(pages: Any) -> list[int]:  # noqa: ANN401 - E2B's
    """How many each page of a list has."""
    found = []
    while pages.has_next:
        found.append(len(pages.next_items()))
    return found


def test_pages_are_bounded_and_continue_without_gaps(api: AuthenticatedClient, boxes: tuple[Sandbox, Sandbox], own: Options) -> None:
    assert (sizes(Sandbox.list(limit=1, **own)), sizes(Sandbox.list(limit=2, **own))) == ([1, 1], [2])
    first = Sandbox.list(limit=1, **own)
    first.next_items()
    assert [each.sandbox_id for each in Sandbox.list(limit=1, next_token=first.next_token, **own).next_items()] == [boxes[0].sandbox_id]
    kept = [each.create_snapshot(mode="filesystem").snapshot_id for each in boxes]
    assert (sizes(Sandbox.list_snapshots(limit=1, **own)), sizes(Sandbox.list_snapshots(**own))) == ([1, 1], [2])
    pages = Sandbox.list_snapshots(limit=1, **own)
    pages.next_items()
    assert [each.snapshot_id for each in Sandbox.list_snapshots(next_token=pages.next_token, **own).next_items()] == kept[1:]
    for each in kept:
        Sandbox.delete_snapshot(each, **own)
    every = [each.template_id for each in parsed(get_templates.sync_detailed(client=api))]
    found, next_token = [], None
    while True:
        page: Any = get_v2_templates.sync_detailed(client=api, limit=1, **({} if next_token is None else {"next_token": next_token}))
        found += [each.template_id for each in page.parsed]
        next_token = page.headers.get("x-next-token")
        if next_token is None:
            break
        assert len(page.parsed) == 1
    assert found == sorted(every)


def test_teams_are_not_supported(own: Options) -> None:
    with httpx.Client(base_url=own["api_url"], headers={"X-API-KEY": own["api_key"]}) as http:
        for path in ("/templates", "/v2/templates"):
            refused = http.get(path, params={"teamID": "t"})
            assert (refused.status_code, refused.json()["code"]) == (501, 501)
            assert "teamID" in refused.json()["message"]


def test_logs_are_filtered_by_level_text_and_time_in_both_directions(api: AuthenticatedClient, boxes: tuple[Sandbox, Sandbox]) -> None:
    box = boxes[0]

    def v2(**query: Any) -> list[str]:  # noqa: ANN401 - E2B's
        return [each.message for each in parsed(get_v_2_sandboxes_sandbox_id_logs.sync_detailed(box.sandbox_id, client=api, **query)).logs]

    def old(**query: Any) -> list[str]:  # noqa: ANN401 - E2B's
        return [each.line for each in parsed(get_sandboxes_sandbox_id_logs.sync_detailed(box.sandbox_id, client=api, **query)).logs]

    def said() -> list[str]:
        return [each for each in v2() if not each.startswith("command ")]

    box.commands.run("echo one; echo two >&2")
    settle(said, ["one", "two"])
    box.commands.run("echo three")
    settle(said, ["one", "two", "three"])
    every = v2()
    assert (len(every), old()) == (5, every)
    assert v2(direction=LogsDirection.BACKWARD) == every[::-1]
    assert (v2(limit=2), v2(limit=2, direction=LogsDirection.BACKWARD), old(limit=2)) == (every[:2], every[:2:-1], every[:2])
    assert (v2(level=LogLevel.WARN), v2(level=LogLevel.INFO)) == (["two"], ["one", "two", "three"])
    assert v2(search="thr", level=LogLevel.INFO) == ["three"]
    found = parsed(get_v_2_sandboxes_sandbox_id_logs.sync_detailed(box.sandbox_id, client=api, search="three"))
    late = int(found.logs[-1].timestamp.timestamp() * 1000)
    assert (v2(cursor=late), old(start=late)) == (every[3:], every[3:])
    assert v2(cursor=late - 1, direction=LogsDirection.BACKWARD) == every[2::-1]


def test_metrics_are_filtered_by_time_and_sandbox(api: AuthenticatedClient, boxes: tuple[Sandbox, Sandbox]) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    for start, end, wanted in ((now - hour, None, 1), (now + hour, None, 0), (None, now + hour, 1), (None, now - hour, 0)):
        assert len(boxes[0].get_metrics(start=start, end=end)) == wanted
    for ids in ([boxes[1].sandbox_id], [each.sandbox_id for each in boxes]):
        many = parsed(get_sandboxes_metrics.sync_detailed(client=api, sandbox_ids=ids))
        assert set(many.sandboxes) == set(ids)

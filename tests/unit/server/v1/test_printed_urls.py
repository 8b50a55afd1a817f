"""Preview URLs for what programs print: in results and in streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from sandlot.model.errors import HostError
from sandlot.model.specs import MIB
from sandlot.server.app import create_app
from sandlot.web.preview_urls import PreviewAddress
from tests.support.http import output, post, told
from tests.support.scripted_app import local_client
from tests.support.service import Bench
from tests.support.until import until

pytestmark = pytest.mark.real_guest

PRINT = "echo on http://localhost:8000/a?b=1#c; echo on http://127.0.0.1:9000 >&2"


class Previews:
    """A service with an address for previews, which cannot be opened if it is broken."""

    is_enabled = True
    is_broken = False

    async def require_address(self) -> PreviewAddress:
        """Return the address."""
        if self.is_broken:
            raise HostError("No port is free.")
        return PreviewAddress("http", "localhost", 8081)


@pytest.fixture
def previews() -> Previews:
    return Previews()


@pytest.fixture
async def previewing(at: Bench, previews: Previews) -> AsyncGenerator[httpx.AsyncClient]:
    """Client of a service that has previews."""
    async with local_client(create_app(at.service, preview_addresses=previews)) as http:
        yield http


def places(urls: list[dict[str, Any]], url: str) -> list[tuple[str, int, str, str]]:
    """Printed URL, port, and the preview URL before and behind its token."""
    sandbox, found = url.rpartition("/")[2], []
    for each in urls:
        before, token, behind = each["url"].partition(f"sandlot_token={each['port']}-{sandbox}.")
        assert token
        found.append((each["printed"], each["port"], before.replace(sandbox, "ID"), "#" + behind.partition("#")[2]))
    return found


EXPECTED = [
    ("http://localhost:8000/a?b=1#c", 8000, "http://8000-ID.localhost:8081/a?b=1&", "#c"),
    ("http://127.0.0.1:9000", 9000, "http://9000-ID.localhost:8081/?", "#"),
]


async def test_result_of_a_command_has_previews_of_printed_urls(previewing: httpx.AsyncClient, url: str) -> None:
    result = (await previewing.post(f"{url}/processes", json={"command": PRINT})).json()
    assert places(result["urls"], url) == EXPECTED
    assert (result["stdout"], result["stderr"]) == ("on http://localhost:8000/a?b=1#c\n", "on http://127.0.0.1:9000\n")


async def test_result_of_code_has_previews_of_printed_urls(previewing: httpx.AsyncClient, url: str) -> None:
    body = {"code": PRINT, "language": "bash"}
    result = (await post(previewing, f"{url}/code", body)).json()
    assert places(result["urls"], url) == EXPECTED
    kept = (await previewing.get(f"{url}/code/{result['id']}")).json()
    assert places(kept["urls"], url) == EXPECTED


async def test_output_of_a_running_server_has_previews_of_printed_urls(previewing: httpx.AsyncClient, url: str) -> None:
    body = {"command": f"{PRINT}; exec sleep 1000", "background": True}
    process = (await previewing.post(f"{url}/processes", json=body)).json()["id"]
    found: dict[str, Any] = {}

    async def is_found() -> bool:
        found.update((await previewing.get(f"{url}/processes/{process}/output")).json())
        return len(found["urls"]) == 2

    await until(is_found)
    assert (places(found["urls"], url), found["exit"]) == (EXPECTED, None)
    events = await told(previewing, f"{url}/processes/{process}/output", follow="false")
    assert sorted(places([data for name, data in events if name == "url"], url)) == sorted(EXPECTED)


@pytest.mark.parametrize("path, body", [("processes", {"command": PRINT}), ("code", {"code": PRINT, "language": "bash"})])
async def test_stream_has_an_event_for_each_printed_url(previewing: httpx.AsyncClient, url: str, path: str, body: dict[str, Any]) -> None:
    events = await told(previewing, f"{url}/{path}", body)
    assert sorted(places([data for name, data in events if name == "url"], url)) == sorted(EXPECTED)
    assert output(events) == b"on http://localhost:8000/a?b=1#c\n"
    assert events[-1][0] == "exit"


async def test_url_event_comes_before_its_output(previewing: httpx.AsyncClient, url: str) -> None:
    events = await told(previewing, f"{url}/processes", {"command": "echo http://localhost:8000; printf http://localhost:8001"})
    kinds = [name if name != "output" else data["data"] for name, data in events]
    assert kinds.index("url") < next(at for at, kind in enumerate(kinds) if kind.startswith("http://localhost:8000"))
    assert [data["port"] for name, data in events if name == "url"] == [8000, 8001]


async def test_service_without_previews_has_no_urls(http: httpx.AsyncClient, url: str) -> None:
    assert (await http.post(f"{url}/processes", json={"command": PRINT})).json()["urls"] == []
    assert {name for name, _ in await told(http, f"{url}/processes", {"command": PRINT})} == {"started", "output", "exit"}


async def test_result_without_previews_is_complete_if_their_listener_fails(previewing: httpx.AsyncClient, url: str, previews: Previews) -> None:
    previews.is_broken = True
    result = (await previewing.post(f"{url}/processes", json={"command": PRINT})).json()
    assert (result["exit_code"], result["urls"]) == (0, [])


async def test_large_output_is_not_changed(previewing: httpx.AsyncClient, url: str) -> None:
    code = f"import sys; sys.stdout.write('http://localhost:1/ ' * ({MIB} // 20))"
    result = await previewing.post(f"{url}/processes", json={"argv": ["python3", "-c", code]})
    assert json.loads(result.content)["stdout"] == "http://localhost:1/ " * (MIB // 20)
    assert [each["port"] for each in result.json()["urls"]] == [1]

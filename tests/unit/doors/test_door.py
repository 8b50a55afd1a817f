"""What holds for every door: a word for every error, in its vendor's shape, whatever it is that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product

import httpx
from fastapi import APIRouter
from starlette.routing import Match

from sandlot.doors.door import Below, Door
from sandlot.model.errors import CODES, ErrorCode, class_of
from sandlot.server.app import DOORS, TELLERS
from sandlot.web.errors import answer
from tests.support.cases import cases
from tests.unit.doors.shared import SharedBench

OTHERWISE: Mapping[tuple[str, ErrorCode], int] = {
    ("agentsandbox", ErrorCode.TEMPLATE_NOT_FOUND): 503,  # no request names one
    ("sandboxapi", ErrorCode.TEMPLATE_NOT_FOUND): 503,  # likewise
    ("e2b", ErrorCode.SANDBOX_ENDED): 502,  # what its proxy says, and its clients look for
    ("e2b", ErrorCode.SANDBOX_PAUSED): 502,  # likewise
    ("pandastack", ErrorCode.TIMEOUT): 500,  # a command that took too long, by its client's own words
}
"""Errors whose kind of status is another one at a vendor."""

EVERY_DOOR = cases("door", DOORS)


@EVERY_DOOR
def test_error_tables_are_total(door: Door) -> None:
    assert set(door.table) == set(ErrorCode)


@cases("door, code", list(product(DOORS, ErrorCode)))
def test_every_error_has_a_json_body_with_message_and_hint(door: Door, code: ErrorCode) -> None:
    error = class_of(code)("It happened.", code=code, hint="Do this.", fields={"retry_after_s": 7})
    told = answer(error, "abc", teller=door)
    assert told.media_type == "application/json"
    assert told.headers["retry-after"] == "7"
    assert "It happened. Do this." in json.dumps(json.loads(bytes(told.body)))
    # The kind of status is ours: what a client may try again, and whose fault it was, is the same for every vendor.
    assert told.status_code == OTHERWISE.get((door.name, code)) or told.status_code // 100 == CODES[code][0] // 100
    assert ("www-authenticate" in told.headers) == (told.status_code == 401)


@EVERY_DOOR
def test_prefixes_are_unique_path_segments(door: Door) -> None:
    assert door.prefix == f"/{door.name}"
    assert [other.prefix for other in DOORS].count(door.prefix) == 1


def test_prefix_router_matches_only_paths_below_its_prefix() -> None:
    below = Below("/x", APIRouter())
    asked = {path: below.matches({"type": "http", "path": path, "method": "GET"})[0] for path in ("/x/a", "/x/", "/x", "/xy/a", "/v1/x/a", "/")}
    assert {path for path, match in asked.items() if match is not Match.NONE} == {"/x/a", "/x/"}


@EVERY_DOOR
async def test_authentication_errors_have_the_vendors_format(door: Door, at: SharedBench) -> None:
    async with at.client() as stranger:
        refused = await stranger.post(f"{door.prefix}/v1/anything", content=b"x" * 100)
    assert refused.status_code == 401
    assert_told(door, refused, ErrorCode.UNAUTHENTICATED)


@EVERY_DOOR
@cases("header, prefix", [("Authorization", "Bearer "), ("X-API-Key", "")])
async def test_key_is_accepted_in_either_header(door: Door, at: SharedBench, header: str, prefix: str) -> None:
    _, secret = await at.service.keys.create(f"{door.name}-{header.lower()}")
    async with at.client() as http:
        assert_told(door, await http.get(f"{door.prefix}/nope", headers={header: prefix + secret}), ErrorCode.NOT_FOUND)
        assert_told(door, await http.get(f"{door.prefix}/nope", headers={header: prefix + "other"}), ErrorCode.UNAUTHENTICATED)


@EVERY_DOOR
async def test_unknown_paths_get_the_vendors_not_found(door: Door, http: httpx.AsyncClient) -> None:
    for path in ("", "/", "/nope", "/v1", "/v1/nope/%00/..", "/v1/" + "x" * 3000, "/%ff"):
        response = await http.get(door.prefix + path)
        assert response.status_code == 404, path
        assert_told(door, response, ErrorCode.NOT_FOUND)
    beside = await http.get(f"{door.prefix}x/v1/nope")
    assert beside.headers["content-type"] == "application/problem+json"


@EVERY_DOOR
def test_root_paths_select_the_vendor_by_the_whole_path(door: Door) -> None:
    for path in door.roots:
        there = re.sub(r"{\w+}", "x", path)
        assert TELLERS.of(there) is door
        assert TELLERS.of(f"{there}/more/than/that") is not door
        assert TELLERS.of(f"/v1{there}") is not door


def assert_told(door: Door, response: httpx.Response, code: ErrorCode) -> None:
    assert response.headers["content-type"] == "application/json"
    error = class_of(code)("?", code=code)
    expected = door.tell(error, "x", None).body
    assert response.json().keys() == expected.keys()
    assert response.status_code == door.table[code].status

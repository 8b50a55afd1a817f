"""What holds for every vendor: a word for every error, in its vendor's shape, whatever it is that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product

import httpx
from fastapi import APIRouter
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Match

from sandlot.compat.vendor import PrefixRouter, VendorApi
from sandlot.model.errors import CODES, ErrorCode, error_class
from sandlot.server.app import ERROR_FORMATS
from sandlot.server.vendors import VENDORS
from sandlot.web.errors import problem_response
from tests.meta.test_fields import request_fields
from tests.support.cases import cases
from tests.unit.compat.shared import SharedBench

OTHERWISE: Mapping[tuple[str, ErrorCode], int] = {
    ("agentsandbox", ErrorCode.TEMPLATE_NOT_FOUND): 503,  # no request names one
    ("sandboxapi", ErrorCode.TEMPLATE_NOT_FOUND): 503,  # likewise
    ("e2b", ErrorCode.SANDBOX_ENDED): 502,  # what its proxy says, and its clients look for
    ("e2b", ErrorCode.SANDBOX_PAUSED): 502,  # likewise
    ("pandastack", ErrorCode.TIMEOUT): 500,  # a command that took too long, by its client's own words
}
"""Errors whose kind of status is another one at a vendor."""

EVERY_VENDOR = cases("vendor", VENDORS)


@EVERY_VENDOR
def test_error_tables_are_total(vendor: VendorApi) -> None:
    assert set(vendor.table) == set(ErrorCode)


SENT = [code for code in ErrorCode if code is not ErrorCode.EXECUTION_FAILED]
"""Codes that the service sends. `execution_failed` is raised by the SDK alone."""


@cases("vendor, code", list(product(VENDORS, SENT)))
def test_every_error_has_a_json_body_with_message_and_hint(vendor: VendorApi, code: ErrorCode) -> None:
    error = error_class(code)("It happened.", code=code, hint="Do this.", fields={"retry_after_s": 7})
    told = problem_response(error, "abc", error_format=vendor)
    assert told.media_type == "application/json"
    assert told.headers["retry-after"] == "7"
    assert "It happened. Do this." in json.dumps(json.loads(bytes(told.body)))
    # The kind of status is ours: what a client may try again, and whose fault it was, is the same for every vendor.
    assert told.status_code == OTHERWISE.get((vendor.name, code)) or told.status_code // 100 == CODES[code][0] // 100
    assert ("www-authenticate" in told.headers) == (told.status_code == 401)


@EVERY_VENDOR
def test_prefixes_are_unique_path_segments(vendor: VendorApi) -> None:
    assert vendor.prefix == f"/{vendor.name}"
    assert [other.prefix for other in VENDORS].count(vendor.prefix) == 1


def test_prefix_router_matches_only_paths_below_its_prefix() -> None:
    below = PrefixRouter("/x", APIRouter())
    asked = {path: below.matches({"type": "http", "path": path, "method": "GET"})[0] for path in ("/x/a", "/x/", "/x", "/xy/a", "/v1/x/a", "/")}
    assert {path for path, match in asked.items() if match is not Match.NONE} == {"/x/a", "/x/"}


@EVERY_VENDOR
async def test_authentication_errors_have_the_vendors_format(vendor: VendorApi, at: SharedBench) -> None:
    async with at.client() as stranger:
        refused = await stranger.post(f"{vendor.prefix}/v1/anything", content=b"x" * 100)
    assert refused.status_code == 401
    assert_told(vendor, refused, ErrorCode.UNAUTHENTICATED)


@EVERY_VENDOR
@cases("header, prefix", [("Authorization", "Bearer "), ("X-API-Key", "")])
async def test_key_is_accepted_in_either_header(vendor: VendorApi, at: SharedBench, header: str, prefix: str) -> None:
    _, secret = await at.service.api_keys.create(f"{vendor.name}-{header.lower()}")
    async with at.client() as http:
        assert_told(vendor, await http.get(f"{vendor.prefix}/nope", headers={header: prefix + secret}), ErrorCode.NOT_FOUND)
        assert_told(vendor, await http.get(f"{vendor.prefix}/nope", headers={header: prefix + "other"}), ErrorCode.UNAUTHENTICATED)


@EVERY_VENDOR
async def test_unknown_paths_get_the_vendors_not_found(vendor: VendorApi, http: httpx.AsyncClient) -> None:
    for path in ("", "/", "/nope", "/v1", "/v1/nope/%00/..", "/v1/" + "x" * 3000, "/%ff"):
        response = await http.get(vendor.prefix + path)
        assert response.status_code == 404, path
        assert_told(vendor, response, ErrorCode.NOT_FOUND)
    beside = await http.get(f"{vendor.prefix}x/v1/nope")
    assert beside.headers["content-type"] == "application/problem+json"


@EVERY_VENDOR
def test_root_paths_select_the_vendor_by_the_whole_path(vendor: VendorApi) -> None:
    for path in vendor.roots:
        there = re.sub(r"{\w+}", "x", path)
        assert ERROR_FORMATS.select(there) is vendor
        assert ERROR_FORMATS.select(f"{there}/more/than/that") is not vendor
        assert ERROR_FORMATS.select(f"/v1{there}") is not vendor


SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=20) | st.sampled_from(["", "..", "\0", "\ud800"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=4)

FIELDS = {vendor.name: [*sorted({name for _, name in request_fields(vendor)}), "other"] for vendor in VENDORS}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, query and body: a route that the vendor has or not, and fields that it knows, with any values."""
    vendor = draw(st.sampled_from(VENDORS))
    routes = [(method, route.path) for route in vendor.router.routes if isinstance(route, APIRoute) for method in sorted(route.methods or ())]
    method, path = draw(st.sampled_from([*routes, ("GET", "/none"), ("PATCH", "/none")]))
    fields = st.sampled_from(FIELDS[vendor.name])
    query = draw(st.dictionaries(fields, SCALARS.map(lambda value: str(value).encode("utf-8", "replace").decode()), max_size=2))
    bodies = st.dictionaries(fields, VALUES, max_size=5) | VALUES
    content = draw(bodies.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=100))
    return method, vendor.prefix + re.sub(r"{\w+(:path)?}", "sb-none", path), query, content


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request_=requests(), kind=st.sampled_from(["application/json", "application/json", "multipart/form-data; boundary=b", "text/plain", ""]))
async def test_any_request_gets_a_json_response_and_no_internal_error(
    http: httpx.AsyncClient, request_: tuple[str, str, dict[str, str], bytes], kind: str
) -> None:
    method, url, query, content = request_
    headers = {"E2b-Sandbox-Id": "sb-none", "Content-Type": kind}
    response = await http.request(method, url, params=query, content=content, headers=headers)
    assert response.status_code < 500 or response.status_code in {501, 502, 503}, response.text
    if response.status_code >= 400 and method != "HEAD":
        assert response.headers["content-type"].partition(";")[0] == "application/json"
        assert isinstance(response.json(), dict)


def assert_told(vendor: VendorApi, response: httpx.Response, code: ErrorCode) -> None:
    assert response.headers["content-type"] == "application/json"
    error = error_class(code)("?", code=code)
    expected = vendor.render_error(error, "x", None).body
    assert response.json().keys() == expected.keys()
    assert response.status_code == vendor.table[code].status

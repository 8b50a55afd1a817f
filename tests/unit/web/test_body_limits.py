"""The limit of a body depends on the marked route that matches, not on how the path looks."""

from __future__ import annotations

from fastapi import APIRouter

from sandlot.model.specs import KIB, MIB
from sandlot.web.body_limits import MAX_STREAM_BYTES, BodyLimits, streams_request_body
from sandlot.web.route_table import allowed_methods, route_entries

router = APIRouter()


@router.put("/items/{item}/content")
@streams_request_body
async def write(item: str) -> None: ...


@router.get("/items/{item}/content")
async def read(item: str) -> None: ...


@router.post("/items/{item}")
async def change(item: str) -> None: ...


@router.delete("/items/{item}")
@router.get("/items/{item}")
async def get(item: str) -> None: ...


LIMITS = BodyLimits(route_entries(router.routes, "/vendor"), upload_max_bytes=MIB, json_max_bytes=KIB)


def test_only_marked_routes_take_uploads() -> None:
    streamed = {
        (method, path)
        for method in ("GET", "PUT", "POST", "DELETE", "NONE")
        for path in (
            "/vendor/items/a/content",
            "/vendor/items/content",
            "/items/a/content",
            "/vendor/items/a/b/content",
            "/vendor/items/a/content/",
            "",
        )
        if LIMITS.find(method, path).is_streamed
    }
    assert streamed == {("PUT", "/vendor/items/a/content")}
    assert LIMITS.find("PUT", "/vendor/items/a/content").max_bytes == MAX_STREAM_BYTES
    assert LIMITS.find("POST", "/vendor/items/content").max_bytes == KIB


def test_methods_of_all_routes_with_the_same_path_are_allowed() -> None:
    entries = route_entries(router.routes, "/vendor")
    assert allowed_methods(entries, "/vendor/items/a") == ["GET", "POST", "DELETE"]
    assert allowed_methods(entries, "/vendor/items/a/content") == ["GET", "PUT"]
    assert allowed_methods(entries, "/items/a") == []

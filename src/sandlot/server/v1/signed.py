"""URLs that open one file without a key: signed by whoever may open it, used by whoever has them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.signed_urls import Grant
from sandlot.model.specs import User
from sandlot.server.v1.common import cancel_on_hangup, documented_response, get_node, get_principal, iter_body, json_response, raw_body
from sandlot.server.v1.files import CONTENT, part_of, streamed
from sandlot.server.v1.schemas.base import QueryModel, Text, UserName
from sandlot.server.v1.schemas.files import EntryAnswer
from sandlot.server.v1.schemas.trees import SignBody, SignedAnswer
from sandlot.web.auth import OWNER, SIGNED_PATH

router = APIRouter(tags=["files"])


class SignedQuery(QueryModel):
    """What was signed; each part of it is needed, and may not be changed."""

    sandbox: str = Field(description="The sandbox's id.")
    path: Text = Field(description="The file, absolute, inside the sandbox.")
    user: UserName = Field(description="Who it is done as.")
    key: str = Field(description="Whose it is.")
    expires: int = Field(description="Until when it holds; seconds since 1970, UTC.")
    signature: str = Field(description="Of all the others.")


@router.post("/v1/sandboxes/{sandbox}/files/sign", responses=documented_response(SignedAnswer, "It holds from now on."))
async def sign(sandbox: str, body: SignBody, request: Request) -> Response:
    """Make a URL by which anybody can read, or write, one file for a while. It ends with the API key that made it."""
    grant = Grant(body.method, sandbox, body.path, User(body.user), body.expires_in)
    signed = get_node(request).tokens.sign_url(get_principal(request), grant)
    # Whoever came over the unix socket has no address that would mean anything elsewhere.
    base = "" if request.scope["state"].get("peer") == OWNER else str(request.base_url).rstrip("/")
    return json_response(SignedAnswer(url=f"{base}{SIGNED_PATH}?{signed.query}", method=body.method, expires_at=signed.expires_at))


@router.get(SIGNED_PATH, response_class=Response, responses=CONTENT)
async def read_signed(query: Annotated[SignedQuery, Query()], request: Request) -> Response:
    """Read the file that a URL was signed for."""
    user = User(query.user)
    # A browser must not take what a sandbox wrote for a page of this service.
    name = quote(query.path.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}", "X-Content-Type-Options": "nosniff"}
    part = await part_of(request, query.sandbox, query.path, user, **headers)
    if part is not None:
        return part
    return streamed(await get_node(request).files.read(get_principal(request), query.sandbox, query.path, user=user), **headers)


@router.put(SIGNED_PATH, responses=documented_response(EntryAnswer, "It was written."), openapi_extra=raw_body("The file's content."))
async def write_signed(query: Annotated[SignedQuery, Query()], request: Request) -> Response:
    """Write the file that a URL was signed for; the body is its content."""
    work = get_node(request).files.write(get_principal(request), query.sandbox, query.path, iter_body(request), user=User(query.user))
    return json_response(EntryAnswer.of(await cancel_on_hangup(request, work)))

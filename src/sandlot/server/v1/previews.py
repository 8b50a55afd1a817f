"""Preview URLs: addresses under which a browser reaches a port of a sandbox."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.ids import SandboxId
from sandlot.model.previews import DEFAULT_PREVIEW_LIFETIME_S
from sandlot.server.v1.common import documented_response
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_previews, get_principal
from sandlot.web.models import RequestModel, ResponseModel, json_response


class CreatePreviewUrlRequest(RequestModel):
    """Options of a preview URL."""

    expires_in: float = Field(default=DEFAULT_PREVIEW_LIFETIME_S, description="Seconds for which the token is valid, 1 to 604,800.")


class PreviewUrlResponse(ResponseModel):
    """Addresses of a port. They stay the same while the sandbox exists; only tokens expire."""

    url: str = Field(
        description="URL of the host form, for browsers. Each port has its own origin. For a private port, the URL contains a token, which the "
        "browser exchanges for a cookie."
    )
    path_url: str = Field(
        description="URL of the path form, with the token in its path, for clients that cannot resolve the host. Cookies and absolute paths do not "
        "work in this form."
    )
    host: str = Field(description="Host of `url`, with a port number unless it is the default of HTTP or HTTPS.")
    token: str = Field(description="Token that opens the port. Programs send it in the header `X-Sandlot-Preview-Token`.")
    public: bool = Field(description="True if the port opens without a token.")
    expires_at: datetime = Field(description="Time at which the token expires.")


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/ports", tags=["previews"], route_class=SandboxNameRoute)


@router.post("/{port}/url", responses=documented_response(PreviewUrlResponse, "Addresses of the port."))
async def create_url(sandbox: str, port: int, request: Request, body: CreatePreviewUrlRequest | None = None) -> Response:
    """Get the addresses under which a browser reaches a TCP port of a sandbox. No program needs to listen on the port yet.

    A local service opens its listener for previews at the first of these requests. A service that serves no previews responds with 501
    `unsupported`. The token becomes invalid with the key that created it.
    """
    lifetime_s = DEFAULT_PREVIEW_LIFETIME_S if body is None else body.expires_in
    signed = get_node(request).previews.sign(get_principal(request), sandbox, port, lifetime_s)
    address, id_ = await get_previews(request).require_address(), SandboxId(sandbox)
    response = PreviewUrlResponse(
        url=address.url(id_, port, None if signed.public else signed.value),
        path_url=address.path_url(signed.value),
        host=address.host(id_, port),
        token=signed.value,
        public=signed.public,
        expires_at=signed.expires_at,
    )
    return json_response(response)

"""Templates: what sandboxes can start from."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.server.v1.common import documented_response
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import ResponseModel, json_response


class TemplateResponse(ResponseModel):
    """Something that a sandbox can be started from."""

    name: str
    description: str
    digest: str | None
    built: bool
    building: str | None = Field(description="What its build is at, for a person; null where nobody builds it.")


class TemplatesResponse(ResponseModel):
    """What a sandbox can be started from."""

    templates: list[TemplateResponse]


router = APIRouter(tags=["service"])


@router.get("/v1/templates", responses=documented_response(TemplatesResponse, "All of them."))
async def templates(request: Request) -> Response:
    """What a sandbox can be started from. One that is not built yet is built by the first sandbox that asks for it."""
    found = await get_node(request).templates.list(get_principal(request))
    return json_response(
        TemplatesResponse(
            templates=[
                TemplateResponse(
                    name=each.name, description=each.description, digest=each.digest, built=each.digest is not None, building=each.building
                )
                for each in found
            ]
        )
    )

"""Templates: what sandboxes can start from."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.service import TemplateInfo
from sandlot.server.v1.common import documented_response
from sandlot.server.v1.sandboxes import LimitsResponse
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import ResponseModel, json_response


class TemplateResponse(ResponseModel):
    """A template."""

    name: str
    description: str
    digest: str | None = Field(description="Digest of the current build; null if the template is not built yet.")
    built: bool = Field(description="True if the template has a build. The first sandbox of a template without a build starts the build.")
    building: str | None = Field(description="Current step of a running build, for people; null if no build is running.")
    languages: dict[str, str | None] = Field(
        description="Versions of compilers and interpreters by language; null until the template is built. Empty if they are not known."
    )
    limits: LimitsResponse = Field(description="Limits of sandboxes and pools whose requests name none.")

    @classmethod
    def of(cls, template: TemplateInfo) -> TemplateResponse:
        """Convert a template of the node."""
        return cls(
            name=template.name,
            description=template.description,
            digest=template.digest,
            built=template.digest is not None,
            building=template.building,
            languages=dict(template.languages),
            limits=LimitsResponse.of(template.limits),
        )


class TemplatesResponse(ResponseModel):
    """All templates, by name."""

    templates: list[TemplateResponse]


router = APIRouter(prefix="/v1/templates", tags=["templates"], route_class=JsonRoute)


@router.get("", responses=documented_response(TemplatesResponse, "All templates, by name."))
async def list_templates(request: Request) -> Response:
    """List templates that sandboxes can start from."""
    found = await get_node(request).templates.list(get_principal(request))
    return json_response(TemplatesResponse(templates=[TemplateResponse.of(each) for each in found]))


@router.get("/{template}", responses=documented_response(TemplateResponse, "The template."))
async def get(template: str, request: Request) -> Response:
    """Get a template and the state of its build."""
    return json_response(TemplateResponse.of(await get_node(request).templates.get(get_principal(request), template)))

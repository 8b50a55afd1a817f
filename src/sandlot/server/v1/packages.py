"""Packages: installed by pip, npm or apt, followed as that goes."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.packages import MAX_PACKAGES, InstallParams, Manager
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S, User
from sandlot.server.v1.common import IdempotencyKey, UserName, documented_response
from sandlot.server.v1.processes import PROCESS_EVENTS, CommandResultResponse, told_of
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import RequestModel, Texts, json_response


class InstallPackagesRequest(RequestModel):
    """Packages to install."""

    manager: Literal["pip", "npm", "apt"] = Field(default="pip", description="By whom.")
    packages: Texts = Field(
        min_length=1,
        max_length=MAX_PACKAGES,
        description="Names, with or without versions, as the manager writes them; no options, paths or URLs.",
        examples=[["requests>=2.31", "tabulate"]],
    )
    user: UserName = Field(default="user", description="Who installs; apt always as root.")
    timeout: float | None = Field(default=DEFAULT_INSTALL_TIMEOUT_S, description="Seconds until it is ended; null is never.")

    def asked(self) -> InstallParams:
        """What core makes of it."""
        return InstallParams(Manager(self.manager), tuple(self.packages), user=User(self.user), timeout_s=self.timeout)


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/packages", tags=["packages"], route_class=SandboxRoute)


@router.post(
    "",
    responses=documented_response(
        CommandResultResponse, "It ended, well or not; with 'Accept: text/event-stream' events as it runs.", events=PROCESS_EVENTS
    ),
)
async def install(sandbox: str, body: InstallPackagesRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Install packages. It is ended when the client goes away; an install that fails is an answer with its exit code and the manager's words."""
    packages, principal, params = get_node(request).packages, get_principal(request), body.asked()
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, packages.stream(principal, sandbox, params, idempotency_key=idempotency_key))
        return streaming.event_response(request, told_of(stream), stream.aclose)
    return json_response(
        CommandResultResponse.finished(
            await cancel_on_disconnect(request, packages.install(principal, sandbox, params, idempotency_key=idempotency_key))
        )
    )

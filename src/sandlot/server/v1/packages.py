"""Installation of packages by pip, npm or apt."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.packages import MAX_PACKAGES, InstallParams, Manager
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S
from sandlot.server.v1.common import IdempotencyKey, UserName, documented_response, parse_user
from sandlot.server.v1.printed_urls import PrintedUrls
from sandlot.server.v1.processes import PROCESS_EVENTS, CommandResultResponse, process_events
from sandlot.web import streaming
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import RequestModel, Texts, json_response


class InstallPackagesRequest(RequestModel):
    """Packages to install, with their package manager."""

    manager: Literal["pip", "npm", "apt"] = Field(default="pip", description="Package manager.")
    packages: Texts = Field(
        min_length=1,
        max_length=MAX_PACKAGES,
        description=(
            "Package names, with or without versions, in the syntax of the package manager; no options, paths or URLs. "
            "For pip also `-r FILE`: a requirements file in the sandbox, relative to the working directory."
        ),
        examples=[["requests>=2.31", "tabulate"]],
    )
    user: UserName | None = Field(default=None, description="User that installs. Default: the user of the sandbox. apt always runs as root.")
    timeout: float | None = Field(default=DEFAULT_INSTALL_TIMEOUT_S, description="Seconds until the installation is killed; null for no limit.")

    def params(self) -> InstallParams:
        """Return the parameters of the operation."""
        return InstallParams(Manager(self.manager), tuple(self.packages), user=parse_user(self.user), timeout_s=self.timeout)


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/packages", tags=["packages"], route_class=SandboxNameRoute)


@router.post(
    "",
    responses=documented_response(
        CommandResultResponse,
        "Result of the package manager, also if it failed; or its events with `Accept: text/event-stream`.",
        events=PROCESS_EVENTS,
    ),
)
async def install(sandbox: str, body: InstallPackagesRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Install packages by pip, npm or apt. A failed installation is a result with an exit code. If the client disconnects, the installation ends."""
    packages, principal, params = get_node(request).packages, get_principal(request), body.params()
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, packages.stream(principal, sandbox, params, idempotency_key=idempotency_key))
        return streaming.event_response(request, process_events(stream, PrintedUrls(request, sandbox)), stream.aclose)
    done = await cancel_on_disconnect(request, packages.install(principal, sandbox, params, idempotency_key=idempotency_key))
    return json_response(await CommandResultResponse.finished(done, PrintedUrls(request, sandbox)))

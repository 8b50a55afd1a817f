"""Lifecycle of sandboxes: pause, resume, hibernate, fork, promote.

Invariant: If the client disconnects, a pause, resume or hibernation completes, and a fork batch is undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from sandlot.model.sandboxes import MAX_CHILDREN, SAME, ForkParams, ForkTree, Promotion, SandboxInfo, check_reserved_names
from sandlot.server.v1.common import documented_response
from sandlot.server.v1.sandboxes import SandboxResponse
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response


class ResumeSandboxRequest(RequestModel):
    """Options of a resume."""

    timeout: float | None = Field(default=None, ge=1, description="Seconds from now until the timeout. Default: the value that was set last.")


class CreateForksRequest(RequestModel):
    """Options of new forks."""

    count: int = Field(default=1, ge=1, le=MAX_CHILDREN, description="Number of forks. All of them are created, or none.")
    name: Text | None = Field(default=None, description="Name of the fork; several forks get the suffixes -1, -2 and so on.")
    metadata: Metadata | None = Field(default=None, description="Metadata of the forks. Default: the metadata of the sandbox.")
    env: Metadata = Field(default_factory=dict, description="Environment variables for new processes in the forks, added to those of the sandbox.")
    timeout: float | None = Field(default=None, ge=1, description="Seconds until the timeout of the forks. Default: the timeout of the sandbox.")

    share_volumes: bool = Field(
        default=False,
        description="Let the forks share writable volumes with the sandbox. If false, the fork of a sandbox with a writable volume is "
        "refused. Read-only "
        "volumes are always shared.",
    )

    def params(self) -> ForkParams:
        """Return the parameters of the operation."""
        check_reserved_names(self.metadata or {})
        timeout_s = SAME if self.timeout is None else self.timeout
        return ForkParams(
            count=self.count, name=self.name, metadata=self.metadata, env=self.env, timeout_s=timeout_s, share_volumes=self.share_volumes
        )


class ForksResponse(ResponseModel):
    """New forks."""

    sandboxes: list[SandboxResponse]

    @classmethod
    def of(cls, sandboxes: Sequence[SandboxInfo]) -> ForksResponse:
        """Return the response for a fork batch."""
        return cls(sandboxes=[SandboxResponse.of(sandbox) for sandbox in sandboxes])


class ForkTreeNodeResponse(ResponseModel):
    """A sandbox of a fork tree."""

    id: str
    parent: str | None = Field(description="Id of the sandbox that this sandbox is a fork of; null if it is not a fork.")
    state: str
    name: str | None
    created_at: datetime

    @classmethod
    def of(cls, sandbox: SandboxInfo) -> ForkTreeNodeResponse:
        """Return the response for a sandbox in a fork tree."""
        return cls(id=sandbox.id, parent=sandbox.spec.parent, state=str(sandbox.state), name=sandbox.name, created_at=sandbox.created_at)


class ForkTreeResponse(ResponseModel):
    """Fork tree of a sandbox."""

    root: str = Field(description="Id of the first sandbox. `sandboxes` lacks it if its record is no longer kept.")
    sandboxes: list[ForkTreeNodeResponse] = Field(description="Known sandboxes of the tree, oldest first; parents precede their forks.")

    @classmethod
    def of(cls, tree: ForkTree) -> ForkTreeResponse:
        """Return the response for a fork tree."""
        return cls(root=tree.root, sandboxes=[ForkTreeNodeResponse.of(sandbox) for sandbox in tree.sandboxes])


class PromoteResponse(ResponseModel):
    """Result of a promotion."""

    kept: str = Field(description="Id of the promoted fork.")
    ended: list[str] = Field(description="Ids of the siblings and their descendants that this call ended.")
    failed: dict[str, str] = Field(description="Id of a sandbox that could not be ended -> reason. Send the request again to retry.")

    @classmethod
    def of(cls, promoted: Promotion) -> PromoteResponse:
        """Return the response for a promotion."""
        return cls(kept=promoted.kept, ended=list(promoted.ended), failed={str(id_): why for id_, why in promoted.failed.items()})


router = APIRouter(prefix="/v1/sandboxes/{sandbox}", route_class=SandboxNameRoute)


@router.post("/pause", tags=["sandboxes"], responses=documented_response(SandboxResponse, "The paused sandbox."))
async def pause(sandbox: str, request: Request) -> Response:
    """Pause a sandbox: freeze its processes and keep its memory. Its timeout does not pass. A second call has no effect."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.pause(get_principal(request), sandbox)))


@router.post("/resume", tags=["sandboxes"], responses=documented_response(SandboxResponse, "The running sandbox."))
async def resume(sandbox: str, request: Request, body: ResumeSandboxRequest | None = None) -> Response:
    """Resume a paused or hibernated sandbox. A running sandbox does not change."""
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    if body is None or body.timeout is None:
        return json_response(SandboxResponse.of(await sandboxes.resume(principal, sandbox)))
    return json_response(SandboxResponse.of(await sandboxes.resume(principal, sandbox, timeout_s=body.timeout)))


@router.post("/hibernate", tags=["sandboxes"], responses=documented_response(SandboxResponse, "The hibernated sandbox."))
async def hibernate(sandbox: str, request: Request) -> Response:
    """Hibernate a sandbox: write its memory to disk and free it. Connections are closed; processes continue after the resume."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.hibernate(get_principal(request), sandbox)))


@router.post("/forks", tags=["forks"], status_code=201, responses=documented_response(ForksResponse, "The running forks.", 201))
async def create_forks(
    sandbox: str,
    body: CreateForksRequest,
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="Key of this request. A request with the same key returns the same forks.")] = None,
) -> Response:
    """Create copies of a running sandbox, including memory and processes. The sandbox keeps running. If the client disconnects, no fork remains."""
    work = get_node(request).sandboxes.fork(get_principal(request), sandbox, body.params(), idempotency_key=idempotency_key)
    return json_response(ForksResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/fork-tree", tags=["forks"], responses=documented_response(ForkTreeResponse, "The fork tree."))
async def get_fork_tree(sandbox: str, request: Request) -> Response:
    """Get the fork tree of a sandbox. Ended sandboxes are included while their records are kept."""
    return json_response(ForkTreeResponse.of(await get_node(request).sandboxes.tree(get_principal(request), sandbox)))


@router.post("/promote", tags=["sandboxes"], responses=documented_response(PromoteResponse, "The promoted fork and the ended sandboxes."))
async def promote(sandbox: str, request: Request) -> Response:
    """Keep one fork and end its siblings and their descendants. The parent keeps running."""
    return json_response(PromoteResponse.of(await get_node(request).sandboxes.promote(get_principal(request), sandbox)))

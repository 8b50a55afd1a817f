"""Sandboxes that rest, and those that come of one: pause, resume, hibernate, wake, fork, tree, promote.

Law: A rest that was begun goes on where its client goes away; what would be made for it is not.
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
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response


class ResumeSandboxRequest(RequestModel):
    """How a sandbox that rests is to go on."""

    timeout: float | None = Field(default=None, ge=1, description="Seconds from now until its timeout; left out, as many as were last set.")


class CreateForksRequest(RequestModel):
    """Forks to make."""

    count: int = Field(default=1, ge=1, le=MAX_CHILDREN, description="How many. There are all of them, or none.")
    name: Text | None = Field(default=None, description="A name for people; of several, -1, -2 and so on are added to it.")
    metadata: Metadata | None = Field(default=None, description="In place of the sandbox's own, which they have where this is left out.")
    env: Metadata = Field(default_factory=dict, description="Added to the sandbox's environment, for what is started in them.")
    timeout: float | None = Field(default=None, ge=1, description="Seconds until their timeout; left out, the sandbox's own.")

    share_volumes: bool = Field(
        default=False,
        description="Whether they share the volumes that the sandbox writes to; without it such a fork is refused. Read-only ones are shared.",
    )

    def asked(self) -> ForkParams:
        """What core makes of it."""
        check_reserved_names(self.metadata or {})
        timeout_s = SAME if self.timeout is None else self.timeout
        return ForkParams(
            count=self.count, name=self.name, metadata=self.metadata, env=self.env, timeout_s=timeout_s, share_volumes=self.share_volumes
        )


class ForksResponse(ResponseModel):
    """Forks that run."""

    sandboxes: list[SandboxResponse]

    @classmethod
    def of(cls, sandboxes: Sequence[SandboxInfo]) -> ForksResponse:
        """What is told of them."""
        return cls(sandboxes=[SandboxResponse.of(sandbox) for sandbox in sandboxes])


class ForkTreeNodeResponse(ResponseModel):
    """One sandbox of a tree of forks."""

    id: str
    parent: str | None = Field(description="Whose fork it is; null of what is nobody's.")
    state: str
    name: str | None
    created_at: datetime

    @classmethod
    def of(cls, sandbox: SandboxInfo) -> ForkTreeNodeResponse:
        """What is told of it."""
        return cls(id=sandbox.id, parent=sandbox.spec.parent, state=str(sandbox.state), name=sandbox.name, created_at=sandbox.created_at)


class ForkTreeResponse(ResponseModel):
    """Sandboxes that came of one another."""

    root: str = Field(description="The first one. It may have ended so long ago that it is not among the sandboxes.")
    sandboxes: list[ForkTreeNodeResponse] = Field(description="All that are known still, oldest first: each behind whose fork it is.")

    @classmethod
    def of(cls, tree: ForkTree) -> ForkTreeResponse:
        """What is told of them."""
        return cls(root=tree.root, sandboxes=[ForkTreeNodeResponse.of(sandbox) for sandbox in tree.sandboxes])


class PromoteResponse(ResponseModel):
    """What a fork was chosen over."""

    kept: str
    ended: list[str] = Field(description="Its siblings and what came of them: those that lived until now.")
    failed: dict[str, str] = Field(description="Those that could not be ended, and why; ask again.")

    @classmethod
    def of(cls, promoted: Promotion) -> PromoteResponse:
        """What is told of it."""
        return cls(kept=promoted.kept, ended=list(promoted.ended), failed={str(id_): why for id_, why in promoted.failed.items()})


router = APIRouter(prefix="/v1/sandboxes/{sandbox}", route_class=SandboxRoute)


@router.post("/pause", tags=["sandboxes"], responses=documented_response(SandboxResponse, "It is paused."))
async def pause(sandbox: str, request: Request) -> Response:
    """Freeze a sandbox where it is. Nothing in it runs, its memory stays, and its timeout stands still. Again and again the same."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.pause(get_principal(request), sandbox)))


@router.post("/resume", tags=["sandboxes"], responses=documented_response(SandboxResponse, "It runs."))
async def resume(sandbox: str, request: Request, body: ResumeSandboxRequest | None = None) -> Response:
    """Let a sandbox that is paused or hibernated go on where it was. One that runs is left as it is."""
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    if body is None or body.timeout is None:
        return json_response(SandboxResponse.of(await sandboxes.resume(principal, sandbox)))
    return json_response(SandboxResponse.of(await sandboxes.resume(principal, sandbox, timeout_s=body.timeout)))


@router.post("/hibernate", tags=["sandboxes"], responses=documented_response(SandboxResponse, "It is hibernated."))
async def hibernate(sandbox: str, request: Request) -> Response:
    """Write a sandbox's memory to the disk and give it back. Connections into it are cut; what runs inside goes on when it wakes."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.hibernate(get_principal(request), sandbox)))


@router.post("/forks", tags=["forks"], status_code=201, responses=documented_response(ForksResponse, "They run.", 201))
async def create_forks(
    sandbox: str,
    body: CreateForksRequest,
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="Your own name for this request: sent again, it gives the forks that it gave.")] = None,
) -> Response:
    """Make sandboxes that are what one is at this moment. It goes on; a client that goes away meanwhile leaves none behind."""
    work = get_node(request).sandboxes.fork(get_principal(request), sandbox, body.asked(), idempotency_key=idempotency_key)
    return json_response(ForksResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/fork-tree", tags=["forks"], responses=documented_response(ForkTreeResponse, "They."))
async def get_fork_tree(sandbox: str, request: Request) -> Response:
    """Tell the forks that a sandbox belongs to: what it came of, and what came of that. Those that ended are told as long as they are kept."""
    return json_response(ForkTreeResponse.of(await get_node(request).sandboxes.tree(get_principal(request), sandbox)))


@router.post("/promote", tags=["sandboxes"], responses=documented_response(PromoteResponse, "It is the only one of its parent's forks that lives."))
async def promote(sandbox: str, request: Request) -> Response:
    """Keep one fork and end its siblings, with all that came of them. Their parent lives on."""
    return json_response(PromoteResponse.of(await get_node(request).sandboxes.promote(get_principal(request), sandbox)))

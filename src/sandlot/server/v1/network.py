"""Network of a sandbox: its policy, refused and reached destinations, and approval of refused ones."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.network_activity import MAX_RECORDS, NetworkDestination, NetworkRefusal, NetworkStatus, RefusalReason
from sandlot.server.v1.common import documented_response
from sandlot.server.v1.sandboxes import NetworkResponse
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_principal
from sandlot.web.models import RequestModel, ResponseModel, Text, json_response


class ApproveRefusalRequest(RequestModel):
    """A refusal to approve."""

    refusal: Text = Field(description="Id of the refusal.", examples=["3"])


class NetworkRefusalResponse(ResponseModel):
    """Equal refusals of connections or HTTP requests."""

    id: str = Field(description="Id within the sandbox.")
    reason: RefusalReason = Field(description="Reason. Newer versions may add reasons.")
    host: str = Field(description="Host that the program named: a name or an address.")
    port: int
    rule: str | None = Field(description="Rule that denies the destination; null if no rule allows it, or if the reason is not a rule.")
    method: str | None = Field(description="Method of the refused HTTP request; null if the whole connection was refused.")
    path: str | None = Field(description="Path of the refused HTTP request; null if there is none.")
    count: int = Field(description="Number of refusals.")
    first_at: datetime
    last_at: datetime

    @classmethod
    def of(cls, refusal: NetworkRefusal) -> NetworkRefusalResponse:
        """Return the response for a refusal."""
        return cls(
            id=refusal.id,
            reason=refusal.reason,
            host=refusal.host,
            port=refusal.port,
            rule=refusal.rule or None,
            method=refusal.method or None,
            path=refusal.path or None,
            count=refusal.count,
            first_at=refusal.first_at,
            last_at=refusal.last_at,
        )


class NetworkDestinationResponse(ResponseModel):
    """A host and port that programs of the sandbox have reached."""

    host: str = Field(description="Host that the programs named: a name or an address.")
    port: int
    connections: int = Field(description="Number of connections.")
    sent_bytes: int
    received_bytes: int
    last_at: datetime

    @classmethod
    def of(cls, destination: NetworkDestination) -> NetworkDestinationResponse:
        """Return the response for a destination."""
        return cls(
            host=destination.host,
            port=destination.port,
            connections=destination.connections,
            sent_bytes=destination.sent_bytes,
            received_bytes=destination.received_bytes,
            last_at=destination.last_at,
        )


class NetworkStatusResponse(ResponseModel):
    """Network policy and activity of a sandbox. The activity begins with the last start or wake of the sandbox, or of the service."""

    policy: NetworkResponse
    refusals: list[NetworkRefusalResponse] = Field(description=f"The last {MAX_RECORDS} refusals, the newest last.")
    destinations: list[NetworkDestinationResponse] = Field(description=f"The last {MAX_RECORDS} reached destinations, the newest last.")
    sent_bytes: int = Field(description="Bytes that programs have sent to other hosts.")
    received_bytes: int = Field(description="Bytes that programs have received from other hosts.")
    open_connections: int

    @classmethod
    def of(cls, status: NetworkStatus) -> NetworkStatusResponse:
        """Return the response for the network of a sandbox."""
        activity = status.activity
        return cls(
            policy=NetworkResponse.of(status.policy),
            refusals=[NetworkRefusalResponse.of(refusal) for refusal in activity.refusals],
            destinations=[NetworkDestinationResponse.of(destination) for destination in activity.destinations],
            sent_bytes=activity.sent_bytes,
            received_bytes=activity.received_bytes,
            open_connections=activity.open_connections,
        )


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/network", tags=["network"], route_class=SandboxNameRoute)


@router.get("", responses=documented_response(NetworkStatusResponse, "The network of the sandbox."))
async def get(sandbox: str, request: Request) -> Response:
    """Get the network policy of a sandbox, the refusals, the reached destinations and the transferred bytes."""
    return json_response(NetworkStatusResponse.of(await get_node(request).network.get(get_principal(request), sandbox)))


@router.post("/approve", responses=documented_response(NetworkResponse, "The extended policy."))
async def approve(sandbox: str, body: ApproveRefusalRequest, request: Request) -> Response:
    """Allow the destination of a refusal: append a rule for its host and port to the allowlist of a sandbox.

    After a refused HTTP request, the rule covers its method, and its path with the paths below. A destination that a rule denies is not approved
    (409). The next update of the network policy drops the appended rule.
    """
    approved = await get_node(request).network.approve(get_principal(request), sandbox, body.refusal)
    return json_response(NetworkResponse.of(approved.spec.network))

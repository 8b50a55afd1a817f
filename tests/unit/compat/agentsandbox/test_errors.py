"""Every error as the vendor's own client raises it."""

from __future__ import annotations

import agentsandbox
import httpx
import pytest
from agentsandbox import AgentSandbox, AgentSandboxError

from sandlot.compat.agentsandbox import API
from sandlot.model.errors import ErrorCode, error_class
from sandlot.web.errors import problem_response
from tests.support.cases import cases

RAISED: dict[int, type[AgentSandboxError]] = {
    401: agentsandbox.AuthenticationError,
    403: agentsandbox.ForbiddenError,
    404: agentsandbox.NotFoundError,
    422: agentsandbox.ValidationError,
    429: agentsandbox.RateLimitError,
    500: agentsandbox.ServerError,
    503: agentsandbox.ServiceUnavailableError,
}


@cases("code", ErrorCode)
def test_client_raises_its_own_error_with_message_and_hint(code: ErrorCode) -> None:
    told = problem_response(error_class(code)("It happened.", code=code, hint="Do this."), "abc", error_format=API)

    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(told.status_code, content=bytes(told.body), headers=dict(told.headers))

    with httpx.Client(transport=httpx.MockTransport(refuse)) as http, pytest.raises(AgentSandboxError) as raised:
        AgentSandbox(api_key="k", base_url="http://sandlot/agentsandbox", http_client=http).run("1")
    assert type(raised.value) is RAISED.get(told.status_code, AgentSandboxError)
    assert raised.value.message == "It happened. Do this."
    assert raised.value.status_code == told.status_code
    assert raised.value.response_body["error"]["request_id"] == "abc"

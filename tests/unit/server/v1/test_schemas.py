"""However much of a request is wrong, telling that stays cheap."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from sandlot.server.v1.processes import CreateProcessRequest
from sandlot.server.v1.sandboxes import CreateSandboxRequest, SandboxesQuery
from sandlot.web.errors import MAX_FIELDS
from sandlot.web.models import MAX_ERRORS, Metadata, QueryModel, RequestModel

MANY = 5_000

WRONG: list[tuple[type[RequestModel | QueryModel], dict[str, Any]]] = [
    (CreateSandboxRequest, {f"x{n}": n for n in range(MANY)}),
    (CreateSandboxRequest, {"limits": {f"x{n}": n for n in range(MANY)}}),
    (CreateSandboxRequest, {"env": {f"x{n}": n for n in range(MANY)}}),
    (CreateSandboxRequest, {"metadata": {f"\ud800{n}": "" for n in range(MANY)}}),
    (CreateProcessRequest, {"argv": list(range(MANY))}),
    (SandboxesQuery, {f"x{n}": "" for n in range(MANY)}),
]


@pytest.mark.parametrize("model,given", WRONG, ids=["unknown", "nested", "values", "names", "list", "query"])
def test_a_few_errors_are_looked_for(model: type[RequestModel | QueryModel], given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    assert 1 <= caught.value.error_count() <= MAX_ERRORS


def test_what_is_right_is_taken_beside_what_is_not() -> None:
    with pytest.raises(ValidationError) as caught:
        CreateSandboxRequest.model_validate({f"x{n}": n for n in range(MANY)} | {"timeout": "soon", "template": "a"})
    places = [error["loc"] for error in caught.value.errors()]
    assert ("timeout",) in places
    assert ("template",) not in places


def test_words_are_taken_as_they_are() -> None:
    class Some(RequestModel):
        words: Metadata

    words = {f"ä{n}": "ß" for n in range(MANY)}
    assert Some.model_validate({"words": words}).words == words
    assert Some.model_validate({"words": {}}).words == {}
    with pytest.raises(ValidationError, match=r"words\.b\n"):
        Some.model_validate({"words": {"a": "", "b": 1}})
    with pytest.raises(ValidationError, match="valid dictionary"):
        Some.model_validate({"words": "a"})


async def test_a_body_of_nonsense_has_a_short_answer(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/sandboxes", json={f"x{n}": n for n in range(MANY)})
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert len(response.json()["fields"]) == MAX_FIELDS

"""Templates over HTTP."""

from __future__ import annotations

import httpx

from tests.support.http import problem


async def test_list_and_get_return_the_same_templates(http: httpx.AsyncClient) -> None:
    templates = (await http.get("/v1/templates")).json()["templates"]
    assert {"base", "code-interpreter"} <= {each["name"] for each in templates}
    for template in templates:
        assert (await http.get(f"/v1/templates/{template['name']}")).json() == template
        assert template["built"] is (template["digest"] is not None)


async def test_get_of_an_unknown_template_names_the_known_templates(http: httpx.AsyncClient) -> None:
    error = problem(await http.get("/v1/templates/none"), 404, "template_not_found")
    assert error["fields"] == {"template": "none"}
    assert "code-interpreter" in error["hint"]

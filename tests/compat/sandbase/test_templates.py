"""Sandbase's templates by their names, with E2B's client and over HTTP, on a service whose sandboxes are simulated."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from e2b import AsyncSandbox

from sandlot.model.access import OPERATOR
from tests.support.builds import Rig

NAMES = {"code_interpreter": "Code Interpreter", "claude": "Claude Code", "codex": "Codex", "base": "Base"}
"""Templates of the vendor's pages, with the names that are displayed."""


async def test_templates_of_the_vendor_are_listed_and_found_by_their_names(rig: Rig) -> None:
    async with httpx.AsyncClient(base_url=f"{rig.url}/sandbase", headers={"X-API-Key": rig.key}, trust_env=False) as http:
        listed = {each["templateID"]: each["name"] for each in (await http.get("/templates")).json()}
        assert {name: listed[name] for name in NAMES} == NAMES
        assert "agent" in listed
        for name in NAMES:
            assert (await http.get(f"/templates/{name}")).json()["templateID"] == name
            assert (await http.get(f"/templates/aliases/{name}")).json()["templateID"] == name


@pytest.mark.parametrize("name", [*NAMES, "agent"])
async def test_sandbox_of_a_template_is_created_by_the_name_of_the_vendor(rig: Rig, name: str) -> None:
    options = {"api_key": rig.key, "api_url": f"{rig.url}/sandbase", "sandbox_url": f"{rig.url}/e2b"}
    sandbox = await AsyncSandbox.create(template=name, **options)  # type: ignore[arg-type]  # the address and the key
    assert (await sandbox.get_info()).template_id == name
    (made,) = rig.at.sandboxes.list(OPERATOR)
    assert made.spec.template.name == name.replace("_", "-")
    await asyncio.wait_for(sandbox.kill(), 60)

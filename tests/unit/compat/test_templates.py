"""Template lists of all vendors report the default limits of each template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from tests.support.cases import cases
from tests.unit.compat.shared import ok


@cases(
    "path, name, memory",
    [
        ("/e2b/templates", "templateID", "memoryMB"),
        ("/sandbase/templates", "templateID", "memoryMB"),
        ("/pandastack/v1/templates", "name", "memory_mb"),
    ],
)
async def test_list_of_templates_has_their_default_limits(path: str, name: str, memory: str, http: httpx.AsyncClient) -> None:
    listed: Any = ok(await http.get(path))
    templates: Mapping[str, Any] = {each[name]: each for each in (listed if isinstance(listed, list) else listed["items"])}

    assert templates["desktop"][memory] == 2048
    assert templates["base"][memory] == 1024

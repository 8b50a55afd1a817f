"""What the service says about sandboxes and files, parsed."""

from __future__ import annotations

from sandlot.model.specs import Limits
from sandlot.sdk.info import SandboxInfo


def test_a_sandbox_of_another_version() -> None:
    assert SandboxInfo.parse({"id": "x", "state": "running", "shape": "round"}).limits == Limits()

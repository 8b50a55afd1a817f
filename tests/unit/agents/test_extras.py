"""A missing package of an adapter is an error that names the extra."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from sandlot.agents.extras import extra

ADAPTERS = {
    "anthropic": "anthropic",
    "inspect": "inspect_ai",
    "langchain": "langchain_core",
    "openai": "openai",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "smolagents": "smolagents",
}
"""Adapter -> package that it imports."""


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapter_names_the_extra_of_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"sandlot.agents.{name}", raising=False)
    for module in [each for each in sys.modules if each.partition(".")[0] == ADAPTERS[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, ADAPTERS[name], None)  # imports of it fail
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'sandlot\[{name.replace('_', '-')}\]'"):
        importlib.import_module(f"sandlot.agents.{name}")


def test_other_missing_packages_are_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"), extra("anthropic", "anthropic"):
        importlib.import_module("no_such_package")


@pytest.mark.parametrize("module", ["sandlot.agents", "sandlot.agents.models.messages"])
def test_loop_imports_no_package_of_a_model(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{'anthropic', 'openai', 'pydantic', 'agents'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"

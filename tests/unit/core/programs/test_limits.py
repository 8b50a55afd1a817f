"""Limits of the sandboxes of programs."""

from __future__ import annotations

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.programs import ProgramParams
from sandlot.model.sandboxes import LimitsChange
from sandlot.model.specs import GIB, Limits
from sandlot.model.templates import TemplateDefaults
from tests.support.node import MemoryNode


@pytest.mark.parametrize("changed, limits", [(LimitsChange(), Limits(2.0, 2 * GIB)), (LimitsChange(cpus=1.0), Limits(1.0, 2 * GIB))])
async def test_program_has_the_limits_of_its_template_unless_it_names_others(node: MemoryNode, changed: LimitsChange, limits: Limits) -> None:
    node.state.templates.defaults_of["base"] = TemplateDefaults(limits=Limits(2.0, 2 * GIB))

    await node.services.programs.run(OPERATOR, ProgramParams("bash", "true", template="base", limits=changed))

    assert [instance.limits for instance in node.driver.booted] == [limits]

"""Choice of the template in which a program runs."""

from __future__ import annotations

import pytest

from sandlot.core.programs.templates import LanguageTemplates
from sandlot.core.resources.templates import Templates
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InvalidRequestError
from sandlot.model.languages import LANGUAGES
from sandlot.model.templates import TemplateDefaults
from tests.support.node import MemoryTemplates

OF = {
    "agent": frozenset({"python", "c"}),
    "base": frozenset({"python"}),
    "claude": frozenset({"python", "c"}),
    "code-interpreter": frozenset({"python"}),
    "languages": frozenset({"python", "c", "java"}),
}


@pytest.fixture
def templates() -> MemoryTemplates:
    """Templates of which `agent` and `languages` are not built."""
    templates = MemoryTemplates()
    templates.defaults_of = {name: TemplateDefaults(languages=languages) for name, languages in OF.items()}
    templates.missing = {"agent", "languages"}
    return templates


@pytest.fixture
def languages(templates: MemoryTemplates) -> LanguageTemplates:
    return LanguageTemplates(Templates(templates))


async def test_each_language_has_a_template_and_its_version(languages: LanguageTemplates) -> None:
    found = {each.language.name: (each.template, each.version) for each in await languages.list(OPERATOR)}
    assert list(found) == [language.name for language in LANGUAGES]
    assert found["python"] == ("code-interpreter", "1.0"), "the default template has it"
    assert found["c"] == ("claude", "1.0"), "the first that is built"
    assert found["java"] == ("languages", None), "not built"
    assert found["go"] == (None, None)


async def test_default_template_whose_languages_are_unknown_may_have_each(languages: LanguageTemplates, templates: MemoryTemplates) -> None:
    del templates.defaults_of["code-interpreter"]
    assert {(each.template, each.version) for each in await languages.list(OPERATOR)} == {("code-interpreter", None)}


async def test_program_without_a_template_runs_in_the_template_of_its_language(languages: LanguageTemplates) -> None:
    for name, template in (("python", "code-interpreter"), ("c", "claude"), ("java", "languages")):
        assert await languages.choose(OPERATOR, name) == template
    with pytest.raises(InvalidRequestError, match="'base' cannot run programs in C") as refused:
        await languages.choose(OPERATOR, "c", "base")
    assert refused.value.hint == "Pass one of these as `template`: claude, agent, languages."
    with pytest.raises(InvalidRequestError, match="cannot run programs in Go") as refused:
        await languages.choose(OPERATOR, "go")
    assert refused.value.hint == "Build a template that can run Go, and pass it as `template`."

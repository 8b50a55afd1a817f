"""Templates in which programs run: the choice of a template that has the compiler or interpreter of a language."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandlot.core.resources.templates import Templates
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.languages import LANGUAGES, AvailableLanguage, Language, language_of
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import DEFAULT_TEMPLATE


class LanguageTemplates:
    """Languages of programs, and the templates that have what each of them needs."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    async def list(self, principal: Principal) -> Sequence[AvailableLanguage]:
        """Return all languages, each with the template in which its programs run if they name none."""
        templates, languages = await self._templates.list(principal), list[AvailableLanguage]()
        for language in LANGUAGES:
            template = pick_template(templates, language)
            name, version = (None, None) if template is None else (template.name, template.languages.get(language.name))
            languages.append(AvailableLanguage(language, name, version))
        return languages

    async def choose(self, principal: Principal, name: str, template: str | None = None) -> str:
        """Return the template for a program: the one that its request names, else the one that :func:`pick_template` picks.

        Args:
            principal: Caller, whose templates are considered.
            name: Name or alias of the language.
            template: Template that the request names.

        Raises:
            InvalidRequestError: The template that the request names, or every template, lacks what the language needs.
        """
        language, wanted = language_of(name), template or DEFAULT_TEMPLATE
        # Most programs can run in the default template. The list of all templates takes longer: it reads the records of the caller's templates.
        if _may_run(language, (await self._templates.defaults(await self._templates.find(principal, wanted))).languages):
            return wanted
        picked = None if template else pick_template(await self._templates.list(principal), language)
        if picked is None:
            raise await self.error_without_language(principal, language, wanted)
        return picked.name

    async def error_without_language(self, principal: Principal, language: Language, template: str) -> InvalidRequestError:
        """Return the error for a program whose template lacks what its language needs. The hint names the templates that have it."""
        names = [info.name for info in _templates_with(language, await self._templates.list(principal))]
        hint = f"Pass one of these as `template`: {', '.join(names)}."
        return InvalidRequestError(
            f"The template {template!r} cannot run programs in {language.title}.",
            hint=hint if names else f"Build a template that can run {language.title}, and pass it as `template`.",
            fields={"field": "template", "language": language.name, "templates": names},
        )


def pick_template(templates: Collection[TemplateInfo], language: Language) -> TemplateInfo | None:
    """Return the template for programs that name none: the default template, unless it is known to lack the language.

    Otherwise it is the first built template that is known to have the language, else the first other one; None if there is none.
    """
    default = next((info for info in templates if info.name == DEFAULT_TEMPLATE), None)
    if default is not None and _may_run(language, default.languages or None):
        return default
    return next(iter(_templates_with(language, templates)), None)


def _may_run(language: Language, languages: Collection[str] | None) -> bool:
    """Return True if a template has a language, or if the languages of the template are not known (None)."""
    return languages is None or language.name in languages


def _templates_with(language: Language, templates: Collection[TemplateInfo]) -> Sequence[TemplateInfo]:
    """Return the templates that are known to have a language: the default template first, then those that are built, then the others."""
    known = [info for info in templates if language.name in info.languages]
    return sorted(known, key=lambda info: (info.name != DEFAULT_TEMPLATE, info.digest is None))

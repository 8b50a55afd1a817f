"""What a person sees while something takes long: on a terminal a line that moves, elsewhere a line for each step.

Law: all of it goes to standard error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

from sandlot.cli.output import note, visible

if TYPE_CHECKING:
    from rich.status import Status

    from sandlot.sdk import AsyncClient, TemplateInfo

POLL_S = 1.0
"""How often a service is asked what a build is at."""

_BUILDING = "building the template {name!r} first; it is used for the first time, and this takes a few minutes."


class Waiting:
    """One line about what is waited for.

    Args:
        what: What it is.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._step = ""
        self._moving: Status | None = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._moving = Console(stderr=True).status(visible(what), spinner="line")

    def __enter__(self) -> Self:
        if self._moving is not None:
            self._moving.start()
        else:
            note(f"sandlot: {self._what}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._moving is not None:
            self._moving.stop()

    def at(self, step: str) -> None:
        """Tell what it is at now; the same again is told once."""
        if step == self._step:
            return
        self._step = step
        if self._moving is not None:
            from rich.text import Text

            self._moving.update(Text(f"{visible(self._what)} {visible(step)}"))
        else:
            note(f"sandlot:   {step}")


def unbuilt(templates: Iterable[TemplateInfo], template: str | None) -> str | None:
    """The name of the template that is about to be used, where it has to be built first; else None. Pure.

    Args:
        templates: Templates of the service.
        template: The one that is about to be used; None is the default one.
    """
    from sandlot.model.specs import DEFAULT_TEMPLATE

    name = template or DEFAULT_TEMPLATE
    return name if any(known.name == name and not known.built for known in templates) else None


def announce_build(templates: Iterable[TemplateInfo], template: str | None) -> None:
    """Tell once why the first sandbox of a template takes long; arguments are those of :func:`unbuilt`."""
    name = unbuilt(templates, template)
    if name is not None:
        note(f"sandlot: {_BUILDING.format(name=name)}")


@asynccontextmanager
async def building(client: AsyncClient, template: str | None) -> AsyncIterator[None]:
    """Tell, while the body makes a sandbox, what the build of its template is at; nothing where it is built already.

    Args:
        client: Asked before the body, and beside it.
        template: What the sandbox starts from; None is the default.
    """
    name = unbuilt(await client.templates.list(), template)
    if name is None:
        yield
        return
    with Waiting(_BUILDING.format(name=name)) as waiting:
        following = asyncio.create_task(_follow(client, name, waiting))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})


async def _follow(client: AsyncClient, name: str, waiting: Waiting) -> None:
    from sandlot.model.errors import SandlotError

    while True:
        await asyncio.sleep(POLL_S)
        with suppress(SandlotError):  # whatever is wrong, the body is told
            for known in await client.templates.list():
                if known.name == name and known.building:
                    waiting.at(known.building)

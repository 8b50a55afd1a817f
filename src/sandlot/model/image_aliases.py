"""Aliases of images: names of well-known images that mean a template of this service or an image of a mirror. Pure.

Clients build from images such as ``python:3.12`` by default. With aliases, these builds work on a service that can reach no registry. A build that
starts from an alias says so in its log (:attr:`AliasedBase.notice`).

An alias is ``PATTERN=TARGET``. The pattern is the name of an image. Without a tag it means every tag, and ``*`` in the tag means any text. The target
is the name of a template, a reference, in which ``*`` stands for the text of the first ``*`` in the pattern, or ``none``: the image has no alias. The
first alias that fits decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sandlot.model.errors import InvalidRequestError
from sandlot.model.images import ImageReference, parse_reference

SYNTAX: Final = "IMAGE[:TAG]=TEMPLATE, IMAGE[:TAG]=REFERENCE or IMAGE[:TAG]=none"
"""Syntax of one alias in the settings."""
NO_ALIAS: Final = "none"
_TAG_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*-]{1,128}")
_TEMPLATE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ImageAlias:
    """An alias.

    Args:
        registry: Registry of the images.
        repository: Repository of the images.
        tag: Pattern of the tags, in which ``*`` means any text.
        target: Name of a template, a reference, or ``none``.
        user: Name of the user with the id 1000 that the images have and the template lacks; empty: there is none.
    """

    registry: str
    repository: str
    tag: str
    target: str
    user: str = ""

    def match(self, reference: ImageReference) -> str | None:
        """Return the target for an image, or None if the alias does not fit. A reference with a digest names exact content and has no alias."""
        if reference.digest or (self.registry, self.repository) != (reference.registry, reference.repository):
            return None
        found = re.fullmatch("(.*)".join(map(re.escape, self.tag.split("*"))), reference.tag)
        return None if found is None else self.target.replace("*", found[1] if found.groups() else "")


@dataclass(frozen=True, slots=True)
class AliasedBase:
    """Base that an image is replaced by.

    Args:
        reference: The image that the client has named.
        template: Name of the template that the build starts from; empty: it starts from ``image``.
        image: Image that the build starts from.
        user: As in :class:`ImageAlias`.
    """

    reference: ImageReference
    template: str = ""
    image: ImageReference | None = None
    user: str = ""

    @property
    def notice(self) -> str:
        """Line for the log of the build that says what the build starts from."""
        base = f"the template {self.template} of this service" if self.template else f"the image {self.image}"
        return f"{self.reference} is an alias: the build starts from {base}, not from the image of that name."


class ImageAliases:
    """Aliases of a service.

    Args:
        own: Aliases of the operator. They come before the defaults.
        registries: Registries that the service can use. The defaults do not apply to their images, which can be pulled.
    """

    def __init__(self, own: Iterable[ImageAlias] = (), registries: Collection[str] = ()) -> None:
        self._aliases = (*own, *(alias for alias in DEFAULT_ALIASES if alias.registry not in registries))

    def resolve(self, reference: ImageReference) -> AliasedBase | None:
        """Return the base that an image is replaced by, or None if the image has no alias.

        Raises:
            InvalidRequestError: The target of an alias is not a reference once ``*`` is replaced.
        """
        for alias in self._aliases:
            target = alias.match(reference)
            if target is not None:
                if target == NO_ALIAS:
                    return None
                if _TEMPLATE.fullmatch(target):
                    return AliasedBase(reference, template=target, user=alias.user)
                return AliasedBase(reference, image=parse_reference(target))
        return None


def parse_aliases(items: Iterable[str]) -> tuple[ImageAlias, ...]:
    """Parse aliases in the form of ``SYNTAX``.

    Raises:
        ValueError: A text has another form.
    """
    return tuple(map(_parse_alias, items))


def _parse_alias(text: str, user: str = "") -> ImageAlias:
    pattern, _, target = text.partition("=")
    name, _, tag = pattern.rpartition(":") if ":" in pattern.rpartition("/")[2] else (pattern, "", "*")
    try:
        image = parse_reference(name)
        if not _TEMPLATE.fullmatch(target):
            parse_reference(target.replace("*", "1"))
    except InvalidRequestError:
        raise ValueError(f"{text[:100]!r} is not {SYNTAX}") from None
    if image.digest or not _TAG_PATTERN.fullmatch(tag):
        raise ValueError(f"{text[:100]!r} is not {SYNTAX}")
    return ImageAlias(image.registry, image.repository, tag, target, user)


DEFAULT_ALIASES: Final = (
    *parse_aliases(
        (
            "python:*alpine*=none",  # programs for Alpine need its C library and its package manager
            "node:*alpine*=none",
            "golang:*alpine*=none",
            "python=base",
            "debian=base",
            "golang=languages",
            "ubuntu:22.04=base",
            "e2bdev/base=base",
            "e2bdev/code-interpreter=code-interpreter",
        )
    ),
    _parse_alias("node=base", user="node"),
)
"""Aliases of every service: images that many Dockerfiles and E2B's clients start from, as far as the built-in templates can stand for them."""

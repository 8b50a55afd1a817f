"""Images of the Open Container Initiative (OCI): references, configurations and layers. Pure.

Source of the formats: the OCI image specification 1.1 and, for the normal form of short references such as ``python:3.12``, the reference grammar
of the distribution project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.model.errors import InvalidRequestError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DEFAULT_REGISTRY: Final = "docker.io"
"""Registry of references that name none."""
DEFAULT_TAG: Final = "latest"
MAX_REFERENCE_CHARS: Final = 512

_REGISTRY = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?::[0-9]{1,5})?", re.IGNORECASE)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Name of an image in a registry.

    Args:
        registry: Host of the registry, with its port if the reference has one.
        repository: Path of the image in the registry, such as ``library/python``.
        tag: Tag; empty if the reference has only a digest.
        digest: Digest of the manifest or of the index of several platforms (``sha256:`` and 64 hexadecimal digits); empty if there is none.
    """

    registry: str
    repository: str
    tag: str = DEFAULT_TAG
    digest: str = ""

    @property
    def version(self) -> str:
        """The digest, or the tag of a reference without a digest."""
        return self.digest or self.tag

    def __str__(self) -> str:
        """Return the complete reference."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image: a tar archive with the files that it adds, changes and removes.

    Args:
        digest: Digest of the layer as it is stored (``sha256:`` and 64 hexadecimal digits), usually compressed.
        size_bytes: Size of the layer as it is stored.
        media_type: Media type, which names the compression.
        diff_id: Digest of the archive without compression.
    """

    digest: str
    size_bytes: int
    media_type: str
    diff_id: str


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """Configuration of an image, as far as sandboxes use it.

    Args:
        env: Environment variables, in their order.
        user: User of the programs, as ``USER[:GROUP]``, both as names or numbers; empty: root.
        working_dir: Working directory; empty: ``/``.
        entrypoint: First arguments of the program of the image.
        cmd: Further arguments of the program of the image, or the whole program if there is no entrypoint.
        labels: Labels.
        exposed_ports: Ports, as ``8080/tcp``.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    exposed_ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """An image for the platform of this machine.

    Args:
        digest: Digest of the manifest.
        config: Configuration.
        layers: Layers, the lowest first.
    """

    digest: str
    config: ImageConfig
    layers: tuple[Layer, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all layers as they are stored."""
        return sum(layer.size_bytes for layer in self.layers)


def is_registry(text: str) -> bool:
    """Return whether a text can be the registry of a reference: a host, with a port if it is not the default port."""
    return _REGISTRY.fullmatch(text) is not None


def is_repository(text: str) -> bool:
    """Return whether a text can be the repository of a reference."""
    return _REPOSITORY.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Return whether a text is a tag or a digest."""
    return _TAG.fullmatch(text) is not None or DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> ImageReference:
    """Parse a reference such as ``python:3.12``, ``registry.example:5000/team/app@sha256:…`` or ``node``.

    Raises:
        InvalidRequestError: The text is not a reference of an image.
    """
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, path = first, rest
    else:
        registry, path = DEFAULT_REGISTRY, name
    repository, colon, tag = path.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    if not colon and not digest:
        tag = DEFAULT_TAG
    valid = (
        len(text) <= MAX_REFERENCE_CHARS
        and _REGISTRY.fullmatch(registry)
        and _REPOSITORY.fullmatch(repository)
        and (_TAG.fullmatch(tag) if colon or not digest else True)
        and (DIGEST.fullmatch(digest) if "@" in text else True)
    )
    if not valid:
        raise InvalidRequestError(
            f"{text[:128]!r} is not a reference of an image.",
            hint="Use a reference such as `python:3.12` or `registry.example/team/app:tag`, in lower case.",
            fields={"image": text[:128]},
        )
    return ImageReference(registry, repository, tag, digest)

"""Manifests, indexes and configurations of OCI and Docker images. Pure.

Invariants:
- A document is untrusted. Its size, the number of its entries, and each value that is used are checked. An error names the image, and the layer if a
  layer is the reason.
- The kind of a document follows from its content only. A document that two programs could read differently is refused.

Sources: OCI image specification 1.1 (manifest, index, config) and Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.model.images import DIGEST, Image, ImageConfig, Layer

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
INDEX_TYPES: Final = frozenset({OCI_INDEX, DOCKER_INDEX})
MANIFEST_TYPES: Final = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
CONFIG_TYPES: Final = frozenset({"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"})

TAR: Final = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP: Final = f"{TAR}+gzip"
TAR_ZSTD: Final = f"{TAR}+zstd"
LAYER_TYPES: Final[Mapping[str, str]] = {
    TAR: TAR,
    TAR_GZIP: TAR_GZIP,
    TAR_ZSTD: TAR_ZSTD,
    "application/vnd.docker.image.rootfs.diff.tar": TAR,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": TAR_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": TAR_ZSTD,
}
"""Media types of layers, and the type of :class:`Layer` that each is read as. Layers that a registry may not distribute are not among them."""

MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a manifest, an index and a configuration in bytes. Registries need not accept larger manifests (distribution specification)."""
MAX_LAYERS: Final = 127
"""Maximum number of layers of an image. Docker has the same limit."""
MAX_IMAGE_BYTES: Final = 64 * 1024**3
"""Maximum size of all layers of an image as they are stored."""
MAX_PLATFORMS: Final = 1000
"""Maximum number of entries of an index."""
_MAX_LIST: Final = 1000
_MAX_TEXT: Final = 128 * 1024
_NOT_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Reference from a document to content.

    Args:
        media_type: Media type of the content.
        digest: Digest of the content.
        size_bytes: Size of the content.
    """

    media_type: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of an image for one platform.

    Args:
        config: Configuration of the image.
        layers: Layers, the lowest first.
    """

    config: Descriptor
    layers: tuple[Descriptor, ...]


def machine_architecture() -> str:
    """Return the architecture of this machine as images name it, such as ``amd64``."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def media_type_of(data: bytes, image: str) -> str:
    """Return the media type of a manifest or an index, from its content.

    Args:
        data: The document.
        image: Reference of the image, for errors.

    Raises:
        InvalidRequestError: The document is neither, is larger than ``MAX_DOCUMENT_BYTES``, or is ambiguous.
    """
    return _media_type(parse_document(data, image, "manifest"), image)


def choose_manifest(data: bytes, image: str, architecture: str) -> Descriptor:
    """Return the entry of an index for Linux and an architecture. The first one if there are several.

    Args:
        data: The index.
        image: Reference of the image, for errors.
        architecture: Architecture as images name it, such as ``amd64``.

    Raises:
        InvalidRequestError: The index is invalid.
        NotFoundError: The index has no entry for the platform.
    """
    document = parse_document(data, image, "manifest")
    if _media_type(document, image) not in INDEX_TYPES:
        raise refused(image, "its manifest is not an index")
    entries = _list(document.get("manifests"), image, "`manifests`", MAX_PLATFORMS)
    found = []
    for entry in entries:
        offered = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(offered, dict):
            continue
        if offered.get("os") == "linux" and offered.get("architecture") == architecture:
            return _descriptor(entry, image, "manifest", MANIFEST_TYPES, MAX_DOCUMENT_BYTES)
        found.append(f"{offered.get('os')}/{offered.get('architecture')}"[:40])
    raise NotFoundError(
        f"The image {image} has no version for linux/{architecture}; it has {', '.join(dict.fromkeys(found[:8])) or 'none with a platform'}.",
        hint="Use an image that was built for this architecture.",
        fields={"image": image},
    )


def parse_manifest(data: bytes, image: str) -> Manifest:
    """Parse the manifest of an image for one platform.

    Args:
        data: The manifest.
        image: Reference of the image, for errors.

    Raises:
        InvalidRequestError: The manifest is invalid, has too many or too large layers, or a layer of an unknown type.
    """
    document = parse_document(data, image, "manifest")
    if _media_type(document, image) not in MANIFEST_TYPES:
        raise refused(image, "an index of it names another index")
    config = _descriptor(document.get("config"), image, "configuration", CONFIG_TYPES, MAX_DOCUMENT_BYTES)
    entries = document.get("layers")
    if isinstance(entries, list) and len(entries) > MAX_LAYERS:
        raise refused(image, f"it has {len(entries)} layers, and {MAX_LAYERS} are allowed")
    layers = tuple(
        _descriptor(entry, image, f"layer {number}", LAYER_TYPES, MAX_IMAGE_BYTES)
        for number, entry in enumerate(_list(entries, image, "`layers`", MAX_LAYERS), 1)
    )
    if (total := sum(layer.size_bytes for layer in layers)) > MAX_IMAGE_BYTES:
        raise refused(image, f"its layers have {total} bytes, and {MAX_IMAGE_BYTES} are allowed")
    return Manifest(config, layers)


def parse_image(config: bytes, manifest: Manifest, *, digest: str, image: str, architecture: str) -> Image:
    """Return the image that a manifest and a configuration describe.

    Args:
        config: The configuration.
        manifest: The manifest.
        digest: Digest of the manifest.
        image: Reference of the image, for errors.
        architecture: Architecture that the image must have.

    Raises:
        InvalidRequestError: The configuration is invalid, or does not fit the manifest.
        NotFoundError: The image is for another platform.
    """
    document = parse_document(config, image, "configuration")
    diff_ids = parse_diff_ids(document, image)
    check_platform(document, image, architecture)
    if len(diff_ids) != len(manifest.layers):
        raise refused(image, f"its manifest has {len(manifest.layers)} layers, and its configuration {len(diff_ids)} (`rootfs.diff_ids`)")
    layers = tuple(
        Layer(layer.digest, layer.size_bytes, LAYER_TYPES[layer.media_type], diff_id)
        for layer, diff_id in zip(manifest.layers, diff_ids, strict=True)
    )
    return Image(digest, parse_config(document, image), layers)


def parse_document(data: bytes, image: str, what: str) -> Mapping[str, Any]:
    """Parse a JSON object of at most ``MAX_DOCUMENT_BYTES``.

    Args:
        data: The document.
        image: Reference of the image, for errors.
        what: Name of the document, for errors.

    Raises:
        InvalidRequestError: The document is larger or not a JSON object.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise too_large(image, what)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise refused(image, f"its {what} is not valid JSON") from None
    if not isinstance(found, dict):
        raise refused(image, f"its {what} is not a JSON object")
    return found


def parse_diff_ids(document: Mapping[str, Any], image: str) -> tuple[str, ...]:
    """Return the digests of the uncompressed layers in a configuration, the lowest first.

    Raises:
        InvalidRequestError: The configuration has no valid list of them.
    """
    rootfs = document.get("rootfs")
    diff_ids = _list(rootfs.get("diff_ids") if isinstance(rootfs, dict) else None, image, "`rootfs.diff_ids` of the configuration", MAX_LAYERS)
    for number, diff_id in enumerate(diff_ids, 1):
        if not (isinstance(diff_id, str) and DIGEST.fullmatch(diff_id)):
            raise refused(image, f"`rootfs.diff_ids` of its configuration names no SHA-256 digest for layer {number}")
    return tuple(diff_ids)


def check_platform(document: Mapping[str, Any], image: str, architecture: str) -> None:
    """Refuse the configuration of an image for another platform. A configuration without a platform is accepted.

    Raises:
        NotFoundError: The image is for another platform.
    """
    found = (document.get("os") or "linux", document.get("architecture") or architecture)
    if found != ("linux", architecture):
        raise NotFoundError(
            f"The image {image} is for {found[0]!s:.20}/{found[1]!s:.20}, not for linux/{architecture}.",
            hint="Use an image that was built for this architecture.",
            fields={"image": image},
        )


def parse_config(document: Mapping[str, Any], image: str) -> ImageConfig:
    """Return the part of a configuration that sandboxes use. Further keys are ignored.

    Raises:
        InvalidRequestError: A value has another type, or a text is too long.
    """
    found = document.get("config")
    if found is None:
        return ImageConfig()
    if not isinstance(found, dict):
        raise refused(image, "`config` of its configuration is not an object")
    env: dict[str, str] = {}
    for entry in _texts(found.get("Env"), image, "Env"):
        name, equals, value = entry.partition("=")
        if name and equals:
            env[name] = value
    labels, ports = found.get("Labels"), found.get("ExposedPorts")
    return ImageConfig(
        env=env,
        user=_text(found.get("User"), image, "User"),
        working_dir=_text(found.get("WorkingDir"), image, "WorkingDir"),
        entrypoint=_texts(found.get("Entrypoint"), image, "Entrypoint"),
        cmd=_texts(found.get("Cmd"), image, "Cmd"),
        labels={name: _text(value, image, "Labels") for name, value in _object(labels, image, "Labels").items()},
        exposed_ports=tuple(_object(ports, image, "ExposedPorts")),
    )


def _media_type(document: Mapping[str, Any], image: str) -> str:
    named, version = document.get("mediaType"), document.get("schemaVersion")
    if version == 1:
        raise refused(image, "its manifest has schema version 1, which is obsolete; push the image again with a current version of Docker")
    if version != 2:  # noqa: PLR2004 - the version of both specifications
        raise refused(image, f"its manifest has the schema version {str(version)[:20]!r} instead of 2")
    is_index, is_manifest = "manifests" in document, "layers" in document or "config" in document
    if is_index == is_manifest:
        raise refused(image, "its manifest is neither an index nor the manifest of an image, or it is both")
    if named is None:
        return OCI_INDEX if is_index else OCI_MANIFEST
    if named not in (INDEX_TYPES if is_index else MANIFEST_TYPES):
        raise refused(image, f"its manifest has the media type {str(named)[:100]!r}, which its content is not")
    return str(named)


def _descriptor(entry: object, image: str, what: str, types: Collection[str], most_bytes: int) -> Descriptor:
    if not isinstance(entry, dict):
        raise refused(image, f"its manifest has no {what}")
    media_type, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
    shown = f"{what} ({digest})" if isinstance(digest, str) and DIGEST.fullmatch(digest) else what
    if not isinstance(media_type, str) or media_type not in types:
        raise refused(image, f"{shown} has the media type {str(media_type)[:100]!r}, which is not supported")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise refused(image, f"{what} has no SHA-256 digest")
    if type(size) is not int or not 0 <= size <= most_bytes:
        raise refused(image, f"{shown} has the size {str(size)[:30]}; 0 to {most_bytes} bytes are allowed")
    return Descriptor(media_type, digest, size)


def _list(found: object, image: str, what: str, most: int) -> list[Any]:
    if not isinstance(found, list) or len(found) > most:
        raise refused(image, f"{what} is not a list of at most {most} entries")
    return found


def _object(found: object, image: str, name: str) -> Mapping[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict) or len(found) > _MAX_LIST:
        raise refused(image, f"`{name}` of its configuration is not an object with at most {_MAX_LIST} keys")
    return found


def _texts(found: object, image: str, name: str) -> tuple[str, ...]:
    return tuple(_text(text, image, name) for text in _list([] if found is None else found, image, f"`{name}` of its configuration", _MAX_LIST))


def _text(found: object, image: str, name: str) -> str:
    text = "" if found is None else found
    if not isinstance(text, str) or len(text) > _MAX_TEXT or _NOT_TEXT.search(text):
        raise refused(image, f"`{name}` of its configuration has a value that is not a text of at most {_MAX_TEXT} characters")
    return text


def too_large(image: str, what: str) -> InvalidRequestError:
    """Return the error for a manifest or a configuration above ``MAX_DOCUMENT_BYTES``."""
    return refused(image, f"its {what} has more than {MAX_DOCUMENT_BYTES} bytes")


def refused(image: str, reason: str) -> InvalidRequestError:
    """Return the error for an image that is invalid or exceeds a limit.

    Args:
        image: Reference of the image.
        reason: Reason, as a phrase that names the layer if a layer is the reason.
    """
    return InvalidRequestError(f"The image {image} is refused: {reason}.", fields={"image": image})

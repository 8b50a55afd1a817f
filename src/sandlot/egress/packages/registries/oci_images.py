"""Images in the registries that the operator names: manifests, configurations and layers (OCI distribution specification 1.1).

Invariants:
- Only registries that the operator has named are asked.
- A manifest, a configuration and a layer that a digest names must match the digest and, where a manifest names it, the size. They are stored by their
  digest and never asked for again while they are in the store.
- A tag is used for at most :data:`TAG_S` without asking the registry. If the registry does not respond, the tag cannot be used.
- The size of each document and the time for its response are limited. A layer must arrive with a minimum speed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final

from sandlot.egress.packages.config.values import ImageSource, OciSources
from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.download import NotFoundError as MissingError
from sandlot.egress.packages.download import PackageFile, WrongFileError
from sandlot.egress.packages.http import PackageFileRequest, Response
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.pass_through import BusyError
from sandlot.egress.packages.store.store import Kind, PackageStore
from sandlot.egress.packages.upstream import RefusedRedirectError, Upstream, UpstreamError
from sandlot.host.blocking import BlockingPool
from sandlot.model.errors import ErrorCode, ForbiddenError, NotFoundError, UnavailableError
from sandlot.model.image_manifests import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_DOCUMENT_BYTES,
    Descriptor,
    choose_manifest,
    machine_architecture,
    media_type_of,
    parse_image,
    parse_manifest,
    refused,
    too_large,
)
from sandlot.model.images import DIGEST, Image, ImageReference, Layer

TAG_S: Final = 60.0
"""Seconds for which a tag is used without asking the registry whether it has moved."""
MAX_TAGS: Final = 4096
"""Maximum number of tags that are remembered."""
DOCUMENT_S: Final = 120.0
"""Seconds that a registry may take for one manifest or configuration, retries included."""
PACE_WINDOW_S: Final = 60.0
MIN_PACE_BYTES_S: Final = 4 * 1024
"""Minimum bytes per second at which a layer must arrive, measured each time the service has waited :data:`PACE_WINDOW_S` in all."""

_ACCEPT: Final = ", ".join((*sorted(MANIFEST_TYPES), *sorted(INDEX_TYPES)))
_OK, _NOT_MODIFIED = 200, 304
_MISSING: Final = frozenset({401, 403, 404, 410})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or an index.

    Args:
        data: Content.
        digest: Digest of the content.
        media_type: Media type, as the content says.
    """

    data: bytes
    digest: str
    media_type: str


class RegistryImages:
    """Implements the image registry of core.

    Args:
        sources: Registries that the operator has named.
        upstream: Client of the registries.
        files: Creates the responses with configurations and layers.
        store: Store of downloaded files, for manifests.
        threads: Thread pool for disk access.
        tag_s: Seconds for which a tag is used without asking the registry.
        architecture: Architecture of the images, such as ``amd64``.
    """

    def __init__(
        self,
        sources: OciSources,
        upstream: Upstream,
        files: PackageFiles,
        store: PackageStore,
        threads: BlockingPool,
        *,
        tag_s: float = TAG_S,
        architecture: str | None = None,
    ) -> None:
        self._sources = {source.name: source for source in sources.registries}
        self._upstream = upstream
        self._files = files
        self._store = store
        self._threads = threads
        self._tag_s = tag_s
        self._architecture = architecture or machine_architecture()
        self._tags: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """URL of a tag -> digest that it had, and the moment at which the registry said so."""

    async def resolve(self, reference: ImageReference) -> Image:
        """Return the image that a reference names, for the platform of this machine.

        Raises:
            ForbiddenError: The operator does not allow the registry.
            NotFoundError: The registry has no such image, or none for this platform.
            InvalidRequestError: The manifest or the configuration of the image is invalid or exceeds a limit; the message says which.
            UnavailableError: The registry does not respond.
        """
        image = str(reference)
        found = await self.document(reference)
        if found.media_type in INDEX_TYPES:
            chosen = choose_manifest(found.data, image, self._architecture)
            by_digest = ImageReference(reference.registry, reference.repository, "", chosen.digest)
            found = await self.document(by_digest, image, size_bytes=chosen.size_bytes)
        manifest = parse_manifest(found.data, image)
        config = await self._read_config(reference, manifest.config)
        return parse_image(config, manifest, digest=found.digest, image=image, architecture=self._architecture)

    async def read_layer(self, reference: ImageReference, layer: Layer) -> AsyncGenerator[bytes, None]:
        """Yield a layer as it is stored. Its digest and size are verified before the last bytes are yielded.

        Raises:
            ForbiddenError: The operator does not allow the registry.
            NotFoundError: The registry does not have the layer.
            InvalidRequestError: The layer differs from its digest or size, or the registry redirects to an address that is not public.
            UnavailableError: The registry does not respond or is too slow, or the connection broke too often.
        """
        async with aclosing(self._read(reference, Descriptor(layer.media_type, layer.digest, layer.size_bytes), f"layer {layer.digest}")) as pieces:
            async for piece in pieces:
                yield piece

    async def document(self, reference: ImageReference, image: str = "", *, size_bytes: int | None = None) -> Document:
        """Return the manifest or the index that a reference names.

        Args:
            reference: The reference.
            image: Reference for errors. Empty: ``reference``.
            size_bytes: Size that the document must have. None: any size up to ``MAX_DOCUMENT_BYTES``.

        Raises:
            ForbiddenError: The operator does not allow the registry.
            NotFoundError: The registry has no such image.
            InvalidRequestError: The manifest is invalid or too large.
            UnavailableError: The registry does not respond.
        """
        image = image or str(reference)
        source = self._source(reference.registry)
        url = source.url(reference.repository, "manifests", reference.version)
        known, checked_s = (reference.digest, 0.0) if reference.digest else self._tags.get(url, ("", 0.0))
        data = await self._load(known) if known else None
        if data is None or not (reference.digest or time.monotonic() - checked_s < self._tag_s):
            with _errors(reference.registry, image, "the manifest"):
                async with asyncio.timeout(DOCUMENT_S):
                    fetched = await self._fetch(url, reference, image, known if data is not None else "")
            data = data if fetched is None else fetched
        assert data is not None  # noqa: S101 - for the type checker: _fetch() returns None only for a document that is stored
        digest = _digest(data)
        if reference.digest and digest != reference.digest:
            raise refused(image, f"the registry sent another manifest than {reference.digest}")
        if size_bytes is not None and len(data) != size_bytes:
            raise refused(image, f"its manifest {digest} has {len(data)} bytes instead of {size_bytes}")
        media_type = media_type_of(data, image)
        await self._threads.run(self._save, digest, data)
        if not reference.digest:
            self._remember(url, digest)
        return Document(data, digest, media_type)

    async def open_blob(self, reference: ImageReference, digest: str, request: PackageFileRequest) -> Response:
        """Return the response to a request of a sandbox for a configuration or a layer.

        Args:
            reference: Reference to the repository; the tag does not matter.
            digest: Digest of the blob.
            request: Options of the request.

        Raises:
            HttpError: The registry has no such blob, the range is outside of it, or the registry does not respond.
            ForbiddenError: The operator does not allow the registry.
        """
        return await self._files.respond(self._file(reference, Descriptor("", digest, 0), is_sized=False), self._upstream, request)

    def _source(self, registry: str) -> ImageSource:
        source = self._sources.get(registry.lower())
        if source is None:
            raise ForbiddenError(
                f"The registry {registry} is not allowed: "
                + (f"this service uses only {', '.join(self._sources)}." if self._sources else "this service has no registry of images."),
                hint="The operator adds registries to SANDLOT_REGISTRIES, or templates for the names of images to SANDLOT_IMAGE_ALIASES.",
                fields={"registry": registry},
            )
        return source

    def _file(self, reference: ImageReference, blob: Descriptor, *, is_sized: bool = True) -> PackageFile:
        url = self._source(reference.registry).url(reference.repository, "blobs", blob.digest)
        return PackageFile((url,), Digest("sha256", blob.digest.partition(":")[2]), size_bytes=blob.size_bytes if is_sized else None)

    async def _read_config(self, reference: ImageReference, config: Descriptor) -> bytes:
        data = bytearray()
        try:
            async with asyncio.timeout(DOCUMENT_S), aclosing(self._read(reference, config, "the configuration")) as pieces:
                async for piece in pieces:
                    data += piece
        except TimeoutError:
            raise _too_slow(reference.registry, str(reference), "the configuration") from None
        return bytes(data)

    async def _read(self, reference: ImageReference, blob: Descriptor, what: str) -> AsyncGenerator[bytes, None]:
        """Yield a blob. One piece is held back until the next one has arrived, or the digest and the size of the whole blob are right."""
        image, held, size, pace = str(reference), b"", 0, _Pace()
        with _errors(reference.registry, image, what):
            # Builds do not share the limit for files that cannot be stored, which is meant for programs in one sandbox.
            request = PackageFileRequest(sandbox=f"{image} {blob.digest}")
            response = await self._files.open(self._file(reference, blob), self._upstream, request)
        try:
            async with aclosing(response.body()) as pieces:
                while True:
                    with _errors(reference.registry, image, what):
                        piece = await pace.next(pieces)
                    size += len(piece)
                    if size > blob.size_bytes or (not piece and size != blob.size_bytes):
                        raise refused(image, f"{what} has {'more' if piece else size} bytes instead of {blob.size_bytes}")
                    if held:
                        yield held
                    held = piece
                    if not piece:
                        return
        finally:
            await response.close()

    async def _fetch(self, url: str, reference: ImageReference, image: str, known: str) -> bytes | None:
        """Return a manifest from its registry. Return None if the manifest of a tag is still the one with the digest ``known``."""
        headers = {"Accept": _ACCEPT, **({"If-None-Match": f'"{known}"'} if known else {})}
        async with self._upstream.get(url, headers) as response:
            if response.status == _NOT_MODIFIED and known:
                return None
            if response.status in _MISSING:
                raise _missing(reference.registry, image, response.status)
            if response.status != _OK:
                reason = f"the response has status {response.status}"
                raise UpstreamError(f"{url}: {reason}", reason)
            data = bytearray()
            async for piece in response.pieces(decoded=True):
                data += piece
                if len(data) > MAX_DOCUMENT_BYTES:
                    raise too_large(image, "manifest")
            announced = response.headers.get("docker-content-digest", "")
        if announced and DIGEST.fullmatch(announced) and announced != _digest(data):
            raise refused(image, f"the registry sent another manifest than {announced}, which it announced")
        return bytes(data)

    async def _load(self, digest: str) -> bytes | None:
        """Return a manifest from the store. Return None if it is not there or is damaged."""

        def read() -> bytes | None:
            opened = self._store.open(Kind.FILES, _stored(digest))
            if opened is None:
                return None
            try:
                data = opened.read(opened.size_bytes, 0) if opened.size_bytes <= MAX_DOCUMENT_BYTES else b""
            finally:
                opened.close()
            return data if _digest(data) == digest else None

        return await self._threads.run(read)

    def _save(self, digest: str, data: bytes) -> None:
        opened = self._store.open(Kind.FILES, _stored(digest))
        if opened is None:
            self._store.put(Kind.FILES, _stored(digest), data, durable=True)
        else:
            opened.close()

    def _remember(self, url: str, digest: str) -> None:
        self._tags[url] = digest, time.monotonic()
        self._tags.move_to_end(url)
        if len(self._tags) > MAX_TAGS:
            self._tags.popitem(last=False)


class _Pace:
    """Minimum speed of a blob. Only the time in which the service waits for the registry counts."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._bytes = 0

    async def next(self, pieces: AsyncGenerator[bytes, None]) -> bytes:
        """Return the next piece; empty at the end.

        Raises:
            TimeoutError: The pieces arrive too slowly.
        """
        began_s = time.monotonic()
        async with asyncio.timeout(PACE_WINDOW_S * 2):  # the last bytes arrive together, once they are verified
            piece = await anext(pieces, b"")
        self._waited_s += time.monotonic() - began_s
        self._bytes += len(piece)
        if self._waited_s >= PACE_WINDOW_S:
            if piece and self._bytes < MIN_PACE_BYTES_S * self._waited_s:
                raise TimeoutError
            self._waited_s, self._bytes = 0.0, 0
        return piece


@contextmanager
def _errors(registry: str, image: str, what: str) -> Iterator[None]:
    """Report errors of a download as errors that name the image and the part of it."""
    try:
        yield
    except MissingError:
        raise NotFoundError(f"The registry {registry} does not have {what} of the image {image}.", fields={"image": image}) from None
    except (WrongFileError, RefusedRedirectError) as error:
        _log.warning("an image is refused: %s", error)
        raise refused(image, f"the registry {registry} does not deliver {what}: {error.reason}") from None
    except BusyError as error:
        raise UnavailableError(f"{what.capitalize()} of the image {image} cannot be stored: {error}.", code=ErrorCode.BUSY) from None
    except UpstreamError as error:
        _log.warning("an image could not be fetched: %s", error)
        raise UnavailableError(
            f"The registry {registry} does not deliver {what} of the image {image}: {error.reason or 'the request failed'}.",
            hint="Try again; the log of the service has the details.",
            fields={"image": image, "registry": registry},
        ) from None
    except TimeoutError:
        raise _too_slow(registry, image, what) from None


def _too_slow(registry: str, image: str, what: str) -> UnavailableError:
    return UnavailableError(
        f"The registry {registry} does not deliver {what} of the image {image} fast enough.", hint="Try again.", fields={"image": image}
    )


def _missing(registry: str, image: str, status: int) -> NotFoundError:
    found = "it does not exist" if status in {404, 410} else f"it does not exist, or this service may not read it (status {status})"
    return NotFoundError(
        f"The registry {registry} does not have the image {image}: {found}.",
        hint="Check the reference. The operator logs the service in with `docker login` or `skopeo login`." if status in {401, 403} else "",
        fields={"image": image},
    )


def _digest(data: bytes | bytearray) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _stored(digest: str) -> str:
    return f"sha256-{digest.partition(':')[2]}"

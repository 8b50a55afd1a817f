"""Images for programs in sandboxes: the pulling part of the OCI distribution API at ``/v2/``.

The registry is the first part of the repository, or the parameter ``ns`` of the query, which containerd sends to mirrors::

    /v2/REGISTRY/REPOSITORY/manifests/TAG_OR_DIGEST      /v2/REPOSITORY/manifests/TAG_OR_DIGEST?ns=REGISTRY
    /v2/REGISTRY/REPOSITORY/blobs/DIGEST                 /v2/REPOSITORY/blobs/DIGEST?ns=REGISTRY

In a reference, a port is allowed only behind the host. Behind the host of the package cache, a registry with a port is ``HOST_PORT``.
"""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs

from sandlot.egress.packages.http import JSON, HttpError, Request, Response, bytes_response
from sandlot.egress.packages.registries.oci_images import RegistryImages
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.images import DIGEST, ImageReference, is_registry, is_repository, is_version

_VERSION = (("Docker-Distribution-Api-Version", "registry/2.0"),)
_PORT = re.compile(r"_(\d{1,5})$")
_CODES = {403: "DENIED", 404: "NOT_FOUND", 405: "UNSUPPORTED", 429: "TOOMANYREQUESTS"}
_NOT_SERVED = "The package cache serves only manifests and blobs, at /v2/REGISTRY/REPOSITORY/manifests/VERSION and .../blobs/DIGEST."


class OciRegistry:
    """Responds to requests below ``/v2/``.

    Args:
        images: Images of the registries that the operator has named.
    """

    def __init__(self, images: RegistryImages) -> None:
        self._images = images

    async def respond(self, request: Request) -> Response:
        """Return the response to a request below ``/v2/``. Errors have the form of the distribution specification."""
        try:
            return await self._respond(request)
        except HttpError as error:
            return _error(error.status, error.text)
        except SandlotError as error:
            status = error.status
            # A client repeats a request after status 503, and reports others. An invalid image is a fault of the registry, not of the request.
            return _error(502 if error.code in {ErrorCode.INVALID_REQUEST, ErrorCode.SERVICE_UNAVAILABLE} else status, str(error))

    async def _respond(self, request: Request) -> Response:
        match request.segments[1:]:
            case ():
                return bytes_response(200, b"{}", JSON, _VERSION)
            case (*names, "manifests", version) if is_version(version):
                return await self._respond_with_manifest(_repository(request, names), version)
            case (*names, "blobs", digest) if DIGEST.fullmatch(digest):
                reference = _repository(request, names)
                response = await self._images.open_blob(reference, digest, request.file_request(f'"sha256-{digest.partition(":")[2]}"'))
                return Response(
                    response.status, (*response.headers, ("Docker-Content-Digest", digest), *_VERSION), response.length, response.body, response.close
                )
            case _:
                raise HttpError(404, _NOT_SERVED)

    async def _respond_with_manifest(self, repository: ImageReference, version: str) -> Response:
        is_digest = DIGEST.fullmatch(version) is not None
        reference = ImageReference(repository.registry, repository.repository, "" if is_digest else version, version if is_digest else "")
        found = await self._images.document(reference)
        headers = (("Docker-Content-Digest", found.digest), ("ETag", f'"{found.digest}"'), *_VERSION)
        return bytes_response(200, found.data, found.media_type, headers)


def _repository(request: Request, names: list[str]) -> ImageReference:
    """Return a reference to the repository that a path names."""
    namespaces = parse_qs(request.query, max_num_fields=16).get("ns", []) if len(request.query) < 1024 else []  # noqa: PLR2004
    registry, path = (namespaces[-1], names) if namespaces else (_PORT.sub(r":\1", names[0]) if names else "", names[1:])
    repository = "/".join(path)
    if not is_registry(registry) or not is_repository(repository):
        raise HttpError(404, _NOT_SERVED)
    return ImageReference(registry, repository)


def _error(status: int, text: str) -> Response:
    body = {"errors": [{"code": _CODES.get(status, "UNKNOWN"), "message": text}]}
    return bytes_response(status, json.dumps(body).encode(), JSON, _VERSION)

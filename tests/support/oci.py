"""Images for tests: layers, configurations, manifests and indexes, and a registry that serves them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandlot.model.image_manifests import OCI_INDEX, OCI_MANIFEST, TAR_GZIP, machine_architecture
from tests.support.upstream import Said, Upstream


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive with files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@functools.cache
def _compressed(archive: bytes) -> bytes:
    return gzip.compress(archive, 1, mtime=0)


@dataclass(slots=True)
class MadeImage:
    """An image of a test.

    Args:
        archives: Layers without compression, the lowest first.
        settings: ``config`` of the configuration.
        more: Further keys of the manifest, or other values of its keys.
        config_more: The same of the configuration.
    """

    archives: Sequence[bytes]
    settings: Mapping[str, Any] = field(default_factory=lambda: {"Env": ["PATH=/bin", "A=b=c"], "User": "1000", "Cmd": ["sh"]})
    more: Mapping[str, Any] = field(default_factory=dict)
    config_more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> list[bytes]:
        return [_compressed(archive) for archive in self.archives]

    @property
    def config(self) -> bytes:
        document = {
            "architecture": machine_architecture(),
            "os": "linux",
            "config": self.settings,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(archive) for archive in self.archives]},
        }
        return json.dumps(document | dict(self.config_more)).encode()

    @property
    def descriptors(self) -> list[dict[str, Any]]:
        return [{"mediaType": TAR_GZIP, "digest": digest_of(layer), "size": len(layer)} for layer in self.layers]

    @property
    def manifest(self) -> bytes:
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(self.config), "size": len(self.config)},
            "layers": self.descriptors,
        }
        return json.dumps(document | dict(self.more)).encode()

    @property
    def blobs(self) -> dict[str, bytes]:
        """Content of everything but the manifest, by digest."""
        return {digest_of(data): data for data in (self.config, *self.layers)}

    def index(self, architecture: str = "", *, only: bool = False) -> bytes:
        """Return an index with a foreign platform, an attestation and this image, or with ``only`` this image."""
        manifest = {"mediaType": OCI_MANIFEST, "digest": digest_of(self.manifest), "size": len(self.manifest)}
        entries = [
            {**manifest, "digest": digest_of(b"other"), "platform": {"os": "linux", "architecture": "s390x"}},
            {**manifest, "digest": digest_of(b"proof"), "platform": {"os": "unknown", "architecture": "unknown"}},
            {**manifest, "platform": {"os": "linux", "architecture": architecture or machine_architecture()}},
        ]
        return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries[-1:] if only else entries}).encode()


def serve_image(registry: Upstream, image: MadeImage, repository: str = "team/app", tag: str = "1") -> None:
    """Serve an image from a registry of the test."""
    manifest = Said(image.manifest, headers={"Content-Type": OCI_MANIFEST, "ETag": f'"{digest_of(image.manifest)}"'})
    registry.says[f"/v2/{repository}/manifests/{tag}"] = manifest
    registry.says[f"/v2/{repository}/manifests/{digest_of(image.manifest)}"] = manifest
    for digest, data in image.blobs.items():
        registry.says[f"/v2/{repository}/blobs/{digest}"] = Said(data)


def two_layers(size: int = 100_000) -> MadeImage:
    """Return an image of two layers, the first of which does not compress."""
    noise = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(size // 32))
    return MadeImage([tar_of({"etc/passwd": b"root\n", "noise": noise}), tar_of({"app": b"hello\n"})])


def layout_of(made: MadeImage, *names: str, index: bytes | None = None) -> dict[str, bytes]:
    """Return the files of an OCI layout with one image under several names."""
    top = made.index() if index is None else index
    entries = [
        {
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": digest_of(top),
            "size": len(top),
            **({"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}),
        }
        for name in names or ("",)
    ]
    blobs = {**made.blobs, digest_of(top): top, digest_of(made.manifest): made.manifest}
    return {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": entries}).encode(),
        **{f"blobs/sha256/{digest[7:]}": data for digest, data in blobs.items()},
    }


def docker_of(made: MadeImage, *tags: str) -> dict[str, bytes]:
    """Return the files of an archive of docker save."""
    layers = {f"{number}/layer.tar": archive for number, archive in enumerate(made.archives)}
    manifest = [{"Config": "config.json", "RepoTags": list(tags) or None, "Layers": list(layers)}]
    return {"config.json": made.config, **layers, "manifest.json": json.dumps(manifest).encode()}

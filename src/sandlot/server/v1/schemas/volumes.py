"""Volumes: asked for, attached, told."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from sandlot.model.specs import VolumeMount
from sandlot.model.volumes import DEFAULT_SIZE_BYTES, MAX_SIZE_BYTES, MIN_SIZE_BYTES, VolumeInfo
from sandlot.server.v1.schemas.base import QueryModel, RequestModel, ResponseModel, Text


class VolumeBody(RequestModel):
    """A volume to make."""

    name: Text = Field(
        description="What to call it: up to 63 lower-case letters, digits, '_' and '-'; no two of one key's have one name.", examples=["datasets"]
    )
    size_bytes: int = Field(default=DEFAULT_SIZE_BYTES, ge=MIN_SIZE_BYTES, le=MAX_SIZE_BYTES, description="What may be written to it.")


class MountBody(RequestModel):
    """A volume that a sandbox is to have."""

    volume: Text = Field(description="Its name or its id.", examples=["datasets"])
    path: Text = Field(description="The folder that it is: absolute, made where it is not there.", examples=["/data"])
    read_only: bool = Field(default=False, description="Whether nothing can be written to it from this sandbox.")

    def asked(self) -> VolumeMount:
        """What core makes of it."""
        return VolumeMount(volume=self.volume, path=self.path, read_only=self.read_only)


class DetachQuery(QueryModel):
    """A volume that a sandbox is to have no more."""

    path: Text = Field(description="The folder that it is in the sandbox; or the volume's name or id.", examples=["/data"])


class MountAnswer(ResponseModel):
    """A volume that a sandbox has."""

    volume: str = Field(description="Its id.")
    path: str
    read_only: bool

    @classmethod
    def of(cls, mount: VolumeMount) -> MountAnswer:
        """What is told of it."""
        return cls(volume=mount.volume, path=mount.path, read_only=mount.read_only)


class VolumeAnswer(ResponseModel):
    """A volume."""

    id: str
    name: str
    size_bytes: int = Field(description="What may be written to it.")
    used_bytes: int = Field(description="What is in it; of one that no sandbox has, what was when the last one let go of it.")
    attached: list[str] = Field(description="The ids of the sandboxes that have it, hibernated ones included.")
    created_at: datetime

    @classmethod
    def of(cls, volume: VolumeInfo) -> VolumeAnswer:
        """What is told of it."""
        return cls(
            id=volume.id,
            name=volume.name,
            size_bytes=volume.size_bytes,
            used_bytes=volume.used_bytes,
            attached=list(volume.attached),
            created_at=volume.created_at,
        )


class VolumesAnswer(ResponseModel):
    """All volumes, oldest first."""

    volumes: list[VolumeAnswer]

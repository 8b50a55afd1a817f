"""Interfaces that core needs besides the driver: clock, templates, image registries, volume disks, package indexes, and the network gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sandlot.link.services import GuestService, GuestStream
from sandlot.model.access import Principal
from sandlot.model.images import Image, ImageReference, Layer
from sandlot.model.network import NetworkPolicy
from sandlot.model.network_activity import NetworkActivity, NetworkRefusal
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import RootFs, TemplateRef
from sandlot.model.templates import TemplateDefaults


class Clock(Protocol):
    """Clock of the service. Tests replace the clock, so that a test of a deadline does not wait."""

    def monotonic_s(self) -> float:
        """Return the seconds since a fixed but unspecified moment. Never goes back."""
        ...

    def now(self) -> datetime:
        """Return the date and time in UTC."""
        ...

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Wait until :meth:`monotonic_s` returns at least the given moment."""
        ...


class SystemClock:
    """Clock of this machine."""

    def monotonic_s(self) -> float:
        """Return the seconds since boot, without the time in which the machine was suspended (CLOCK_MONOTONIC)."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the date and time in UTC."""
        return datetime.now(UTC)

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Wait until :meth:`monotonic_s` returns at least the given moment."""
        await asyncio.sleep(moment_monotonic_s - time.monotonic())


@dataclass(frozen=True, slots=True)
class ResolvedTemplate:
    """Root filesystem and environment that a template gives its sandboxes.

    Args:
        env: Environment of all processes; the environment of the sandbox overrides it.
        build: Id of the build of a user; empty for a built-in template.
    """

    root: RootFs
    env: Mapping[str, str]
    build: str = ""


class TemplateStore(Protocol):
    """Templates and their root filesystem images.

    A principal can name the templates of its owner and the built-in templates (owner ``LOCAL``). If both have a name, the name means the owner's own.
    """

    async def list(self, principal: Principal) -> Sequence[TemplateInfo]:
        """Return all templates that a principal can name."""
        ...

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the template that a name means for a principal, without digest, or None if there is none."""
        ...

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return what sandboxes of a template get if their request does not say otherwise. Builds nothing."""
        ...

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        """Return the current build of a template. Build the image first if it does not exist, which takes minutes.

        Builds run in threads of their own, only few at once. A template that is built does not wait for the builds of others.

        Args:
            ref: Reference to the current build.
            images: True if the driver can start sandboxes from an EROFS image. The root file system is a folder otherwise.

        Raises:
            NotFoundError: There is no such template (code ``template_not_found``).
            HostError: The image cannot be built on this host; the hint says how to fix this.
        """
        ...

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build that ``ref`` names by its id or digest, or None if that build was removed.

        Builds nothing, except that an image that was evicted is made again, in seconds.
        """
        ...


class ImageRegistry(Protocol):
    """Images in the registries that the operator allows."""

    async def resolve(self, reference: ImageReference) -> Image:
        """Return the image that a reference names, for the platform of this machine.

        Raises:
            ForbiddenError: The operator does not allow the registry.
            NotFoundError: The registry has no such image, or none for this platform.
            InvalidRequestError: The manifest or the configuration of the image is invalid or exceeds a limit; the message says which.
            UnavailableError: The registry does not respond.
        """
        ...

    def read_layer(self, reference: ImageReference, layer: Layer) -> AsyncIterator[bytes]:
        """Yield a layer as it is stored. Its digest and size are verified before the last bytes are yielded.

        Raises:
            InvalidRequestError: The layer differs from its digest or size.
            UnavailableError: The registry does not respond, or the connection broke too often.
        """
        ...


class VolumeDisks(Protocol):
    """Filesystems of volumes on the host. All methods block and may raise ``OSError``."""

    def max_disk_bytes(self, size_bytes: int) -> int:
        """Return the maximum disk space in bytes that a volume of a given size can take. Pure."""
        ...

    def make(self, volume: str, size_bytes: int) -> None:
        """Create an empty volume."""
        ...

    def mount(self, volume: str) -> Path:
        """Mount a volume if it is not mounted, and return its path."""
        ...

    def image(self, volume: str) -> Path:
        """Return the path of the image file of a volume. Pure."""
        ...

    def unmount(self, volume: str) -> None:
        """Unmount a volume. Idempotent."""
        ...

    def used_bytes(self, volume: str) -> int | None:
        """Return the used bytes of a volume, or None if the volume is not mounted."""
        ...

    def remove(self, volume: str) -> None:
        """Delete a volume and its content. Idempotent."""
        ...

    def ids(self) -> frozenset[str]:
        """Return the ids of all volumes, including partly created ones."""
        ...


class PackageIndex(Protocol):
    """Serves package indexes to sandboxes."""

    async def serve(self, stream: GuestStream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        """Serve one connection from inside a sandbox until the connection ends.

        Args:
            stream: Connection with HTTP/1.1 requests, one after another. The sandbox is hostile and can send any bytes.
            sandbox: Id of the sandbox; the number of its concurrent requests is limited.
            allowed: Returns True if the sandbox may use the package indexes now. Called for each request.
        """
        ...


class SandboxNetwork(Protocol):
    """Network access of one sandbox: the host's side of its connections to other hosts."""

    def services(self) -> Mapping[str, GuestService]:
        """Return the services ``connect`` and ``dns`` for the guest of the sandbox."""
        ...

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Decide about new connections and requests by another policy, and reset open connections that the policy does not allow."""
        ...

    def activity(self) -> NetworkActivity:
        """Return the refusals, destinations and bytes of the sandbox."""
        ...

    def close(self) -> None:
        """Reset all connections and refuse new ones. Idempotent."""
        ...


class NetworkGateway(Protocol):
    """Connects sandboxes to the hosts that their network policies allow."""

    def open(self, sandbox: str, policy: NetworkPolicy, on_refusal: Callable[[NetworkRefusal], object]) -> SandboxNetwork:
        """Return the network access of a sandbox. The caller must close it.

        Args:
            sandbox: Id of the sandbox.
            policy: Network policy of the sandbox.
            on_refusal: Called for each refusal that differs from those that are kept, at most once a second for one sandbox.
        """
        ...

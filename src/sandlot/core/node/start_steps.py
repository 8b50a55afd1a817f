"""Steps that pools and the lifecycle share to start a sandbox: restore the sandbox from a memory image, and connect to its guest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from sandlot.core.node.drivers import STEP_TIMEOUT_S, driver_step
from sandlot.core.ports import GuestLinkFactory
from sandlot.link.client import Link
from sandlot.link.services import Service
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Driver, Exit, Instance, PreparedSandbox
from sandlot.model.specs import SandboxSpec, Shape


class ResourceOwner(Protocol):
    """Owner of the prepared sandbox that a driver made. The owner destroys the prepared sandbox if a later step fails."""

    def take(self, resource: PreparedSandbox) -> None:
        """Take ownership of a prepared sandbox. An earlier prepared sandbox of the owner is replaced."""
        ...

    def check_end(self) -> None:
        """Raise an error if the end of the sandbox was requested."""
        ...


class ExitedError(Exception):
    """The processes of an instance ended before the guest was connected."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.detail)
        self.exit = exit_


async def restore_image(
    owner: ResourceOwner,
    driver: Driver,
    image: Path,
    shape: Shape,
    spec: SandboxSpec,
    volumes: Sequence[Attachment] = (),
    *,
    prepared: PreparedSandbox | None = None,
) -> Instance:
    """Restore a sandbox from an image of memory and files.

    If ``prepared`` and the image were made by different builds of the runtime, ``prepared`` is destroyed, and the driver prepares another sandbox.

    Args:
        owner: Owner of the prepared sandbox.
        driver: Driver of the sandbox.
        image: Folder of the image, which the driver wrote.
        shape: Shape of the sandbox.
        spec: Spec of the sandbox.
        volumes: Volumes of the sandbox, mounted on the host.
        prepared: Prepared sandbox without volumes, into which the image is restored. None: the driver prepares a sandbox.

    Raises:
        SandlotError: The image cannot be restored. The owner still has the prepared sandbox.
    """
    if prepared is not None:
        owner.take(prepared)
        try:
            return await _restore_into(owner, driver, prepared, image, spec, volumes)
        except SandboxEndedError:
            raise
        except SandlotError as error:
            if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                raise
        await driver_step("remove", prepared.destroy())
    prepared = await driver_step("prepare", driver.prepare(shape, snapshot=image))
    owner.take(prepared)
    return await _restore_into(owner, driver, prepared, image, spec, volumes)


async def _restore_into(
    owner: ResourceOwner, driver: Driver, prepared: PreparedSandbox, image: Path, spec: SandboxSpec, volumes: Sequence[Attachment]
) -> Instance:
    owner.check_end()
    if volumes:
        await driver_step("attach a volume to", prepared.attach(volumes))
    headroom = await driver.restore_headroom(image, spec.limits)
    return await driver_step("restore", prepared.restore(image, spec, headroom_bytes=headroom.most_bytes))


async def connect_guest(
    instance: Instance,
    exited: asyncio.Future[Exit],
    link_factory: GuestLinkFactory,
    services: Mapping[str, Service],
    *,
    timeout_s: float = STEP_TIMEOUT_S,
) -> Link:
    """Connect to the guest of a started instance.

    Args:
        instance: The instance.
        exited: Future that is done when the processes of the instance have ended.
        link_factory: Opens a link over a byte stream.
        services: Services of the host that the guest may use, by name.
        timeout_s: Seconds until the attempt is aborted.

    Raises:
        ExitedError: The processes ended before the guest was connected.
        TimeoutError: The guest did not respond in time.
        SandlotError: The guest cannot be reached.
    """

    async def connect() -> Link:
        return await link_factory(await instance.connect(), services=services)

    connecting = asyncio.ensure_future(connect())
    ends: set[asyncio.Future[Any]] = {exited, connecting}
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise ExitedError(exited.result())  # noqa: TRY301 - the handler below closes the connection, as after every failure
        return connecting.result()
    except BaseException:
        connecting.cancel()
        with suppress(BaseException):
            await (await connecting).aclose()
        raise

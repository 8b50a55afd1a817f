"""The state of one link: handshake, quiesce and close. Also the requests that have one short response.

- Every method raises only errors of the model: the guest's error for a RESET, ``SandboxEndedError`` after the link has ended, and
  ``UnavailableError`` while no call can be made (the guest is asleep or is being quiesced, there are too many calls, this end was closed).
- No request waits forever. It ends with its response, with the link, or after ``request_timeout_s``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sandlot.link.calls import Call
from sandlot.link.services import Service, Services
from sandlot.link.transport import FrameTransport, error_of_closed_link
from sandlot.model.errors import ConflictError, ErrorCode, TimeoutExceededError, UnavailableError
from sandlot.model.ports import ByteStream
from sandlot.protocol import events, schema
from sandlot.protocol.handshake import NONCE_BYTES

_HELLO_INTERVAL_S = 2.0

ResultT = TypeVar("ResultT")


class LinkSession:
    """The host's end of the link to one guest, without the calls. It belongs to one event loop.

    Args:
        stream: The bytes of the link.
        services: Services that the guest may use, by name.
        request_timeout_s: Maximum duration of a request in seconds.
    """

    def __init__(self, stream: ByteStream, *, services: Mapping[str, Service], request_timeout_s: float) -> None:
        self.transport = FrameTransport(stream, self._on_event)
        self.services = Services(self.transport, services)
        self._request_timeout_s = request_timeout_s
        self._greeted = asyncio.Event()
        self._quiesced = asyncio.Event()
        self._is_quiescing = False
        self.transport.closed.add_done_callback(self._wake_waiters)

    async def handshake(self, timeout_s: float) -> None:
        """Begin a new connection with the guest. Bytes of an earlier connection that are still in the pipes are discarded.

        Args:
            timeout_s: Maximum time to wait in seconds. HELLO is sent again every 2 s.

        Raises:
            TimeoutExceededError: The guest did not respond in time.
            SandboxEndedError: The guest ended, or speaks another generation of the protocol.
        """
        nonce = os.urandom(NONCE_BYTES)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        self.transport.start()
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            self.transport.connection.hello(nonce)
            self.transport.flush()
            if await self._wait_within(min(_HELLO_INTERVAL_S, left_s), self._greeted):
                return
        raise TimeoutExceededError(
            f"The sandbox did not respond within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="Retry later; the host may be overloaded."
        )

    async def quiesce(self, timeout_s: float) -> None:
        """Quiesce the guest. Afterwards all streams are reset, the pipes are empty, and the guest serves only ``guest.wake``.

        Args:
            timeout_s: Maximum time to wait in seconds.

        Raises:
            TimeoutExceededError: The guest was not quiesced in time. No further calls can be made, and the link must be closed.
            UnavailableError: The guest is being quiesced already.
            SandboxEndedError: The link has ended.
        """
        self.check_usable(while_asleep=True)
        self._is_quiescing = True
        self._quiesced.clear()
        self.transport.resume_sending()
        self.transport.connection.quiesce()
        self.transport.flush()
        if not await self._wait_within(timeout_s, self._quiesced):
            raise TimeoutExceededError(
                f"The sandbox did not stop its streams within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="Delete the sandbox."
            )

    async def request(
        self,
        name: str,
        args: dict[str, Any],
        parse: Callable[[object], ResultT],
        *,
        while_asleep: bool = False,
        timeout_s: float | None = None,
        is_last: bool = False,
    ) -> ResultT:
        """Make a call that has one short response.

        Args:
            name: A key of ``schema.CALLS``.
            args: Arguments of the call.
            parse: Converts the response, or raises ProtocolError.
            while_asleep: True if the guest serves this call before it is awake.
            timeout_s: Maximum duration in seconds; None for ``request_timeout_s``.
            is_last: True to send nothing after the call until ``transport.resume_sending``.

        Raises:
            TimeoutExceededError: There was no response in time.
            SandlotError: The guest's error, or the end of the link.
        """
        self.check_usable(while_asleep=while_asleep)
        call = Call(self.transport, name, args, parse, call_id=new_call_id(), is_last=is_last)
        limit_s = self._request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await call.outcome
        except TimeoutError:
            raise TimeoutExceededError(
                f"The sandbox did not respond to {name} within {limit_s:g} s.", code=ErrorCode.TIMEOUT, hint="Retry, or delete the sandbox."
            ) from None
        finally:
            call.abandon()

    def check_usable(self, *, while_asleep: bool = False) -> None:
        """Check that calls can be made now.

        Args:
            while_asleep: True if the guest serves the call before it is awake.

        Raises:
            SandboxEndedError: The link has ended.
            UnavailableError: The guest is not awake, or is being quiesced.
        """
        if self.transport.closed.done():
            raise error_of_closed_link(self.transport.closed.result())
        if self._is_quiescing or (self.transport.connection.asleep and not while_asleep):
            raise UnavailableError("The sandbox is suspended or is being suspended.", code=ErrorCode.BUSY, hint="Retry when it has been resumed.")

    async def aclose(self) -> None:
        """Close this end. The sandbox keeps running, and a new link can be opened to it. Idempotent."""
        await self.services.aclose()
        await self.transport.aclose()

    async def _wait_within(self, timeout_s: float, event: asyncio.Event) -> bool:
        """Return True if the event was set in time.

        Raises:
            SandlotError: The link has ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        if self.transport.closed.done():
            raise error_of_closed_link(self.transport.closed.result())
        return True

    def _wake_waiters(self, _: object) -> None:
        self._greeted.set()
        self._quiesced.set()

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Opened):
            self.services.on_opened(event)
        elif isinstance(event, events.Ready):
            self._greeted.set()
        elif isinstance(event, events.Quiesced):
            self._is_quiescing = False
            self.transport.close_streams(_quiesced_error())
            self._quiesced.set()


def _quiesced_error() -> ConflictError:
    """Return the error of a call that was cut off by a quiesce. Its effect may last, so the client must not simply repeat the call."""
    return ConflictError(
        "The sandbox was paused before it responded.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="Resume the sandbox and check whether the request took effect before you repeat it.",
        fields={"cut": True},
    )


def new_call_id() -> bytes:
    """Return 16 random bytes."""
    return os.urandom(schema.CALL_ID_BYTES)

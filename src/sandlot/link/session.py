"""The session of one link: handshake, quiesce, close, and requests that have one short response.

- Every method raises only errors from ``sandlot.model.errors``. If the guest responds to a call with a RESET frame, the caller gets the error in this
  frame. After the link has ended, methods raise ``SandboxEndedError``. ``UnavailableError`` means that no call can be made now: the guest is asleep
  or is being quiesced, too many calls are in progress, or the host closed the link.
- No request waits forever. A request ends when its response arrives, when the link ends, or after its timeout.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sandlot.link.calls import Call
from sandlot.link.services import GuestService, Services
from sandlot.link.transport import FrameTransport, error_of_closed_link
from sandlot.link.turns import LinkTurns
from sandlot.model.errors import ConflictError, ErrorCode, TimeoutExceededError, UnavailableError
from sandlot.model.ports import ByteStream
from sandlot.protocol import events, schema
from sandlot.protocol.handshake import NONCE_BYTES

_HELLO_INTERVAL_S = 2.0

ResultT = TypeVar("ResultT")


class LinkSession:
    """The host's end of the link to one guest. A session must be used only in the event loop that created it.

    Args:
        stream: Byte stream to the guest.
        services: Services of the host that the guest may use, by name.
        turns: Pauses of all links of the service.
        request_timeout_s: Maximum duration in seconds of a request that sets no timeout.
    """

    def __init__(self, stream: ByteStream, *, services: Mapping[str, GuestService], turns: LinkTurns, request_timeout_s: float) -> None:
        self.transport = FrameTransport(stream, self._on_event, turns)
        self.services = Services(self.transport, services)
        self._request_timeout_s = request_timeout_s
        self._greeted = asyncio.Event()
        self._quiesced = asyncio.Event()
        self._is_quiescing = False
        self.transport.closed.add_done_callback(self._wake_waiters)

    async def handshake(self, timeout_s: float) -> None:
        """Begin a new connection with the guest. Bytes of an earlier connection that are still in the pipes are discarded.

        Args:
            timeout_s: Maximum time to wait in seconds. The host repeats HELLO every 2 s until the guest responds.

        Raises:
            TimeoutExceededError: The guest did not respond in time.
            SandboxEndedError: The sandbox has ended, or its guest speaks a generation of the protocol that this host does not support.
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
        """Quiesce the guest.

        When this method returns, all streams are closed, the pipes of the link are empty, and the guest serves only ``guest.wake``.

        Args:
            timeout_s: Maximum time to wait in seconds.

        Raises:
            TimeoutExceededError: The guest was not quiesced in time. No further calls can be made, and the caller must close the link.
            UnavailableError: The guest is already being quiesced, or the host closed the link.
            SandboxEndedError: The link has ended.
        """
        self.check_usable(while_asleep=True)
        self._is_quiescing = True
        self._quiesced.clear()
        self.transport.resume_sending()
        self.transport.connection.quiesce()
        self.transport.flush()
        if not await self._wait_within(timeout_s, self._quiesced):
            raise TimeoutExceededError(f"The sandbox was not quiesced within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="Delete the sandbox.")

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
        """Make a call that has one short response, and return the response.

        Args:
            name: Name of the call, a key of ``schema.CALLS``.
            args: Arguments of the call.
            parse: Function that converts the response, or raises ProtocolError.
            while_asleep: True for a call that the guest serves even while it sleeps.
            timeout_s: Maximum duration in seconds; None uses the session's ``request_timeout_s``.
            is_last: True to send no other frame on the link after this request until ``transport.resume_sending`` is called.

        Raises:
            TimeoutExceededError: No response arrived in time.
            SandlotError: The guest responded with an error, the link has ended, or no call can be made now.
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
        """Check that a call can be made now.

        Args:
            while_asleep: True for a call that the guest serves even while it sleeps.

        Raises:
            SandboxEndedError: The sandbox has ended.
            UnavailableError: The guest is asleep or is being quiesced, or the host closed the link.
        """
        if self.transport.closed.done():
            raise error_of_closed_link(self.transport.closed.result())
        if self._is_quiescing or (self.transport.connection.asleep and not while_asleep):
            raise UnavailableError("The sandbox is suspended or is being suspended.", code=ErrorCode.BUSY, hint="Resume the sandbox, then retry.")

    async def aclose(self) -> None:
        """Close the host's end of the link. The sandbox keeps running, and a new link to the sandbox can be opened. Idempotent."""
        await self.services.aclose()
        await self.transport.aclose()

    async def _wait_within(self, timeout_s: float, event: asyncio.Event) -> bool:
        """Wait for an event. Return False if the event was not set within ``timeout_s`` seconds.

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
    """Return the error for a call that a quiesce interrupted. The guest may have executed the call, so the client must not simply repeat the call."""
    return ConflictError(
        "The sandbox was paused before it responded.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="Resume the sandbox and check whether the request took effect before you repeat it.",
        fields={"cut": True},
    )


def new_call_id() -> bytes:
    """Return the id of a new call: 16 random bytes."""
    return os.urandom(schema.CALL_ID_BYTES)

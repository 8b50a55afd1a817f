"""The state of one link: handshake, asleep and awake, quiesced, closed. Also requests that have one short response.

- Every method raises only errors of the model: the guest's own for a RESET, ``SandboxEndedError`` after the link has ended, and
  ``UnavailableError`` while the guest takes no calls (asleep, being quiesced, too many calls, closed by this end).
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
        services: Services that the guest may ask for, by name.
        request_timeout_s: Seconds that a request may take.
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
        """Agree on a new connection with the guest, whatever bytes of an earlier one are in the pipes.

        Args:
            timeout_s: Seconds; HELLO is sent again every 2 s.

        Raises:
            TimeoutExceededError: The guest did not answer in time.
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
            f"The sandbox did not answer within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="Its host may be overloaded; try again."
        )

    async def quiesce(self, timeout_s: float) -> None:
        """Bring the guest to rest: every stream is reset, the pipes are empty, and the guest is asleep afterwards.

        Args:
            timeout_s: Seconds.

        Raises:
            TimeoutExceededError: The guest did not come to rest in time. The link takes no calls any more and must be closed.
            UnavailableError: It is being quiesced already.
            SandboxEndedError: The link has ended.
        """
        self.check_usable(while_asleep=True)
        self._is_quiescing = True
        self._quiesced.clear()
        self.transport.resume_sending()
        self.transport.connection.quiesce()
        self.transport.flush()
        if not await self._wait_within(timeout_s, self._quiesced):
            raise TimeoutExceededError(f"The sandbox did not come to rest within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="End it.")

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
            while_asleep: The guest serves this call while it is asleep.
            timeout_s: Seconds; None is ``request_timeout_s``.
            is_last: Send nothing after the call until ``transport.resume_sending``.

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
                f"The sandbox did not answer {name} within {limit_s:g} s.", code=ErrorCode.TIMEOUT, hint="Try again, or end the sandbox."
            ) from None
        finally:
            call.abandon()

    def check_usable(self, *, while_asleep: bool = False) -> None:
        """Check that calls can be made now.

        Args:
            while_asleep: The call is served while the guest is asleep.

        Raises:
            SandboxEndedError: The link has ended.
            UnavailableError: The guest is asleep, or being quiesced.
        """
        if self.transport.closed.done():
            raise error_of_closed_link(self.transport.closed.result())
        if self._is_quiescing or (self.transport.connection.asleep and not while_asleep):
            raise UnavailableError("The sandbox is asleep.", code=ErrorCode.BUSY, hint="Try again when it has been woken.")

    async def aclose(self) -> None:
        """Close this end. The sandbox lives on, and a new link can be opened to it. Idempotent."""
        await self.services.aclose()
        await self.transport.aclose()

    async def _wait_within(self, timeout_s: float, event: asyncio.Event) -> bool:
        """Return whether an event was set in time; raise if the link ends."""
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
    """Return the error of a call that the pause of a sandbox ended. Whatever it started goes on, so the client must not repeat it blindly."""
    return ConflictError(
        "The sandbox was paused before it had answered.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="What was started in it goes on after it is resumed: look for it before you send the same request again.",
        fields={"cut": True},
    )


def new_call_id() -> bytes:
    """Return 16 random bytes."""
    return os.urandom(schema.CALL_ID_BYTES)

"""The life of one link: greeting, asleep and awake, coming to rest, the end; and calls with one short answer.

Laws:
- Every method raises only the model's errors: the guest's own for a RESET, ``SandboxEndedError`` once the link is over,
  ``UnavailableError`` while it takes no calls (asleep, coming to rest, too many at once, closed by this end).
- No call hangs: it ends with its answer, with the link, or (where the work is short) when ``patience_s`` is over.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sandlot.link.calls import Call
from sandlot.link.pump import Pump, ended
from sandlot.link.services import Service, Services
from sandlot.link.types import LinkLost
from sandlot.model.errors import ConflictError, ErrorCode, TimeoutExceededError, UnavailableError
from sandlot.model.ports import ByteStream
from sandlot.protocol import events, schema
from sandlot.protocol.greeting import NONCE_BYTES

GREETING_TIMEOUT_S = 30.0
PATIENCE_S = 300.0
QUIESCE_TIMEOUT_S = 30.0
_HELLO_AGAIN_S = 2.0

ResultT = TypeVar("ResultT")


class Session:
    """The host's end of the link to one guest, without the calls. One event loop.

    Args:
        stream: The bytes.
        services: What the guest may ask of the host: name -> service.
        patience_s: Seconds until a call that should be short is given up.
    """

    def __init__(self, stream: ByteStream, *, services: Mapping[str, Service] | None = None, patience_s: float = PATIENCE_S) -> None:
        self._pump = Pump(stream, self._on_event)
        self._services = Services(self._pump, services or {})
        self._patience_s = patience_s
        self._greeted = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._is_quiescing = False
        self._pump.lost.add_done_callback(self._wake_waiters)

    @property
    def asleep(self) -> bool:
        """Whether only ``wake`` is served."""
        return self._pump.connection.asleep

    @property
    def generation(self) -> int:
        """The generation of the protocol that the guest speaks."""
        return self._pump.connection.generation

    @property
    def closed(self) -> bool:
        """Whether the link is over."""
        return self._pump.lost.done()

    async def wait_lost(self) -> LinkLost:
        """Return when the link is over, and why. Any number of callers."""
        return await asyncio.shield(self._pump.lost)

    def offer(self, services: Mapping[str, Service]) -> None:
        """What the guest may ask of the host from now on; for one that was greeted before it was known whose it would be.

        Args:
            services: name -> service.
        """
        self._services.offer(services)

    async def aclose(self) -> None:
        """Close this end; the sandbox lives on and can be greeted again. Idempotent."""
        await self._services.aclose()
        await self._pump.aclose()

    async def quiesce(self, timeout_s: float = QUIESCE_TIMEOUT_S) -> None:
        """Bring the guest to rest: every stream is reset, nothing is in the pipes, and it is asleep afterwards.

        Raises:
            TimeoutExceededError: It did not come to rest; the link takes no calls any more and must be closed.
            UnavailableError: It is on the way there already.
            SandboxEndedError: The link is over.
        """
        self.check_usable(while_asleep=True)
        self._is_quiescing = True
        self._at_rest.clear()
        self._pump.go_on()
        self._pump.connection.quiesce()
        self._pump.flush()
        if not await self._within(timeout_s, self._at_rest):
            raise TimeoutExceededError(f"The sandbox did not come to rest within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="End it.")

    async def ask(
        self,
        name: str,
        args: dict[str, Any],
        parse: Callable[[object], ResultT],
        *,
        while_asleep: bool = False,
        timeout_s: float | None = None,
        is_last: bool = False,
    ) -> ResultT:
        """Make a call that has one short answer.

        Args:
            name: A name of ``schema.CALLS``.
            args: Its arguments.
            parse: Makes the answer of what came over the wire, or raises ProtocolError.
            while_asleep: Whether the guest serves it then.
            timeout_s: Seconds until it is given up; None is the link's patience.
            is_last: Whether nothing is sent after it until the pump goes on.

        Raises:
            TimeoutExceededError: No answer in time.
            SandlotError: The guest's error, or the link's end.
        """
        self.check_usable(while_asleep=while_asleep)
        call = Call(self._pump, name, args, parse, call_id=new_call_id(), is_last=is_last)
        patience_s = self._patience_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(patience_s):
                return await call.outcome
        except TimeoutError:
            raise TimeoutExceededError(
                f"The sandbox did not answer {name} within {patience_s:g} s.", code=ErrorCode.TIMEOUT, hint="Try again, or end the sandbox."
            ) from None
        finally:
            call.abandon()

    def check_usable(self, *, while_asleep: bool = False) -> None:
        """Whether calls can be made now.

        Raises:
            SandboxEndedError: The link is over.
            UnavailableError: The guest is asleep, or on the way there.
        """
        if self._pump.lost.done():
            raise ended(self._pump.lost.result())
        if self._is_quiescing or (self.asleep and not while_asleep):
            raise UnavailableError("The sandbox is asleep.", code=ErrorCode.BUSY, hint="Try again when it has been woken.")

    async def _greet(self, timeout_s: float) -> None:
        nonce = os.urandom(NONCE_BYTES)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._pump.start()
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            self._pump.connection.hello(nonce)
            self._pump.flush()
            if await self._within(min(_HELLO_AGAIN_S, left_s), self._greeted):
                return
        raise TimeoutExceededError(
            f"The sandbox did not answer within {timeout_s:g} s.", code=ErrorCode.TIMEOUT, hint="Its host may be overloaded; try again."
        )

    async def _within(self, timeout_s: float, event: asyncio.Event) -> bool:
        """Whether it happened in time; the link's end raises."""
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        if self._pump.lost.done():
            raise ended(self._pump.lost.result())
        return True

    def _wake_waiters(self, _: object) -> None:
        self._greeted.set()
        self._at_rest.set()

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Opened):
            self._services.on_opened(event)
        elif isinstance(event, events.Ready):
            self._greeted.set()
        elif isinstance(event, events.Quiesced):
            self._is_quiescing = False
            self._pump.fail_all(_came_to_rest())
            self._at_rest.set()


def _came_to_rest() -> ConflictError:
    """What a call is answered with that the guest's rest cut. What it began was begun: it is not to be made again unseen."""
    return ConflictError(
        "The sandbox came to rest before it had answered.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="What was begun in it goes on once it is resumed; look for that before you ask for the same again.",
        fields={"cut": True},
    )


def new_call_id() -> bytes:
    """16 bytes that no call had before."""
    return os.urandom(schema.CALL_ID_BYTES)

"""What a sandbox can be asked about what goes on in it: what listens, and what its runs wrote."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.sdk import wire
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk.history import ListeningPort, LogEntry

BOTH = "both"


class AsyncTelling:
    """What a sandbox tells of itself.

    Args:
        client: Reaches the service.
        sandbox: Its id.
    """

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._path = f"/v1/sandboxes/{sandbox}"

    async def ports(self) -> builtins.list[ListeningPort]:
        """The TCP ports on which something listens inside, by number.

        Raises:
            SandboxEndedError: It has ended.
        """
        told = await self._client.request("GET", f"{self._path}/ports")
        return [ListeningPort(int(each["port"]), str(each["address"])) for each in told["ports"]]

    async def logs(self, stream: str = BOTH) -> builtins.list[LogEntry]:
        """What its runs wrote, in the order in which they were begun: code and commands, whoever ran them and by which API.

        It comes out of the log of runs, so a sandbox that has ended has it too, for as long as the service keeps that. The newest 200 runs are told,
        of a mebibyte of text at most, and of each stream of a run its beginning and its end. What a process in the background writes is there once
        it has ended; ``commands`` has it before.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.
        """
        told = await self._client.request("GET", f"{self._path}/logs", params=wire.given(stream=stream))
        return [LogEntry.parse(entry) for entry in told["entries"]]

    async def follow_logs(self, stream: str = BOTH) -> AsyncIterator[LogEntry]:
        """The same, and then what they write as they write it, until the sandbox ends or you stop iterating. It is not kept from being idle.

        Args:
            stream: ``stdout``, ``stderr`` or ``both``.

        Raises:
            UnavailableError: The service is gone, or the connection was cut.
        """
        async with self._client.event_stream("GET", f"{self._path}/logs", params=wire.given(stream=stream)) as events:
            async for event in events:
                if event.name in {"entry", "output", "lost"}:
                    yield LogEntry.parse(event.data)
                elif event.name == "ended":
                    return
        raise UnavailableError(
            "The log was cut off before the sandbox ended.", code=ErrorCode.SERVICE_UNAVAILABLE, hint="Follow it again: it begins anew."
        )

"""Programs that are run once, each in a sandbox of its own that is removed with it.

Law: However long a run takes, the connection is never silent: the service gives a sign of life, so that proxies leave it open and its death is seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Unpack

import httpx

from sandlot.model.errors import ErrorCode
from sandlot.sdk import responses
from sandlot.sdk.config import Target
from sandlot.sdk.http import ConnectionLostError, translated
from sandlot.sdk.models.programs import BatchItem, Program, ProgramOptions, ProgramResult
from sandlot.sdk.requests import batch_body
from sandlot.sdk.responses import JsonLines


class AsyncOneShots(ABC):
    """What a service does with programs that are run once."""

    target: Target

    @abstractmethod
    def stream(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, accept: str = "application/json"
    ) -> AbstractAsyncContextManager[httpx.Response]:
        """Make one call and give its answer's head."""

    async def execute(self, language: str, code: str, **options: Unpack[ProgramOptions]) -> ProgramResult:
        """Run a program once, in a sandbox of its own that has no network and is removed with it; grade it where something is expected.

        Args:
            language: ``python``, ``bash`` or ``javascript``.
            code: The program, at most 4 MiB.
            options: :class:`ProgramOptions`: ``stdin``, ``timeout``, ``files``, ``envs``, ``expected_output``, ``comparison`` and more.

        Raises:
            InvalidRequestError: There is no such language, or something is out of bounds.
            SandlotError: It could not be run. A program that fails is a result.
        """
        items = await self.execute_batch([{**options, "language": language, "code": code}])
        return items[0].unwrap()

    async def execute_batch(self, programs: Iterable[Program], *, concurrency: int | None = None) -> list[BatchItem]:
        """Run programs, each in a sandbox of its own, a few at a time; what became of each, in their order.

        Args:
            programs: At most 1,000. One that fails, or could not be run, spoils no other.
            concurrency: How many run at once, 4 by default, 32 at most.

        Raises:
            SandlotError: The batch as a whole was refused, or the connection broke.
        """
        items = {}
        async with aclosing(self.iter_batch(programs, concurrency=concurrency)) as done:
            async for item in done:
                items[item.index] = item
        return [items[index] for index in sorted(items)]

    async def iter_batch(self, programs: Iterable[Program], *, concurrency: int | None = None) -> AsyncGenerator[BatchItem]:
        """The same, one by one as they end. To stop iterating ends those that run.

        Args:
            programs: At most 1,000.
            concurrency: How many run at once.
        """
        body = batch_body(programs, concurrency)
        left = len(body["items"])
        if not left:
            return
        async with self.stream("POST", "/v1/execute/batch", body=body, accept="application/x-ndjson") as response:
            async for line in self._lines(response):
                if "index" not in line:
                    raise responses.error_from_problem(line)
                left -= 1
                yield BatchItem.parse(line)
        if left:
            raise ConnectionLostError(
                f"{self.target} left a batch before {left} of its programs were done.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint="What became of these is not known; they can be run again.",
            )

    async def _lines(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        lines = JsonLines()
        with translated(self.target):
            async for piece in response.aiter_bytes():
                for line in lines.feed(piece):
                    yield line

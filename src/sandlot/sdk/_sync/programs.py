# Generated from src/sandlot/sdk/_async/programs.py by scripts/unasync.py; change that file.
"""Programs that run once, with output comparison, as ``client.programs``."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Unpack

import httpx

from sandlot.model.errors import ErrorCode
from sandlot.sdk import responses
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.http import ConnectionLostError, translated
from sandlot.sdk.models.programs import BatchItem, LanguageInfo, Program, ProgramOptions, ProgramResult
from sandlot.sdk.requests import batch_body
from sandlot.sdk.responses import JsonLines


class Programs:
    """Run programs once, and compare their output with an expected output.

    Each program runs in a new sandbox without network, which is removed when the program ends.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def run(self, language: str, code: str, **options: Unpack[ProgramOptions]) -> ProgramResult:
        """Run a program. A program that fails is a result, not an error.

        Args:
            language: ``python``, ``javascript``, ``typescript``, ``bash``, ``java``, ``cpp``, ``c``, ``go``, ``rust``, ``ruby``, ``php``, ``r`` or
                ``perl``.
            code: Text of the program, at most 4 MiB.
            options: Input, limits and expected output: :class:`ProgramOptions`.

        Raises:
            InvalidRequestError: The language does not exist, the template does not have its compiler, or an option is out of bounds.
        """
        # A batch, because its response has keep-alives: a proxy closes a connection that is silent while a long program runs.
        items = self.run_batch([{**options, "language": language, "code": code}])
        return items[0].unwrap()

    def languages(self) -> list[LanguageInfo]:
        """List the languages of programs, with the versions in the images of templates."""
        return structure_list(LanguageInfo, self._transport.request("GET", "/v1/programs/languages"), "languages")

    def run_batch(self, programs: Iterable[Program], *, concurrency: int | None = None) -> list[BatchItem]:
        """Run programs side by side and return one item for each, in their order.

        Args:
            programs: At most 1,000 programs. The failure of one does not affect the others. Without programs, nothing is sent to the service.
            concurrency: Programs that run at the same time, at most 32. Default: 4.

        Raises:
            InvalidRequestError: There are more than 1,000 programs, ``concurrency`` is out of range, or an option does not exist.
            ConnectionLostError: The connection broke. All results are lost; :meth:`iter_batch` keeps those of the programs that had ended.
        """
        items = {}
        with closing(self.iter_batch(programs, concurrency=concurrency)) as done:
            for item in done:
                items[item.index] = item
        return [items[index] for index in sorted(items)]

    def iter_batch(self, programs: Iterable[Program], *, concurrency: int | None = None) -> Generator[BatchItem]:
        """Run programs side by side and yield an item as soon as its program ends. Closing the iterator ends the programs that run.

        Args:
            programs: At most 1,000 programs. The failure of one does not affect the others. Without programs, nothing is sent to the service.
            concurrency: Programs that run at the same time, at most 32. Default: 4.

        Raises:
            InvalidRequestError: There are more than 1,000 programs, ``concurrency`` is out of range, or an option does not exist.
            ConnectionLostError: The connection broke. Whether the programs without an item were run is not known.
        """
        body = batch_body(programs, concurrency)
        left = len(body["items"])
        if not left:
            return
        with self._transport.stream("POST", "/v1/programs/batch", body=body, accept="application/x-ndjson") as response:
            for line in self._lines(response):
                if "index" not in line:
                    raise responses.error_from_problem(line)
                left -= 1
                yield structure(BatchItem, line)
        if left:
            raise ConnectionLostError(
                f"The connection to {self._transport.target} broke before {left} programs of the batch ended.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint="Run these programs again; whether they were run is not known.",
            )

    def _lines(self, response: httpx.Response) -> Iterator[dict[str, Any]]:
        lines = JsonLines()
        with translated(self._transport.target):
            for piece in response.iter_bytes():
                for line in lines.feed(piece):
                    yield line

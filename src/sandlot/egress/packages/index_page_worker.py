"""A process that builds large index pages. Parsing tens of megabytes holds the interpreter lock, and all requests of the service would wait.

Invariant: the process only receives inputs and returns pages, over its standard streams. It ends with the service, because the streams break.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from sandlot.egress.packages.index_page import BuildPage, FetchedInput

MEMORY_BYTES: Final = 2 * 1024**3
"""Limit of the address space. Building takes about eight times the size of the page, and the largest pages have several inputs of 48 MiB."""
NICENESS: Final = 10
MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)
"""Errors that a malformed input causes."""


async def build_in_process(build: BuildPage, inputs: Sequence[FetchedInput]) -> Mapping[str, bytes]:
    """Build the variants of a page in another process.

    Args:
        build: Builds the page; a function of a module, or a partial of one.
        inputs: Inputs of the page.

    Raises:
        ValueError: The inputs are malformed or too large.
    """
    request = await asyncio.to_thread(pickle.dumps, (build, inputs), protocol=pickle.HIGHEST_PROTOCOL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1024 * 1024
    )
    try:
        response, _ = await process.communicate(request)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ValueError(f"the process that builds pages ended with status {process.returncode}")
    result: Mapping[str, bytes] | str = await asyncio.to_thread(pickle.loads, response)
    if isinstance(result, str):
        raise ValueError(result)  # noqa: TRY004 - the process returns the name of its error
    return result


def main() -> None:
    """Build one page: read the request from standard input, write the result to standard output."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    build, inputs = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the service
    try:
        result = build(inputs)
    except MALFORMED as error:
        result = type(error).__name__
    pickle.dump(result, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

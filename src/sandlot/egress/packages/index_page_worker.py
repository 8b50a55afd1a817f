"""A separate process that builds large index pages. In the service, parsing tens of megabytes would hold the interpreter lock and delay all requests.

Invariant: the process only reads inputs from its standard input and writes pages to its standard output. The process ends when the service ends,
because the service's ends of these streams are then closed.
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
"""Limit of the process's address space. Building takes about eight times the size of the inputs, and large pages have several inputs of 48 MiB."""
NICENESS: Final = 10
MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)
"""Exceptions that building a page raises if an input is malformed or too large."""


async def build_in_process(build: BuildPage, inputs: Sequence[FetchedInput]) -> Mapping[str, bytes]:
    """Build the variants of an index page in another process. Return the content by name of the variant.

    Args:
        build: Function that builds the page. It must be picklable: a function at module level, or a ``functools.partial`` of such a function.
        inputs: Fetched inputs of the page.

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
        raise ValueError(f"the process that builds index pages ended with status {process.returncode}")
    result: Mapping[str, bytes] | str = await asyncio.to_thread(pickle.loads, response)
    if isinstance(result, str):
        raise ValueError(result)  # noqa: TRY004 - a text is the name of the exception in the process
    return result


def main() -> None:
    """Run the separate process: read the pickled build function and inputs from standard input, and write the pickled page to standard output."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    build, inputs = pickle.load(sys.stdin.buffer)  # noqa: S301 - the service wrote the pickle
    try:
        result = build(inputs)
    except MALFORMED as error:
        result = type(error).__name__
    pickle.dump(result, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""Large pages are made by a process of their own: what parses tens of megabytes holds the interpreter, and with it everybody's requests.

Law: the process has no more than pages in and pages out, over its own standard streams, and ends with whoever asked: they break.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from sandlot.egress.pages import Got, Make

MEMORY_BYTES: Final = 2 * 1024**3
"""Of address space: a page takes about eight times its size, and several inputs of 48 MiB are the most."""
NICENESS: Final = 10
SENSELESS: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)
"""What an input that makes no sense raises."""


async def make_apart(make: Make, got: Sequence[Got]) -> Mapping[str, bytes]:
    """Make the variants of a page in another process.

    Args:
        make: Makes it; a function of a module, or a partial of one.
        got: Its inputs.

    Raises:
        ValueError: They make no sense, or are too much to be made.
    """
    asked = await asyncio.to_thread(pickle.dumps, (make, got), protocol=pickle.HIGHEST_PROTOCOL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1024 * 1024
    )
    try:
        answer, _ = await process.communicate(asked)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ValueError(f"the process that made it ended with {process.returncode}")
    made: Mapping[str, bytes] | str = await asyncio.to_thread(pickle.loads, answer)
    if isinstance(made, str):
        raise ValueError(made)  # noqa: TRY004 - that is how the process tells it
    return made


def main() -> None:
    """What the process does."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    make, got = pickle.load(sys.stdin.buffer)  # noqa: S301 - the service wrote it
    try:
        made = make(got)
    except SENSELESS as error:
        made = type(error).__name__
    pickle.dump(made, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""A program for the suites: a process that writes to a store, until it has done so or somebody kills it with SIGKILL.

``python -m sandlot.testing.stores.writer OPENER WHERE MODE [COUNT]`` with a mode of

- ``churn``: save sandboxes with their events without end, several at once; print the id of each once that has returned.
- ``events``: print ``ready``, append COUNT events one by one, and print ``done``.
"""

from __future__ import annotations

import asyncio
import sys

from sandlot.model.storage import Store
from sandlot.testing.stores.bench import StoreBench, event, sandbox

_AT_ONCE = 3


async def churn(store: Store) -> None:
    """Save, and tell of it."""

    async def again() -> None:
        while True:
            record = sandbox(name="churn", metadata={"some": "label"})
            await store.sandboxes.save(record, event(sandbox=record.id))
            _say(record.id)

    await asyncio.gather(*(again() for _ in range(_AT_ONCE)))


async def main(opener: str, where: str, mode: str, count: str = "0") -> None:
    """Do what the mode says."""
    async with StoreBench(opener, where).open() as store:
        if mode == "churn":
            await churn(store)
        else:
            _say("ready")
            for number in range(int(count)):
                await store.events.add([event(number)])
            _say("done")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

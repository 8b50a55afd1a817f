"""A program that writes to a store in its own process, until everything is written or a test kills the program with SIGKILL.

The program is ``python -m sandlot.testing.stores.writer OPENER LOCATION MODE [COUNT]``. The modes:

- ``churn``: save sandboxes with their events without end, three at a time, and print the id of each sandbox after it was saved.
- ``events``: print ``ready``, add COUNT events one by one, and print ``done``.
"""

from __future__ import annotations

import asyncio
import sys

from sandlot.model.repositories import Store
from sandlot.testing.stores.harness import StoreHarness, event, sandbox

_TASKS = 3


async def churn(store: Store) -> None:
    """Save sandboxes with their events without end, and print the id of each saved sandbox."""

    async def save() -> None:
        while True:
            record = sandbox(name="churn", metadata={"some": "label"})
            await store.sandboxes.save(record, event(sandbox=record.id))
            _print(record.id)

    await asyncio.gather(*(save() for _ in range(_TASKS)))


async def main(opener: str, location: str, mode: str, count: str = "0") -> None:
    """Open the store. In the mode ``churn``, save sandboxes without end. In the mode ``events``, add events and then end.

    Args:
        opener: Function that opens the store, as ``module:function``.
        location: Location of the store, in the form that the opener expects.
        mode: ``churn`` or ``events``.
        count: Number of events to add in the mode ``events``.
    """
    async with StoreHarness(opener, location).open() as store:
        if mode == "churn":
            await churn(store)
        else:
            _print("ready")
            for number in range(int(count)):
                await store.events.add([event(number)])
            _print("done")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

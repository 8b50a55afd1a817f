"""What owners have open: requests and sockets under way, ended when their key is taken away.

Law: Who was let in by a key that holds no more is neither answered nor heard any longer; whoever takes it away is answered all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandlot.model.access import OwnerId
from sandlot.model.errors import AuthenticationError, ErrorCode


class ActiveRequests:
    """The tasks that work for each owner."""

    def __init__(self) -> None:
        self._tasks: dict[OwnerId, set[asyncio.Task[Any]]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def working_for(self, owner: OwnerId) -> Iterator[None]:
        """Around what the current task does for an owner.

        Raises:
            AuthenticationError: The owner's key was taken away meanwhile.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running")
        mine = self._tasks.setdefault(owner, set())
        mine.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():
                raise  # somebody else wants it to end as well
            raise AuthenticationError("This API key was revoked.", code=ErrorCode.UNAUTHENTICATED, hint="Ask the operator for another one.") from None
        finally:
            self._ended.discard(task)
            mine.discard(task)
            if not mine and self._tasks.get(owner) is mine:
                del self._tasks[owner]

    def end(self, owner: OwnerId) -> None:
        """End all that is done for an owner, but for what says so."""
        for task in self._tasks.get(owner, set()) - {asyncio.current_task()} - self._ended:
            self._ended.add(task)
            task.cancel()

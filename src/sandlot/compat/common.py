"""Labels, lookups and lists that several compatibility APIs need.

Vendors know sandboxes by their ids only, have lists without pages, and refuse requests about a sandbox that has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Final

from starlette.requests import HTTPConnection

from sandlot.core.node import Node
from sandlot.model.access import Principal, Quota
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.files import Entry
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import (
    LIVE,
    PURPOSE_KEY,
    RESERVED_PREFIX,
    SandboxFilter,
    SandboxInfo,
    UpdateSandboxParams,
    sandbox_not_found,
)
from sandlot.model.specs import MAX_TIMEOUT_S, User
from sandlot.model.states import State
from sandlot.web.dependencies import get_preview_address

VENDOR_KEY: Final = "sandlot.api"
"""Label whose value is the name of the compatibility API that created the sandbox."""
TEMPLATE_KEY: Final = "sandlot.api.template"
"""Label whose value is the template as the client named it."""
SESSION: Final = "session"
"""Value of the label ``PURPOSE_KEY`` of a sandbox that a vendor's client knows as a session."""

CREATE_KEYS: Final = "Create API keys on the server: sandlot key create NAME."
"""Hint for the vendors' calls that create keys."""
MAX_ENTRIES: Final = 20_000
"""Maximum number of entries of a directory that is listed without pages."""
PAGE: Final = 1000
"""Number of sandboxes or snapshots that are read at once."""


async def find_sandbox(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """Return a live or ended sandbox by its id. Its name is not accepted.

    Raises:
        NotFoundError: The principal can see no such sandbox (code ``sandbox_not_found``).
    """
    if SANDBOX_ID.fullmatch(sandbox) is None:
        raise sandbox_not_found(sandbox)
    return await node.sandboxes.get(principal, sandbox)


async def find_live_sandbox(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """Return a live sandbox by its id. See :func:`find_sandbox`.

    Raises:
        SandboxEndedError: The sandbox has ended, or its end is requested.
    """
    found = await find_sandbox(node, principal, sandbox)
    if is_ending(found):
        raise found.ended_error()
    return found


def is_ending(sandbox: SandboxInfo) -> bool:
    """Return whether a sandbox has ended or its end is requested."""
    return sandbox.is_over or sandbox.state is State.STOPPING


async def find_live_sandboxes(node: Node, principal: Principal, metadata: Mapping[str, str] | None = None) -> list[SandboxInfo]:
    """Return all live sandboxes that a principal may see, oldest first, except those whose end is requested.

    Args:
        node: Node that has the sandboxes.
        principal: Caller.
        metadata: Entries that the metadata of each sandbox has. None: all sandboxes.
    """
    return await find_sandboxes(node, principal, SandboxFilter(states=LIVE - {State.STOPPING}, metadata=metadata or {}))


async def find_sandboxes(node: Node, principal: Principal, wanted: SandboxFilter, *, newest: int | None = None) -> list[SandboxInfo]:
    """Return all sandboxes that a principal may see and that meet the conditions, oldest first.

    Args:
        node: Node that has the sandboxes.
        principal: Caller.
        wanted: Conditions that the sandboxes meet.
        newest: Maximum number of sandboxes to return; older ones are left out. None: no maximum.
    """
    page = await node.sandboxes.list(principal, wanted, after=None, limit=PAGE)
    found = list(page.items)
    while page.more:
        page = await node.sandboxes.list(principal, wanted, after=Position(found[-1].created_at, found[-1].id), limit=PAGE)
        found += page.items
        if newest is not None:
            del found[:-newest]
    return found


async def extend_timeout(node: Node, principal: Principal, sandbox: SandboxInfo, timeout_s: float) -> SandboxInfo:
    """Move the deadline of a sandbox to ``timeout_s`` seconds from now, and return the sandbox. A later deadline stays."""
    if sandbox.expires_at is None or (sandbox.expires_at - sandbox.as_of).total_seconds() >= timeout_s:
        return sandbox
    return await node.sandboxes.update(principal, sandbox.id, UpdateSandboxParams(timeout_s=timeout_s))


def session_metadata(vendor: str) -> Mapping[str, str]:
    """Return the labels of a vendor's session."""
    return {VENDOR_KEY: vendor, PURPOSE_KEY: SESSION}


def is_session(sandbox: SandboxInfo, vendor: str) -> bool:
    """Return whether a sandbox is a session of a vendor, live or ended."""
    return session_metadata(vendor).items() <= sandbox.metadata.items()


def session_timeout_s(quota: Quota) -> float | None:
    """Return the timeout of a session: None, which is no deadline, unless the quota limits the lifetime of sandboxes."""
    return None if quota.lifetime_s is None else min(quota.lifetime_s, MAX_TIMEOUT_S)


def client_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of metadata that clients may set and see."""
    return {name: value for name, value in metadata.items() if not name.startswith(RESERVED_PREFIX)}


async def iter_snapshots(node: Node, principal: Principal, after: Position | None = None) -> AsyncIterator[SnapshotRecord]:
    """Yield all snapshots that a principal may see, oldest first.

    Args:
        node: Node that has the snapshots.
        principal: Caller.
        after: Position to begin after. None: the oldest snapshot.
    """
    more = True
    while more:
        page = await node.snapshots.list(principal, after=after, limit=PAGE)
        for record in page.items:
            yield record
            after = Position(record.created_at, record.id)
        more = page.more and bool(page.items)


async def iter_directory(
    node: Node, principal: Principal, sandbox: str, path: str, *, user: User | None = None, attributes: str | None = None
) -> AsyncIterator[Entry]:
    """Yield the entries of a directory by name. The guest is asked for the next page when the entries of a page have been used.

    ``attributes`` is the prefix of the names of extended attributes to include; None includes none.

    Raises:
        NotFoundError: There is no such directory (code ``path_not_found``).
        InvalidRequestError: The path is not a directory.
    """
    offset, more = 0, True
    while more:
        page = await node.files.list(principal, sandbox, path, offset=offset, user=user, attributes=attributes)
        for entry in page.entries:
            yield entry
        offset, more = offset + len(page.entries), page.more and bool(page.entries)


async def list_directory(node: Node, principal: Principal, sandbox: str, path: str, *, user: User | None = None) -> list[Entry]:
    """Return all entries of a directory by name.

    Raises:
        NotFoundError: There is no such directory (code ``path_not_found``).
        LimitError: The directory has more than ``MAX_ENTRIES`` entries (code ``too_large``).
    """
    entries: list[Entry] = []
    async for entry in iter_directory(node, principal, sandbox, path, user=user):
        if len(entries) == MAX_ENTRIES:
            raise LimitError(
                f"The directory has more than {MAX_ENTRIES} entries.",
                code=ErrorCode.TOO_LARGE,
                hint="List parts of the directory with a command, such as find.",
                fields={"path": path[:256]},
            )
        entries.append(entry)
    return entries


async def single_chunk(content: bytes) -> AsyncIterator[bytes]:
    """Yield the content of a file that is in memory."""
    yield content


def append_line(text: str, line: str) -> str:
    """Append a line to text; a newline is inserted if the text does not end with one. An empty line changes nothing."""
    if not line:
        return text
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}{line}\n"


def rfc3339_ms(at: datetime) -> str:
    """Return a time in UTC with milliseconds, such as ``2026-01-02T03:04:05.678Z``."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def preview_domain(request: HTTPConnection) -> str | None:
    """Return the domain of the previews of the service, with the port if it is not the default; None if there are no previews."""
    address = await get_preview_address(request)
    return None if address is None else address.authority

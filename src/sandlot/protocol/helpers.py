"""Helper programs: their names, and the values in their messages that host and guest must agree on.

A helper is a process inside a sandbox that does the work of one request, because this work would block the guest (``guest/helpers/``).
Requests and responses are messages of ``protocol/values.py``:

- The request is the first message on standard input. The table names its fields. Standard input then carries bytes or further messages.
- Standard output carries bytes, and standard error carries messages.
- The last message is ``{"result": {...}}`` or ``{"error": code, "message": ..., "hint": ...}``; the codes are ``schema.RESET_CODES``.

Messages in the table are those of the helper, unless they are marked as messages of the host.

=========  =============================  ===============================================  =================================
helper     request                        messages and bytes                               result
=========  =============================  ===============================================  =================================
pack       path, gzip                     ``opened``; then a tar archive                   files, folders, links, bytes,
                                                                                           left_out
unpack     path, entries (their limit)    bytes of the host: a tar archive                 files, folders, links, bytes
watch      path, recursive, folders       ``watching``, ``by``, ``root``; then ``events``  gone
           (their limit), by
changes    folders                        ``marked``; a message of the host, which ends    more
                                          the time; then ``files``
overlay    do                             ``folder``, and the host's ``names``,            records, and bytes when packing
                                          ``ctimes``, ``more`` or ``missing``; a layer
volumes    gone, free, there              none                                             used
=========  =============================  ===============================================  =================================
"""

from __future__ import annotations

PACK = "pack"
UNPACK = "unpack"
WATCH = "watch"
CHANGES = "changes"
OVERLAY = "overlay"
VOLUMES = "volumes"

MAX_MESSAGE_BYTES = 1024 * 1024
"""Longest message in either direction."""

INOTIFY = "inotify"
SCAN = "scan"
"""Methods of ``watch``: ``by`` of the request is SCAN, or empty for inotify if the sandbox has it."""
WATCH_EVENTS = ("created", "modified", "removed", "moved", "overflow")
"""Kinds of the events of ``watch``. ``overflow``: events may be missing."""

MAX_CHANGED_FILES = 1_000
"""Files that ``changes`` reports at most; the result then has ``more``."""

PACK_LAYER, APPLY_LAYER = "pack", "apply"
"""Values of ``do`` of ``overlay``."""
LAYER_VERSION = 1
"""Format of a layer, which is stored in snapshots of kind ``files``."""

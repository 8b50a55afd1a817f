"""Helper programs: their names, and the values in their messages that host and guest must agree on.

A helper is a process inside a sandbox that does the work of one request, because this work would block the guest (``guest/helpers/``).
Requests and responses are messages of ``protocol/values.py``:

- The request is the first message on standard input. The table names its fields. Standard input then carries bytes or further messages.
- Standard output carries bytes, and standard error carries messages.
- The last message is ``{"result": {...}}`` or ``{"error": code, "message": ..., "hint": ...}``; the codes are ``schema.RESET_CODES``.

The helper sends the messages in the table, unless the table says that a message comes from the host.

=========  =============================  ===============================================  =================================
helper     request                        messages and bytes                               result
=========  =============================  ===============================================  =================================
pack       path, gzip                     ``opened``; then a tar archive                   files, folders, links, bytes,
                                                                                           left_out
unpack     path, entries (their limit)    bytes of the host: a tar archive                 files, folders, links, bytes
watch      path, recursive, folders       ``watching``, ``by``, ``root``; then ``events``  gone
           (their limit), by
changes    folders                        ``marked``; a message of the host, which ends    more
                                          the period; then ``files``
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
"""Largest size in bytes of a message in either direction."""

INOTIFY = "inotify"
SCAN = "scan"
"""Methods by which ``watch`` detects changes. The field ``by`` of the request is SCAN, or empty to use inotify if the sandbox supports inotify."""
WATCH_EVENTS = ("created", "modified", "removed", "moved", "overflow")
"""Kinds of the events of ``watch``. ``overflow``: events may be missing."""

MAX_CHANGED_FILES = 1_000
"""Largest number of files that ``changes`` reports. The field ``more`` of the result says that further files have changed."""

PACK_LAYER, APPLY_LAYER = "pack", "apply"
"""Values of ``do`` of ``overlay``."""
LAYER_VERSION = 1
"""Version of the format of a layer: the changed files of a sandbox, which snapshots of kind ``files`` store."""

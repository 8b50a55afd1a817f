"""Names of the helper programs, and the values in the messages of helper programs that host and guest must agree on.

A helper is a process inside a sandbox that does the work of one request, because this work would block the guest (``guest/helpers/``).
Requests and responses are messages of ``protocol/values.py``:

- The request is the first message on standard input. The table lists its fields. After the request, standard input carries bytes or messages.
- Standard output carries bytes, and standard error carries messages.
- The last message is ``{"result": {...}}`` or ``{"error": code, "message": ..., "hint": ...}``; the codes are ``schema.RESET_CODES``.

The column "messages and bytes" lists the fields of the messages. The helper sends these messages and bytes, except where the table names the host.

=========  ==============================  ===============================================  =================================
helper     fields of the request           messages and bytes                               fields of the result
=========  ==============================  ===============================================  =================================
pack       path, gzip                      ``opened``; then a tar archive                   files, folders, links, bytes,
                                                                                            left_out
unpack     path, entries (maximum number)  the host sends a tar archive                     files, folders, links, bytes,
                                                                                            skipped (names of links)
watch      path, recursive, folders        ``watching``, ``by``, ``root``; then ``events``; gone
           (maximum number), by            ``synced`` after each message of the host
changes    folders                         ``marked``; the host sends any message to end    more
                                           the period; then ``files``
overlay    do; collect: paths; copy:       pack: ``folder``, and the host responds with     records; pack and collect: also
           owner (empty: as packed)        ``names``, ``ctimes``, ``more``, or with         bytes
                                           ``missing``; an overlay. collect: an overlay. apply,
                                           copy: the host sends an overlay
volumes    unbind, unbind_if_unused, bind  none                                             used
cleanup    keep; None: only list           none                                             pids, files (that are left;
                                                                                            None: too many to list)
=========  ==============================  ===============================================  =================================
"""

from __future__ import annotations

PACK = "pack"
UNPACK = "unpack"
WATCH = "watch"
CHANGES = "changes"
OVERLAY = "overlay"
VOLUMES = "volumes"
CLEANUP = "cleanup"
READY = "ready"
"""Name of the helper with small versions of programs for ready commands. It has a command line and no messages."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Largest size in bytes of a message from the host to a helper, or from a helper to the host."""

INOTIFY = "inotify"
SCAN = "scan"
"""Methods by which the helper ``watch`` detects changes.

The field ``by`` of the request is SCAN, or empty to use inotify if the sandbox supports inotify.
"""
WATCH_EVENTS = ("created", "modified", "removed", "moved", "overflow")
"""Kinds of events that the helper ``watch`` reports. ``overflow`` means that events may be missing."""

MAX_CHANGED_FILES = 1_000
"""Maximum number of files that the helper ``changes`` reports. If further files may have changed, the field ``more`` of the result is True."""

PACK_OVERLAY, APPLY_OVERLAY, COLLECT_OVERLAY, COPY_OVERLAY = "pack", "apply", "collect", "copy"
"""Values of the field ``do`` in the request of the helper ``overlay``."""
OVERLAY_VERSION = 1
"""Version of the overlay format. An overlay contains the changed files of a sandbox. Snapshots of kind ``files`` store an overlay."""

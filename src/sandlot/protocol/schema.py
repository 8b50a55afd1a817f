"""The calls of one generation: what they take, what they tell on the way, what they give back.

The tables below are the contract; ``schemas/1.json`` is their frozen copy, and a test fails where they differ, so that a
change of the wire cannot pass for a change of the code.

How a call travels: the host opens a stream with ``{"call": name, "id": 16 bytes, "args": {...}}``. The guest answers with
DATA and with messages ``{"event": name, ...}``, then one ``{"result": {...}}`` and END; or RESET with ``code`` (the
``ErrorCode`` texts of the model), ``message`` and ``hint``. The host's DATA on channel 0 is standard input or a file's body, its END
closes it. A stream that the guest opens begins with ``{"service": name, "args": {...}}``.

Repeats: the guest remembers ids. A call whose id it has seen is not done twice: one that is done answers as it did, one
that is under way is attached to (``process.start``, ``kernel.execute``). Results of other calls are kept for the last 1,024.

Field kinds: str bytes int float bool any, list[str], list[map], map[str] (text to text), map (text to anything); a ``?``
after the kind allows None, which is also what an absent field means.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

CALL_ID_BYTES = 16

STDIN = 0
BODY = 0
STDOUT = 1
STDERR = 2

PACKAGES = "packages"
"""The service of the host that answers for package indexes: bytes on channel 0 both ways, one stream for each connection."""
PACKAGES_PORT = 4479
"""Where the guest listens for those, on the sandbox's own 127.0.0.1; what images' package managers are configured for."""

OUTPUT_BUFFER_BYTES = 1024 * 1024
"""What the guest keeps of each output channel for readers that come back."""

OUTPUT_PARAMS = {"stdout_from": "int?", "stderr_from": "int?"}
"""Byte offsets to go on from: None is the oldest that is kept."""

_PROCESS = {
    "process": "str",
    "pid": "int",
    "argv": "list[str]",
    "running": "bool",
    "reason": "str?",
    "exit_code": "int?",
    "signal": "int?",
    "duration_s": "float",  # so far, where it runs
    "pty": "bool",
    "stdin": "bool",  # whether it takes input, still
    "stdin_bytes": "int",  # that came for it so far, taken or waiting
    "stdout_bytes": "int",
    "stderr_bytes": "int",
}
_ENTRY = {
    "name": "str",
    "path": "str",
    "kind": "str",
    "size": "int",
    "mode": "int",
    "uid": "int",
    "gid": "int",
    "modified_ns": "int",
    "target": "str?",
}

_ENDED = {
    "process": "str",
    "pid": "int",
    "reason": "str?",
    "exit_code": "int?",
    "signal": "int?",
    "duration_s": "float",
    # Of it and of the children that it waited for, getrusage(2); None where nobody knows.
    "cpu_s": "float?",
    "peak_bytes": "int?",
}
_KERNEL = {
    "kernel": "str",
    "language": "str",
    "cwd": "str",
    "state": "str",
    "execution_count": "int",
    "pid": "int?",  # None where no process runs
}
_CELL_EVENTS = {
    "started": {"count": "int"},
    # Bytes of a channel (1 or 2) that are no longer kept.
    "lost": {"channel": "int", "bytes": "int"},
    # data: MIME type to text or bytes; main: the value of the last expression; update: in place of what had that id before.
    "display": {"data": "map", "main": "bool", "metadata": "map?", "display_id": "str?", "update": "bool?"},
    # wait: not before the next display.
    "clear": {"wait": "bool"},
    "error": {"name": "str", "value": "str", "traceback": "list[str]"},
}
# status: one of CELL_STATUSES.
_CELL_RESULT = {"status": "str", "execution_count": "int", "duration_s": "float"}

#: Maps that stand inside lists of results, for the reader and for the frozen copy.
RECORDS = {"process": _PROCESS, "entry": _ENTRY, "kernel": _KERNEL}

#: call -> what it takes ("args"), tells ("events") and gives ("result").
CALLS: dict[str, dict[str, Any]] = {
    "guest.wake": {
        # The first call of every life: after boot, restore, fork and wake. The only one that an asleep guest serves.
        "args": {
            "identity": "str",
            "hostname": "str",
            "env": "map[str]",
            "entropy": "bytes",
            "clock_unix_ns": "int",
            "pids": "int",
            # The limit, where it holds: what the guest goes by to end who is greedy before the sandbox is.
            "memory_bytes": "int?",
            "deadline_s": "float?",
            "workspace": "str",
        },
        "events": {},
        "result": {"python": "str?"},
    },
    "guest.info": {
        "args": {},
        "events": {},
        # tasks: processes and threads, PID 1 excepted: what the limit of pids counts. cpu_s: what they and those before them took.
        "result": {
            "generation": "int",
            "identity": "str",
            "uptime_s": "float",
            "processes": "int",
            "tasks": "int",
            "cpu_s": "float",
            "streams": "int",
        },
    },
    # Refused with conflict where more run than would be allowed. memory_bytes: None is as before.
    "guest.limit": {"args": {"pids": "int", "memory_bytes": "int?"}, "events": {}, "result": {}},
    # Around a checkpoint that the guest outlives: armed, the next HELLO finds it asleep, as what is restored from the checkpoint must be.
    "guest.checkpoint": {"args": {"armed": "bool"}, "events": {}, "result": {}},
    # What kernels are forked from, and the first one, made now; answered when they are ready, so that a snapshot holds them. Lean: only
    # the first one is left then, which takes half the memory; what others are forked from is made anew when one is asked for.
    "guest.warm": {"args": {"lean": "bool?"}, "events": {}, "result": {}},
    "guest.deadline": {"args": {"deadline_s": "float?"}, "events": {}, "result": {}},
    "guest.shutdown": {"args": {}, "events": {}, "result": {}},
    "process.start": {
        "args": {
            "argv": "list[str]",
            "env": "map[str]",
            "cwd": "str?",
            "user": "str",
            "stdin": "bool",
            "timeout_s": "float?",
            "attach": "bool",
            # Both make it the leader of a session on a terminal of that size: all output on channel 1, and always with input.
            "rows": "int?",
            "cols": "int?",
            # Of the service's own: process.list does not tell of it.
            "hidden": "bool?",
        },
        # lost: that many bytes of a channel (1 or 2) are no longer kept.
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        # reason: one of PROCESS_REASONS. Without attach the result comes at once, with reason None.
        "result": _ENDED,
    },
    "process.attach": {
        "args": {"process": "str", **OUTPUT_PARAMS},
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        "result": _ENDED,
    },
    # Comes when the process itself has ended, whoever reads its output or does not; none of it travels.
    "process.wait": {
        "args": {"process": "str"},
        "events": {},
        "result": _ENDED,
    },
    "process.signal": {"args": {"process": "str", "signal": "int"}, "events": {}, "result": {"running": "bool"}},
    # Of a terminal only.
    "process.resize": {"args": {"process": "str", "rows": "int", "cols": "int"}, "events": {}, "result": {"running": "bool"}},
    "process.get": {"args": {"process": "str"}, "events": {}, "result": _PROCESS},
    "process.list": {"args": {}, "events": {}, "result": {"processes": "list[map]"}},
    "process.forget": {"args": {"process": "str"}, "events": {}, "result": {}},
    # A context: a kernel with state, of one language. The id is the host's choice; one that is there already is given back as it is.
    "kernel.create": {"args": {"kernel": "str", "language": "str", "cwd": "str?", "env": "map[str]"}, "events": {}, "result": _KERNEL},
    "kernel.list": {"args": {}, "events": {}, "result": {"kernels": "list[map]"}},
    "kernel.remove": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # Cells of one kernel run one after another; the timeout begins when the cell does.
    "kernel.execute": {
        "args": {
            "kernel": "str",
            # Makes the kernel where there is none of that id.
            "language": "str?",
            "code": "str",
            "env": "map[str]",
            "timeout_s": "float?",
            "silent": "bool?",
            "store_history": "bool?",
            # Where it fails, those that wait behind it are aborted.
            "stop_on_error": "bool?",
        },
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    "kernel.attach": {
        # wait: false has the result come once all that there is was told; its status is "running" where the cell is not done.
        "args": {"execution": "str", "events_from": "int", **OUTPUT_PARAMS, "wait": "bool?"},
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    # Of an execution: only that one, whatever kernel has it; it is aborted where it waits. running: whether there was something to interrupt.
    "kernel.interrupt": {"args": {"kernel": "str", "execution": "str?"}, "events": {}, "result": {"running": "bool"}},
    "kernel.restart": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # The body comes on channel 0; None as the length means to the end.
    "file.read": {
        "args": {"path": "str", "user": "str", "offset": "int", "length": "int?"},
        "events": {"stat": _ENTRY},
        "result": {"bytes": "int"},
    },
    # Written beside it and renamed at the END of the body, so that a broken transfer leaves the old file.
    "file.write": {
        "args": {"path": "str", "user": "str", "mode": "int?", "parents": "bool", "append": "bool"},
        "events": {},
        "result": _ENTRY,
    },
    "file.stat": {"args": {"path": "str", "user": "str", "follow": "bool"}, "events": {}, "result": _ENTRY},
    # By name. offset: how many names to skip, so that a long folder is read in pages; those that vanish meanwhile are left out.
    "file.list": {
        "args": {"path": "str", "user": "str", "limit": "int", "offset": "int?"},
        "events": {},
        "result": {"entries": "list[map]", "more": "bool"},
    },
    "file.mkdir": {"args": {"path": "str", "user": "str", "parents": "bool", "mode": "int?"}, "events": {}, "result": _ENTRY},
    "file.move": {"args": {"path": "str", "to": "str", "user": "str", "overwrite": "bool"}, "events": {}, "result": _ENTRY},
    "file.remove": {"args": {"path": "str", "user": "str", "recursive": "bool"}, "events": {}, "result": {"removed": "int"}},
    # A connection to the sandbox's own loopback: bytes on channel 0 both ways once it is connected. The host's END is its end of file,
    # the event its program's; the result comes when both have ended, or the program has and takes nothing any more.
    "port.connect": {"args": {"port": "int"}, "events": {"connected": {"address": "str"}, "end": {}}, "result": {}},
}

#: What the host holds replies and events to; beyond it a guest breaks a law. Texts in characters, lists in items.
LIMITS = {
    "name": 255,
    "path": 4095,
    "text": 65536,  # an error's name or value, a line of a traceback, a RESET's message
    "argv": 64,  # arguments that a record of process.list shows
    "traceback": 1000,
    "mime_types": 64,  # representations of one display
    "kernels": 1024,  # of one kernel.list
    "processes": 1024,  # of one process.list
    "entries": 1000,  # of one file.list, whatever was asked for
    "pid": 4194304,  # PID_MAX_LIMIT of 64-bit Linux, proc_sys_kernel(5)
    "mode": 0o7777,  # permission bits only
    "id": 0xFFFFFFFF,  # of a user or group
    "exit_code": 255,
    "signal": 64,
    "screen": 65535,  # rows or columns of a terminal, TIOCSWINSZ(2const)
    "count": 0x7FFFFFFFFFFFFFFF,  # bytes, nanoseconds, offsets; none is negative but modified_ns
}

#: Processes and threads beyond the limit of a sandbox that are let live: at least so many, or one to so many that are allowed.
PIDS_SLACK_LEAST, PIDS_SLACK_SHARE = 8, 8

#: What a guest may give as the code of a RESET. Any other counts as ``internal``: a guest does not say who is authenticated.
RESET_CODES = (
    "invalid_request",
    "not_found",
    "process_not_found",
    "path_not_found",
    "path_exists",
    "path_invalid",
    "port_not_found",
    "permission_denied",
    "conflict",
    "too_large",
    "limit_exceeded",
    "disk_full",
    "timeout",
    "unsupported",
    "busy",
    "internal",
)
#: What tunnels lead to.
LOOPBACK = ("127.0.0.1", "::1")
#: TCP has no higher number (RFC 9293 3.1).
MOST_PORT = 65535
#: oom: the guest killed it for memory.
PROCESS_REASONS = ("exited", "signalled", "timeout", "pids", "oom")
#: running: not done. timeout: interrupted. killed: its kernel had to be. oom: its kernel was, for memory. aborted: it never ran.
CELL_STATUSES = ("running", "ok", "error", "timeout", "killed", "died", "oom", "aborted")
KERNEL_STATES = ("starting", "idle", "busy", "stopped")
LANGUAGES = ("python", "bash", "javascript")
ENTRY_KINDS = ("file", "directory", "symlink", "other")


def most_pids(limit: int) -> int:
    """How many processes and threads the guest lets live under a limit; beyond it ends the largest family. Pure."""
    return limit + max(PIDS_SLACK_LEAST, limit // PIDS_SLACK_SHARE)


def mismatch(fields: Mapping[str, str], given: Any) -> str:
    """Why a map does not fit its fields, or "" where it does. Unknown fields do not fit; absent ones are None.

    Args:
        fields: name -> kind.
        given: What came over the wire.
    """
    if type(given) is not dict:
        return "not a map"
    for name in given:
        if name not in fields:
            return f"unknown field {name[:50]!r}"
    for name, kind in fields.items():
        value = given.get(name)
        if value is None and kind[-1] == "?":
            continue
        if not _FITS[kind.rstrip("?")](value):
            return f"{name} is not {kind}"
    return ""


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _is_maps(value: Any) -> bool:
    return type(value) is list and all(type(item) is dict for item in value)


def _is_text_map(value: Any) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


_FITS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: type(value) is str,
    "bytes": lambda value: type(value) is bytes,
    "int": lambda value: type(value) is int,
    "float": lambda value: type(value) in {float, int},
    "bool": lambda value: type(value) is bool,
    "map": lambda value: type(value) is dict,
    "map[str]": _is_text_map,
    "list[str]": _is_texts,
    "list[map]": _is_maps,
    "any": lambda _: True,
}

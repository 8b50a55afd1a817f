"""The calls of one generation of the protocol: their arguments, events and results.

The tables below are the contract. ``schemas/1.json`` is their frozen copy; a test fails if the two differ, so that the
protocol is not changed by accident.

A call: the host opens a stream with ``{"call": name, "id": 16 bytes, "args": {...}}``. The guest sends DATA and messages
``{"event": name, ...}``, then one ``{"result": {...}}`` and END; or RESET with ``code`` (an ``ErrorCode`` of the model), ``message`` and
``hint``. DATA of the host on channel 0 is standard input or the content of a file; END ends it. A stream that the guest opens begins
with ``{"service": name, "args": {...}}``.

Repeated calls: the guest remembers the ids of calls, and does not execute a call twice. If the first call has ended,
the repeated call returns the same result. If it is in progress, the repeated call is attached to it (``process.start``, ``kernel.execute``).
The results of the last 4,096 other calls are kept.

Types of fields: str bytes int float bool any, list[str], list[map], map[str] (text to text), map (text to anything). A ``?`` after the type
allows None, which is also the value of an absent field.
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
"""Name of the host's service for package indexes. Each stream carries the bytes of one connection on channel 0, in both directions."""
PACKAGES_PORT = 4479
"""Port on the sandbox's own 127.0.0.1 on which the guest listens for package managers. The images configure it."""

OUTPUT_BUFFER_BYTES = 1024 * 1024
"""Bytes of each output channel that the guest keeps for readers that attach later."""

OUTPUT_PARAMS = {"stdout_from": "int?", "stderr_from": "int?"}
"""Arguments of the attach calls: for each output channel the offset of the first byte to send. None begins with the oldest byte that is kept."""

_PROCESS = {
    "process": "str",
    "pid": "int",
    "argv": "list[str]",
    "running": "bool",
    "reason": "str?",
    "exit_code": "int?",
    "signal": "int?",
    "duration_s": "float",  # run time in seconds; for a running process, until now
    "pty": "bool",
    "stdin": "bool",  # true if standard input is open
    "stdin_bytes": "int",  # bytes received so far, including bytes that the process has not read
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
    # cpu_s, peak_bytes: CPU time and peak memory of the process and of the children that it waited for (getrusage(2)); None if unknown.
    "cpu_s": "float?",
    "peak_bytes": "int?",
}
_KERNEL = {
    "kernel": "str",
    "language": "str",
    "cwd": "str",
    "state": "str",
    "execution_count": "int",
    "pid": "int?",  # None if no process runs
}
_CELL_EVENTS = {
    "started": {"count": "int"},
    # lost: number of bytes of a channel (1 or 2) that are no longer kept.
    "lost": {"channel": "int", "bytes": "int"},
    # data: MIME type to text or bytes. main: true for the value of the last expression. update: true to replace the display with this display_id.
    "display": {"data": "map", "main": "bool", "metadata": "map?", "display_id": "str?", "update": "bool?"},
    # wait: true to remove the earlier displays only when the next display arrives.
    "clear": {"wait": "bool"},
    "error": {"name": "str", "value": "str", "traceback": "list[str]"},
}
# status: one of CELL_STATUSES.
_CELL_RESULT = {"status": "str", "execution_count": "int", "duration_s": "float"}

#: Name of a record -> fields of the maps inside the lists of results.
RECORDS = {"process": _PROCESS, "entry": _ENTRY, "kernel": _KERNEL}

#: Arguments ("args"), events and result of each call.
CALLS: dict[str, dict[str, Any]] = {
    "guest.wake": {
        # The host makes this call first after a boot, a restore, a fork or a resume. Until then the guest is asleep and serves no other call.
        "args": {
            "identity": "str",
            "hostname": "str",
            "env": "map[str]",
            "entropy": "bytes",
            "clock_unix_ns": "int",
            "pids": "int",
            # Memory limit of the sandbox, if there is one. Near the limit, the guest kills the largest program, so that the sandbox is not killed.
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
        # tasks: processes and threads without PID 1; the limit ``pids`` applies to this number. cpu_s: CPU time of all processes, also of ended ones.
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
    # Fails with conflict if more processes run than the new limit allows. memory_bytes: None keeps the limit.
    "guest.limit": {"args": {"pids": "int", "memory_bytes": "int?"}, "events": {}, "result": {}},
    # armed: true before a checkpoint after which this guest continues, false after the checkpoint. An armed guest is asleep after the next HELLO,
    # because it may be a copy that was restored from the checkpoint.
    "guest.checkpoint": {"args": {"armed": "bool"}, "events": {}, "result": {}},
    # Starts the fork server for kernels and the first kernel. The result follows when they are ready, so that a snapshot contains them.
    # lean: end the fork server and keep only the first kernel, which halves the memory in use. The guest starts the fork server again when another
    # kernel is needed.
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
            # rows, cols: if both are set, the process runs on a terminal of this size. All output is on channel 1, and the input is open.
            "rows": "int?",
            "cols": "int?",
            # True for a process of the service itself, which process.list leaves out.
            "hidden": "bool?",
        },
        # lost: number of bytes of a channel (1 or 2) that are no longer kept.
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        # reason: one of PROCESS_REASONS. Without attach the result comes at once, with reason None.
        "result": _ENDED,
    },
    "process.attach": {
        "args": {"process": "str", **OUTPUT_PARAMS},
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        "result": _ENDED,
    },
    # Sends no output. The result is sent as soon as the process has ended, even if no client has read the output.
    "process.wait": {
        "args": {"process": "str"},
        "events": {},
        "result": _ENDED,
    },
    "process.signal": {"args": {"process": "str", "signal": "int"}, "events": {}, "result": {"running": "bool"}},
    # Only for processes on a terminal.
    "process.resize": {"args": {"process": "str", "rows": "int", "cols": "int"}, "events": {}, "result": {"running": "bool"}},
    "process.get": {"args": {"process": "str"}, "events": {}, "result": _PROCESS},
    "process.list": {"args": {}, "events": {}, "result": {"processes": "list[map]"}},
    "process.forget": {"args": {"process": "str"}, "events": {}, "result": {}},
    # Creates a context: a kernel of one language that keeps its state between cells. The host chooses the id. If a context with this id exists,
    # the result describes it.
    "kernel.create": {"args": {"kernel": "str", "language": "str", "cwd": "str?", "env": "map[str]"}, "events": {}, "result": _KERNEL},
    "kernel.list": {"args": {}, "events": {}, "result": {"kernels": "list[map]"}},
    "kernel.remove": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # Cells of one kernel run one after the other. The timeout begins when the cell starts.
    "kernel.execute": {
        "args": {
            "kernel": "str",
            # If no context has the id, a context of this language is created. None: the context must exist or be a default context.
            "language": "str?",
            "code": "str",
            "env": "map[str]",
            "timeout_s": "float?",
            "silent": "bool?",
            "store_history": "bool?",
            # True to abort the waiting cells of the kernel if this cell fails.
            "stop_on_error": "bool?",
        },
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    "kernel.attach": {
        # wait: false to send only the output and events so far. The status is "running" if the cell has not ended.
        "args": {"execution": "str", "events_from": "int", **OUTPUT_PARAMS, "wait": "bool?"},
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    # execution: the only cell to interrupt, of any kernel. A cell that waits is aborted. running: true if there was a cell to interrupt.
    "kernel.interrupt": {"args": {"kernel": "str", "execution": "str?"}, "events": {}, "result": {"running": "bool"}},
    "kernel.restart": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # The contents are sent on channel 0. length None: to the end of the file.
    "file.read": {
        "args": {"path": "str", "user": "str", "offset": "int", "length": "int?"},
        "events": {"stat": _ENTRY},
        "result": {"bytes": "int"},
    },
    # The guest writes a temporary file and renames it at the END, so that an incomplete transfer leaves the old file.
    "file.write": {
        "args": {"path": "str", "user": "str", "mode": "int?", "parents": "bool", "append": "bool"},
        "events": {},
        "result": _ENTRY,
    },
    "file.stat": {"args": {"path": "str", "user": "str", "follow": "bool"}, "events": {}, "result": _ENTRY},
    # Sorted by name. offset: number of names to skip, for reading a long folder in pages. Entries removed meanwhile are left out.
    "file.list": {
        "args": {"path": "str", "user": "str", "limit": "int", "offset": "int?"},
        "events": {},
        "result": {"entries": "list[map]", "more": "bool"},
    },
    "file.mkdir": {"args": {"path": "str", "user": "str", "parents": "bool", "mode": "int?"}, "events": {}, "result": _ENTRY},
    "file.move": {"args": {"path": "str", "to": "str", "user": "str", "overwrite": "bool"}, "events": {}, "result": _ENTRY},
    "file.remove": {"args": {"path": "str", "user": "str", "recursive": "bool"}, "events": {}, "result": {"removed": "int"}},
    # A connection to a port of the sandbox's own loopback interface, with bytes on channel 0 in both directions. If the host sends END, the program
    # reads end of file. The event "end" reports that the program sends nothing more. The result follows after the host's END and
    # the event "end", or when the program sends nothing more and no longer reads.
    "port.connect": {"args": {"port": "int"}, "events": {"connected": {"address": "str"}, "end": {}}, "result": {}},
}

#: Limits of results and events; a guest that exceeds one violates the protocol. Texts in characters, lists in items.
LIMITS = {
    "name": 255,
    "path": 4095,
    "text": 65536,  # an error's name or value, a line of a traceback, a RESET's message
    "argv": 64,  # arguments that a record of process.list shows
    "traceback": 1000,
    "mime_types": 64,  # representations of one display
    "kernels": 1024,  # of one kernel.list
    "processes": 1024,  # of one process.list
    "entries": 1000,  # of one file.list, even if its limit is higher
    "pid": 4194304,  # PID_MAX_LIMIT of 64-bit Linux, proc_sys_kernel(5)
    "mode": 0o7777,  # permission bits only
    "id": 0xFFFFFFFF,  # of a user or group
    "exit_code": 255,
    "signal": 64,
    "screen": 65535,  # rows or columns of a terminal, TIOCSWINSZ(2const)
    "count": 0x7FFFFFFFFFFFFFFF,  # bytes, nanoseconds, offsets; none is negative but modified_ns
}

#: The guest kills processes when the limit is exceeded by more than 8 processes and threads, or by more than an eighth of the limit if that is more.
PIDS_SLACK_LEAST, PIDS_SLACK_SHARE = 8, 8

#: Codes that a guest may send in a RESET. The host replaces any other code by ``internal``. A guest must not cause errors about authentication, for
#: example.
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
#: Addresses inside a sandbox that tunnels connect to.
LOOPBACK = ("127.0.0.1", "::1")
#: Highest TCP port (RFC 9293 3.1).
MOST_PORT = 65535
#: Reasons why a process ended. oom: the guest killed the process for lack of memory.
PROCESS_REASONS = ("exited", "signalled", "timeout", "pids", "oom")
#: Statuses of a cell. running: not ended. timeout: interrupted after its timeout. killed: its kernel was killed. died: its kernel ended by itself.
#: oom: its kernel was killed for lack of memory. aborted: the cell never ran.
CELL_STATUSES = ("running", "ok", "error", "timeout", "killed", "died", "oom", "aborted")
KERNEL_STATES = ("starting", "idle", "busy", "stopped")
LANGUAGES = ("python", "bash", "javascript")
ENTRY_KINDS = ("file", "directory", "symlink", "other")


def most_pids(limit: int) -> int:
    """Return the number of processes and threads above which the guest kills the largest session. Pure.

    Args:
        limit: Limit ``pids`` of the sandbox.
    """
    return limit + max(PIDS_SLACK_LEAST, limit // PIDS_SLACK_SHARE)


def validate_fields(fields: Mapping[str, str], given: Any) -> str:
    """Return the reason why a received value does not match the fields of a schema, or "" if it matches.

    Unknown fields do not match. An absent field counts as None.

    Args:
        fields: Types of the fields by name; see the top of this file.
        given: Received value.
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

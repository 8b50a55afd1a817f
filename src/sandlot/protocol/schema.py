"""The calls of one generation of the protocol: their arguments, events and results.

The tables below are the contract. ``schemas/1.json`` is their frozen copy; a test fails if the two differ, so that the
protocol is not changed by accident.

To make a call, the host opens a stream with the message ``{"call": name, "id": 16 bytes, "args": {...}}``. The guest sends DATA frames and
messages ``{"event": name, ...}``, and at the end the message ``{"result": {...}}`` and END. If the call fails, the guest sends RESET instead, with
``code`` (an ``ErrorCode`` of the model), ``message`` and ``hint``. DATA frames of the host on channel 0 carry standard input or the content of a
file, up to the host's END. A stream that the guest opens begins with the message ``{"service": name, "args": {...}}``.

The host may repeat a call with the same id. Calls that only read, ``process.input``, ``process.resize`` and ``port.connect`` are then executed
again. A repeated ``process.start`` or ``kernel.execute`` starts nothing, and applies to the process or cell that the first call started. The guest
executes no other call again: it sends the same result or error again, or, if the first call is still in progress, continues this call on the new
stream. The guest keeps the results and errors of the last 4,096 calls.

The types of fields are str, bytes, int, float, bool, any, list[str], list[map], map[str] (a map with text values) and map (a map with any values).
The keys of maps are text. A ``?`` after the type allows None. An absent field counts as None.
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
"""Name of the service through which the host serves package indexes.

Each stream to this service carries the bytes of one TCP connection on channel 0, in both directions.
"""
PACKAGES_PORT = 4479
"""Port on 127.0.0.1 inside the sandbox on which the guest accepts connections of package managers. The images configure this port."""

CONNECT = "connect"
"""Name of the service through which the host connects a sandbox to a destination on the network.

The arguments are ``host`` (str: a name in lower case, or an IPv4 address) and ``port`` (int). The stream carries the bytes of one TCP connection on
channel 0, in both directions. The host resets the stream if the destination is refused or the connection is interrupted.
"""
DNS = "dns"
"""Name of the service through which the host resolves records other than addresses.

The arguments are ``name`` (str, in lower case) and ``type`` (str: ``MX``, ``SRV``, ``TXT``, ``CNAME`` or ``CAA``). The host sends the response, a DNS
message without EDNS (RFC 1035, 4.1) to a question with this name and type, on channel 0, and then END. The host resets the stream if the name is
refused.
"""
NETWORK_ARGUMENT = "--network"
"""Argument of the guest's command line in a sandbox with a network card."""
NETWORK_ADDRESS = "192.0.2.2"
"""Address of the sandbox's network card. The network 192.0.2.0/24 is never routed (RFC 5737)."""
NAMESERVER = "192.0.2.1"
"""Address of the name server in ``/etc/resolv.conf``. No host has the address: DNS queries to all addresses are redirected to the guest."""
CAPTURE_PORT = 4478
"""Port on 127.0.0.1 inside the sandbox to which all TCP connections to other addresses are redirected."""
DNS_PORT = 4453
"""Port on 127.0.0.1 inside the sandbox to which all DNS queries over UDP are redirected."""
GUEST_PORTS = (PACKAGES_PORT, CAPTURE_PORT, DNS_PORT)
"""Ports on 127.0.0.1 inside the sandbox that the guest itself uses."""

OUTPUT_BUFFER_BYTES = 1024 * 1024
"""Number of output bytes that the guest keeps of each channel, so that a client that attaches later can read them. The newest bytes are kept."""

OUTPUT_PARAMS = {"stdout_from": "int?", "stderr_from": "int?"}
"""Arguments of ``process.attach`` and ``kernel.attach``: the offset of the first byte of standard output and of standard error to send.

None means the offset of the oldest byte that is kept.
"""

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
    # Extended attributes (xattr(7)) of a file or folder: name -> value. Only in results of calls that request attributes; values that are not UTF-8
    # are left out.
    "attributes": "map[str]?",
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
# received: input bytes of this call that the guest has accepted. stdin_bytes: as in the record of the process, with the bytes of all calls.
_INPUT = {"received": "int", "stdin_bytes": "int"}
_KERNEL = {
    "kernel": "str",
    "language": "str",
    "cwd": "str",
    "state": "str",
    "execution_count": "int",
    "pid": "int?",  # None if the context has no kernel process
}
_CELL_EVENTS = {
    "started": {"count": "int"},
    # lost: ``bytes`` is the number of bytes of a channel (1 or 2) that the guest dropped before they could be sent.
    "lost": {"channel": "int", "bytes": "int"},
    # data: each MIME type with the content as text or bytes. main: true for the value of the last expression.
    # update: true to replace the display with this display_id.
    "display": {"data": "map", "main": "bool", "metadata": "map?", "display_id": "str?", "update": "bool?"},
    # wait: true if the earlier displays must stay until the next display arrives.
    "clear": {"wait": "bool"},
    "error": {"name": "str", "value": "str", "traceback": "list[str]"},
}
# status: one of CELL_STATUSES.
_CELL_RESULT = {"status": "str", "execution_count": "int", "duration_s": "float"}

#: Name of a record -> its fields. Lists in results, such as ``processes``, contain records.
RECORDS = {"process": _PROCESS, "entry": _ENTRY, "kernel": _KERNEL}

#: Arguments ("args"), events and result of each call.
CALLS: dict[str, dict[str, Any]] = {
    "guest.wake": {
        # The first call after a boot, a restore, a fork or a resume. Before this call, the guest is asleep and serves no other call.
        "args": {
            "identity": "str",
            "hostname": "str",
            "env": "map[str]",
            "entropy": "bytes",
            "clock_unix_ns": "int",
            "pids": "int",
            # Memory limit of the sandbox in bytes; None if unknown. In gVisor, if programs come close to the limit, the guest kills the largest
            # process, because otherwise the host's kernel would kill the whole sandbox.
            "memory_bytes": "int?",
            # Number of processors that programs see: the guest sets its affinity to the first so many, and every program inherits the affinity. None
            # leaves the affinity unchanged. In gVisor, the affinity does not decide where a program runs.
            "processors": "int?",
            "deadline_s": "float?",
            "workspace": "str",
            # User that code runs as: the default user of the template.
            "user": "str",
            # As in ``guest.network``. None: no domain.
            "local_domains": "list[str]?",
        },
        "events": {},
        "result": {"python": "str?"},
    },
    "guest.info": {
        "args": {},
        "events": {},
        # tasks: number of processes and threads, not counting PID 1. The limit ``pids`` applies to this number.
        # cpu_s: CPU time in seconds of all processes, including processes that have ended.
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
    # Fails with ``conflict`` if more processes and threads run than the new limit allows. memory_bytes: None leaves the memory limit unchanged.
    # processors: as in ``guest.wake``.
    "guest.limit": {"args": {"pids": "int", "memory_bytes": "int?", "processors": "int?"}, "events": {}, "result": {}},
    # The host makes this call before and after a checkpoint of a running sandbox: with ``armed`` true before the checkpoint, and with ``armed`` false
    # after it. If the HELLO of a new connection arrives between the two calls, the guest may be a copy that was restored from the checkpoint.
    # The guest then falls asleep until ``guest.wake``.
    "guest.checkpoint": {"args": {"armed": "bool"}, "events": {}, "result": {}},
    # Starts the fork server and forks a spare kernel. The guest sends the result when the kernel is ready, so that a snapshot taken afterwards
    # contains the kernel. lean: true to end the fork server as soon as the kernel is ready, which saves memory. When another kernel is
    # needed, the guest starts the fork server again.
    "guest.warm": {"args": {"lean": "bool?"}, "events": {}, "result": {}},
    # local_domains: domains that get addresses, with all names below them, although they end in ``.local`` or ``.internal``. In lower case.
    "guest.network": {"args": {"local_domains": "list[str]"}, "events": {}, "result": {}},
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
            # rows, cols: if both are set, the process runs on a terminal of this size. All output is sent on channel 1, and standard input is open.
            "rows": "int?",
            "cols": "int?",
            # True to leave the process out of process.list, because the service started the process for its own purposes.
            "hidden": "bool?",
            # True to start the process from a small one, so that its peak memory is not at least that of the guest. Ignored on a terminal.
            "measured": "bool?",
        },
        # lost: ``bytes`` is the number of bytes of a channel (1 or 2) that the guest dropped before they could be sent.
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        # reason: one of PROCESS_REASONS; None while the process runs. If ``attach`` is false, the guest sends the result at once.
        "result": _ENDED,
    },
    "process.attach": {
        "args": {"process": "str", **OUTPUT_PARAMS},
        "events": {"started": {"pid": "int"}, "lost": {"channel": "int", "bytes": "int"}},
        "result": _ENDED,
    },
    # The guest sends no output, and sends the result as soon as the process has ended, even if no client has read the output.
    "process.wait": {
        "args": {"process": "str"},
        "events": {},
        "result": _ENDED,
    },
    # Writes to the standard input of a process, with the bytes that the host sends on channel 0, and closes the input at the host's END. The guest
    # sends no output. It sends the event "input" at once, and again when it has received further bytes of this call; one event may cover many
    # frames. The guest sends the result when the input is closed, even if the process has not read all bytes, and ignores later bytes.
    "process.input": {"args": {"process": "str"}, "events": {"input": _INPUT}, "result": _INPUT},
    "process.signal": {"args": {"process": "str", "signal": "int"}, "events": {}, "result": {"running": "bool"}},
    # Changes the size of a process's terminal. Fails if the process does not run on a terminal.
    "process.resize": {"args": {"process": "str", "rows": "int", "cols": "int"}, "events": {}, "result": {"running": "bool"}},
    "process.get": {"args": {"process": "str"}, "events": {}, "result": _PROCESS},
    "process.list": {"args": {}, "events": {}, "result": {"processes": "list[map]"}},
    "process.forget": {"args": {"process": "str"}, "events": {}, "result": {}},
    # Creates a context, in which cells of one language run and share state. The host chooses the id of the context. If a context with this id
    # exists, the guest creates no context, and the result describes the existing context.
    "kernel.create": {"args": {"kernel": "str", "language": "str", "cwd": "str?", "env": "map[str]"}, "events": {}, "result": _KERNEL},
    "kernel.list": {"args": {}, "events": {}, "result": {"kernels": "list[map]"}},
    "kernel.remove": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # Cells of one kernel run one after the other. The timeout begins when the cell starts.
    "kernel.execute": {
        "args": {
            "kernel": "str",
            # Language that the context must have; None accepts any language.
            "language": "str?",
            "code": "str",
            "env": "map[str]",
            "timeout_s": "float?",
            "silent": "bool?",
            "store_history": "bool?",
            # True to abort all cells that wait for the kernel if this cell fails.
            "stop_on_error": "bool?",
        },
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    "kernel.attach": {
        # wait: false to send only the output and events that exist now, and then the result. The status is "running" if the cell has not ended.
        "args": {"execution": "str", "events_from": "int", **OUTPUT_PARAMS, "wait": "bool?"},
        "events": _CELL_EVENTS,
        "result": _CELL_RESULT,
    },
    # execution: id of the cell to interrupt; the argument ``kernel`` is then ignored. If this cell has not started, it is aborted. None interrupts
    # the running cell of ``kernel``. running: true if a cell was interrupted or aborted.
    "kernel.interrupt": {"args": {"kernel": "str", "execution": "str?"}, "events": {}, "result": {"running": "bool"}},
    "kernel.restart": {"args": {"kernel": "str"}, "events": {}, "result": {}},
    # The guest sends the content of the file on channel 0. length: number of bytes to send; None sends everything up to the end of the file.
    "file.read": {
        "args": {"path": "str", "user": "str", "offset": "int", "length": "int?"},
        "events": {"stat": _ENTRY},
        "result": {"bytes": "int"},
    },
    # The guest writes the content to a temporary file, and renames this file when the host's END arrives. An incomplete transfer therefore leaves
    # the old file unchanged. If ``append`` is true, the guest writes to the existing file directly. in_place: true to truncate an existing file and
    # write to it directly; ``mode`` then applies only to a new file. ``append`` and ``in_place`` are not both true.
    # A file with several hard links is written directly in any case, and gets ``mode``.
    "file.write": {
        "args": {
            "path": "str",
            "user": "str",
            "mode": "int?",
            "parents": "bool",
            "append": "bool",
            "in_place": "bool",
            # Owner of the file and of the created folders; None: the user. The user must be root.
            "owner": "str?",
            # Extended attributes to set, by name. They replace all attributes whose names begin with "user.".
            "attributes": "map[str]?",
        },
        "events": {},
        "result": _ENTRY,
    },
    # attributes: prefix of the names of extended attributes to return; None returns no attributes.
    "file.stat": {"args": {"path": "str", "user": "str", "follow": "bool", "attributes": "str?"}, "events": {}, "result": _ENTRY},
    # Resolves all links of a path, as realpath(3) does. The result describes the file, and its path contains no links, ``.`` or ``..``.
    "file.resolve": {"args": {"path": "str", "user": "str"}, "events": {}, "result": _ENTRY},
    "file.home": {"args": {"user": "str"}, "events": {}, "result": {"path": "str"}},
    # The entries are sorted by name. offset: number of names to skip, so that the host can list a folder with many entries in pages. Entries that
    # are removed during the call are left out.
    "file.list": {
        "args": {"path": "str", "user": "str", "limit": "int", "offset": "int?", "attributes": "str?"},
        "events": {},
        "result": {"entries": "list[map]", "more": "bool"},
    },
    "file.mkdir": {
        "args": {"path": "str", "user": "str", "parents": "bool", "mode": "int?", "owner": "str?"},
        "events": {},
        "result": _ENTRY,
    },
    "file.move": {"args": {"path": "str", "to": "str", "user": "str", "overwrite": "bool"}, "events": {}, "result": _ENTRY},
    "file.remove": {"args": {"path": "str", "user": "str", "recursive": "bool"}, "events": {}, "result": {"removed": "int"}},
    # Connects to a port of the sandbox's loopback interface, on which a program listens. Bytes are sent on channel 0 in both directions.
    # When the host sends END, the program reads end of file. The event "end" means that the program sends nothing more. The guest sends the result
    # after the event "end", when the host has sent END too or the program no longer reads.
    "port.connect": {"args": {"port": "int"}, "events": {"connected": {"address": "str"}, "end": {}}, "result": {}},
}

#: Largest values that a guest may send in results and events: for texts the number of characters, for lists the number of items. A guest that
#: exceeds a limit violates the protocol.
LIMITS = {
    "name": 255,
    "path": 4095,
    "text": 65536,  # an error's name or value, a line of a traceback, a RESET's message
    "argv": 64,  # arguments of a command in the record of a process
    "traceback": 1000,
    "mime_types": 64,  # MIME types of one display
    "kernels": 1024,  # in the result of one kernel.list
    "processes": 1024,  # in the result of one process.list
    "attributes": 1000,  # extended attributes of one file
    "entries": 1000,  # in the result of one file.list, even if the argument ``limit`` is higher
    "pid": 4194304,  # PID_MAX_LIMIT of 64-bit Linux, proc_sys_kernel(5)
    "mode": 0o7777,  # permission bits only
    "id": 0xFFFFFFFF,  # id of a user or group
    "exit_code": 255,
    "signal": 64,
    "screen": 65535,  # rows or columns of a terminal, TIOCSWINSZ(2const)
    "count": 0x7FFFFFFFFFFFFFFF,  # bytes, nanoseconds and offsets; only modified_ns may be negative
}

#: The guest kills processes when the limit is exceeded by more than 8 processes and threads, or by more than an eighth of the limit if that is more.
PIDS_SLACK_LEAST, PIDS_SLACK_SHARE = 8, 8

#: Codes that a guest may send in a RESET. The host replaces any other code by ``internal``, because a guest must not be able to cause other errors,
#: such as errors about authentication.
RESET_CODES = (
    "invalid_request",
    "not_found",
    "process_not_found",
    "path_not_found",
    "path_exists",
    "path_invalid",
    "path_not_directory",
    "path_is_directory",
    "path_not_regular",
    "path_link_loop",
    "path_not_empty",
    "program_not_found",
    "working_directory_not_found",
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
#: Addresses inside a sandbox to which a tunnel tries to connect, in this order.
LOOPBACK = ("127.0.0.1", "::1")
#: Highest TCP port (RFC 9293 3.1).
MOST_PORT = 65535
#: Reasons why a process ended. pids: the guest killed the process because the sandbox exceeded its limit of processes and threads.
#: oom: the guest killed the process because the sandbox had too little free memory.
PROCESS_REASONS = ("exited", "signalled", "timeout", "pids", "oom")
#: Statuses of a cell. running: the cell has not ended. timeout: the cell was interrupted after its timeout. killed: the cell's kernel was killed.
#: died: the cell's kernel ended by itself. oom: the cell's kernel was killed for lack of memory. aborted: the cell never ran.
CELL_STATUSES = ("running", "ok", "error", "timeout", "killed", "died", "oom", "aborted")
KERNEL_STATES = ("starting", "idle", "busy", "stopped")
LANGUAGES = ("python", "bash", "javascript", "typescript", "r")
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

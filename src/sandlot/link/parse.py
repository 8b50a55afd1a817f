"""Converts messages of a guest into values, and checks every field.

- Root inside a sandbox can forge any byte of the link. A value is created only from a map that matches its schema and whose numbers, texts and
  lists are within ``schema.LIMITS``. Anything else raises :class:`ProtocolError`, which ends the sandbox.
- Texts from the guest are shown to users, but no decision depends on them. An error code that a guest may not send is replaced by ``internal``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sandlot.link.types import CellResult, KernelInfo, ProcessResult
from sandlot.model.errors import SandlotError, from_code
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, ProcessInfo
from sandlot.model.files import Entry, Listing
from sandlot.model.ids import PROCESS_ID, ProcessId
from sandlot.model.sandboxes import GuestStatus
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError

_DURATION_MAX_S = 1e10
_HINT_CHARS = 1024
_MIME_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+;= -]{1,127}")


def fields_of(what: str, fields: Mapping[str, str], given: object) -> Mapping[str, Any]:
    """Check that a received value is a map with the given fields, and return the map.

    Args:
        what: Name of the value in error messages.
        fields: Types of the fields by name, as in ``schema.CALLS``.
        given: Received value.

    Raises:
        ProtocolError: The value is not a map, or its fields do not match.
    """
    why = schema.validate_fields(fields, given)
    if why or not isinstance(given, dict):
        raise ProtocolError(f"the {what} is invalid: {why}")
    return given


def number(what: str, value: int, high: int, low: int = 0) -> int:
    """Check that an integer is from ``low`` to ``high``, both included, and return the integer. ``what`` names the value in error messages.

    Raises:
        ProtocolError: The integer is lower than ``low`` or higher than ``high``.
    """
    if not low <= value <= high:
        raise ProtocolError(f"{what} is {value}; it must be from {low} to {high}")
    return value


def count(what: str, value: int) -> int:
    """Check a counter or a size in bytes, and return the number. ``what`` names the value in error messages.

    Raises:
        ProtocolError: The number is negative, or above ``schema.LIMITS["count"]``.
    """
    return number(what, value, schema.LIMITS["count"])


def _maybe(what: str, value: int | None, high: int) -> int | None:
    return None if value is None else number(what, value, high)


def text(what: str, value: str, limit: str) -> str:
    """Check the length of a string, and return the string.

    Args:
        what: Name of the value in error messages.
        value: Received string.
        limit: Key of ``schema.LIMITS`` for the largest number of characters.

    Raises:
        ProtocolError: The string has more characters than allowed.
    """
    if len(value) > schema.LIMITS[limit]:
        raise ProtocolError(f"{what} has {len(value)} characters; at most {schema.LIMITS[limit]} are allowed")
    return value


def texts(what: str, values: Sequence[str], limit: str) -> tuple[str, ...]:
    """Check the number of strings in a list, and return the list as a tuple.

    Args:
        what: Name of the list in error messages.
        values: Received list.
        limit: Key of ``schema.LIMITS`` for the largest number of items.

    Raises:
        ProtocolError: The list has more items than allowed.
    """
    if len(values) > schema.LIMITS[limit]:
        raise ProtocolError(f"{what} has {len(values)} items; at most {schema.LIMITS[limit]} are allowed")
    return tuple(values)


def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    """Check that a string is one of the allowed strings, and return the string. ``what`` names the value in error messages.

    Raises:
        ProtocolError: The string is not allowed.
    """
    if value not in allowed:
        raise ProtocolError(f"{what} is {value[:50]!r}; it must be one of: {', '.join(allowed)}")
    return value


def seconds(what: str, value: float) -> float:
    """Check a duration in seconds, and return the duration. ``what`` names the value in error messages.

    Raises:
        ProtocolError: The duration is negative, not a number, or longer than 317 years.
    """
    if not 0 <= value <= _DURATION_MAX_S:  # false for a NaN too
        raise ProtocolError(f"{what} is {value}, which is not a valid number of seconds")
    return float(value)


def _process_id(value: str) -> ProcessId:
    if not PROCESS_ID.fullmatch(value):
        raise ProtocolError(f"the process id {value[:50]!r} is not 32 hexadecimal digits")
    return ProcessId(value)


def pid(value: int) -> int:
    """Check a pid inside a sandbox, and return the pid.

    Raises:
        ProtocolError: The pid is lower than 1 or higher than ``schema.LIMITS["pid"]``.
    """
    return number("pid", value, schema.LIMITS["pid"], low=1)


def process_result(expected: ProcessId, given: object) -> ProcessResult:
    """Parse the result of ``process.start`` and ``process.attach``.

    Args:
        expected: Id of the process that the call started or attached to.
        given: Received value.

    Raises:
        ProtocolError: The value is invalid, or is the result of another process.
    """
    fields = fields_of("process result", schema.CALLS["process.start"]["result"], given)
    if fields["process"] != expected:
        raise ProtocolError(f"the result is for process {fields['process'][:50]!r} instead of {expected!r}")
    reason = fields.get("reason")
    result = ProcessResult(
        process=expected,
        pid=pid(fields["pid"]),
        reason=None if reason is None else one_of("reason", reason, schema.PROCESS_REASONS),
        exit_code=_maybe("exit code", fields.get("exit_code"), schema.LIMITS["exit_code"]),
        signal=_maybe("signal", fields.get("signal"), schema.LIMITS["signal"]),
        duration_s=seconds("duration", fields["duration_s"]),
        cpu_s=None if fields.get("cpu_s") is None else seconds("cpu", fields["cpu_s"]),
        peak_bytes=_maybe("peak", fields.get("peak_bytes"), schema.LIMITS["count"]),
    )
    if reason is not None and (result.exit_code is None) == (result.signal is None):
        raise ProtocolError("a process that has ended must have either an exit code or a signal")
    return result


def process_end(expected: ProcessId, given: object) -> ProcessResult:
    """Parse the result of ``process.wait``.

    Args:
        expected: Id of the process that the call waited for.
        given: Received value.

    Raises:
        ProtocolError: The value is invalid, is the result of another process, or belongs to a process that has not ended.
    """
    result = process_result(expected, given)
    if result.reason is None:
        raise ProtocolError(f"the result of process.wait says that process {expected!r} has not ended")
    return result


def process_info(given: object) -> ProcessInfo:
    """Parse one record of ``process.list`` or ``process.get``.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("process", schema.RECORDS["process"], given)
    reason = fields.get("reason")
    return ProcessInfo(
        process=_process_id(fields["process"]),
        pid=pid(fields["pid"]),
        argv=texts("argv", fields["argv"], "argv"),
        running=fields["running"],
        reason=None if reason is None else one_of("reason", reason, schema.PROCESS_REASONS),
        exit_code=_maybe("exit code", fields.get("exit_code"), schema.LIMITS["exit_code"]),
        signal=_maybe("signal", fields.get("signal"), schema.LIMITS["signal"]),
        duration_s=seconds("duration", fields["duration_s"]),
        pty=fields["pty"],
        stdin=fields["stdin"],
        stdin_bytes=count("stdin bytes", fields["stdin_bytes"]),
        stdout_bytes=count("stdout bytes", fields["stdout_bytes"]),
        stderr_bytes=count("stderr bytes", fields["stderr_bytes"]),
    )


def process_known(expected: ProcessId, given: object) -> ProcessInfo:
    """Parse the result of ``process.get``.

    Args:
        expected: Id of the process that the call asked for.
        given: Received value.

    Raises:
        ProtocolError: The value is invalid, or is about another process.
    """
    info = process_info(given)
    if info.process != expected:
        raise ProtocolError(f"the record is for process {info.process!r} instead of {expected!r}")
    return info


def processes(given: object) -> tuple[ProcessInfo, ...]:
    """Parse the result of ``process.list``.

    Raises:
        ProtocolError: The value is invalid, or has too many records.
    """
    records = fields_of("process list", schema.CALLS["process.list"]["result"], given)["processes"]
    number("number of processes", len(records), schema.LIMITS["processes"])
    return tuple(process_info(record) for record in records)


def cell_result(given: object) -> CellResult:
    """Parse the result of ``kernel.execute`` and ``kernel.attach``.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("cell result", schema.CALLS["kernel.execute"]["result"], given)
    return CellResult(
        status=one_of("status", fields["status"], schema.CELL_STATUSES),
        execution_count=count("execution count", fields["execution_count"]),
        duration_s=seconds("duration", fields["duration_s"]),
    )


def display(given: object) -> Display:
    """Parse the event ``display`` of a cell.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("display", schema.CALLS["kernel.execute"]["events"]["display"], given)
    data: dict[str, Any] = fields["data"]
    number("number of representations", len(data), schema.LIMITS["mime_types"])
    for name, value in data.items():
        if not _MIME_TYPE.fullmatch(name) or type(value) not in {str, bytes}:
            raise ProtocolError(f"a display maps {name[:50]!r} to a {type(value).__name__}; it must map MIME types to text or bytes")
    metadata: dict[str, Any] = fields.get("metadata") or {}
    number("number of metadata entries", len(metadata), schema.LIMITS["mime_types"])
    display_id = fields.get("display_id")
    return Display(
        MappingProxyType(data),
        fields["main"],
        MappingProxyType(metadata),
        None if display_id is None else text("display id", display_id, "name"),
        bool(fields.get("update")),
    )


def cell_started(given: object) -> CellStarted:
    """Parse the event ``started`` of a cell.

    Raises:
        ProtocolError: The value is invalid.
    """
    return CellStarted(count("count", fields_of("started", schema.CALLS["kernel.execute"]["events"]["started"], given)["count"]))


def cleared(given: object) -> Cleared:
    """Parse the event ``clear`` of a cell.

    Raises:
        ProtocolError: The value is invalid.
    """
    return Cleared(fields_of("clear", schema.CALLS["kernel.execute"]["events"]["clear"], given)["wait"])


def kernel(given: object) -> KernelInfo:
    """Parse the result of ``kernel.create``, or one record of ``kernel.list``.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("kernel", schema.RECORDS["kernel"], given)
    process = fields.get("pid")
    return KernelInfo(
        kernel=text("kernel", fields["kernel"], "name"),
        language=one_of("language", fields["language"], schema.LANGUAGES),
        cwd=text("cwd", fields["cwd"], "path"),
        state=one_of("state", fields["state"], schema.KERNEL_STATES),
        execution_count=count("execution count", fields["execution_count"]),
        pid=None if process is None else pid(process),
    )


def path(given: object) -> str:
    """Parse the result of ``file.home``.

    Raises:
        ProtocolError: The value is invalid.
    """
    home = text("path", fields_of("home", schema.CALLS["file.home"]["result"], given)["path"], "path")
    if not home.startswith("/"):
        raise ProtocolError(f"the home {home[:50]!r} is not absolute")
    return home


def kernels(given: object) -> tuple[KernelInfo, ...]:
    """Parse the result of ``kernel.list``.

    Raises:
        ProtocolError: The value is invalid, or has too many records.
    """
    records = fields_of("kernel list", schema.CALLS["kernel.list"]["result"], given)["kernels"]
    number("number of kernels", len(records), schema.LIMITS["kernels"])
    return tuple(kernel(record) for record in records)


def cell_error(given: object) -> CellError:
    """Parse the event ``error`` of a cell.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("error", schema.CALLS["kernel.execute"]["events"]["error"], given)
    return CellError(
        name=text("error name", fields["name"], "text"),
        value=text("error value", fields["value"], "text"),
        traceback=tuple(text("traceback", line, "text") for line in texts("traceback", fields["traceback"], "traceback")),
    )


def entry(given: object) -> Entry:
    """Parse the properties of one file, folder or symbolic link.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("entry", schema.RECORDS["entry"], given)
    limits = schema.LIMITS
    target = fields.get("target")
    return Entry(
        name=text("name", fields["name"], "name"),
        path=text("path", fields["path"], "path"),
        kind=one_of("kind", fields["kind"], schema.ENTRY_KINDS),
        size=count("size", fields["size"]),
        mode=number("mode", fields["mode"], limits["mode"]),
        uid=number("uid", fields["uid"], limits["id"]),
        gid=number("gid", fields["gid"], limits["id"]),
        modified_ns=number("time", fields["modified_ns"], limits["count"], low=-limits["count"]),
        target=None if target is None else text("target", target, "path"),
        attributes=_attributes(fields.get("attributes") or {}),
    )


def _attributes(given: Mapping[str, str]) -> Mapping[str, str]:
    number("number of attributes", len(given), schema.LIMITS["attributes"])
    return {text("attribute", name, "name"): text("attribute", value, "text") for name, value in given.items()}


def listing(given: object) -> Listing:
    """Parse the result of ``file.list``.

    Raises:
        ProtocolError: The value is invalid, or has too many entries.
    """
    fields = fields_of("listing", schema.CALLS["file.list"]["result"], given)
    number("number of entries", len(fields["entries"]), schema.LIMITS["entries"])
    return Listing(tuple(entry(record) for record in fields["entries"]), fields["more"])


def guest_info(given: object) -> GuestStatus:
    """Parse the result of ``guest.info``.

    Raises:
        ProtocolError: The value is invalid.
    """
    fields = fields_of("guest info", schema.CALLS["guest.info"]["result"], given)
    return GuestStatus(
        generation=count("generation", fields["generation"]),
        identity=text("identity", fields["identity"], "name"),
        uptime_s=seconds("uptime", fields["uptime_s"]),
        processes=count("processes", fields["processes"]),
        tasks=count("tasks", fields["tasks"]),
        cpu_s=seconds("cpu", fields["cpu_s"]),
        streams=count("streams", fields["streams"]),
    )


def nothing(given: object) -> None:
    """Check that a result has no fields.

    Raises:
        ProtocolError: The result has a field.
    """
    fields_of("result", {}, given)


def running(given: object) -> bool:
    """Parse the result of ``process.signal``, ``process.resize`` or ``kernel.interrupt``. Return True if the process or cell was running.

    Raises:
        ProtocolError: The value is invalid.
    """
    return bool(fields_of("result", schema.CALLS["process.signal"]["result"], given)["running"])


def removed(given: object) -> int:
    """Parse the result of ``file.remove``: the number of removed entries.

    Raises:
        ProtocolError: The value is invalid.
    """
    return count("removed", fields_of("result", schema.CALLS["file.remove"]["result"], given)["removed"])


def python(given: object) -> str | None:
    """Parse the result of ``guest.wake``: the path of the image's Python interpreter; None if the image has no Python.

    Raises:
        ProtocolError: The value is invalid.
    """
    path = fields_of("result", schema.CALLS["guest.wake"]["result"], given).get("python")
    return None if path is None else text("python", path, "path")


def reset_error(reason: Mapping[str, Any]) -> SandlotError:
    """Convert a RESET frame from the guest into an error with the same code, message and hint.

    All other fields of the frame are dropped. Only the service may set them, because some fields of an error become headers of an HTTP response.
    """
    code = reason["code"] if reason["code"] in schema.RESET_CODES else "internal"
    hint = reason.get("hint")
    return from_code(code, reason["message"][: schema.LIMITS["text"]], hint=hint[:_HINT_CHARS] if type(hint) is str else "")

"""The checks that every word of a guest passes before it becomes a value.

Laws:
- Root inside can forge any byte of the link. A value is made only from a map that fits its schema and whose numbers,
  texts and lists are within ``schema.LIMITS``; anything else is a :class:`ProtocolError`, which ends the sandbox.
- Texts are the guest's: they are shown, never trusted. A code that is not a guest's to give becomes ``internal``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandlot.link.types import Entry, GuestInfo, Listing, ProcessInfo, ProcessResult
from sandlot.model.errors import SandlotError, from_code
from sandlot.model.ids import PROCESS_ID, ProcessId
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError

_DURATION_MAX_S = 1e10
_HINT_CHARS = 1024


def fit(what: str, fields: Mapping[str, str], given: object) -> Mapping[str, Any]:
    """A map that fits its fields.

    Raises:
        ProtocolError: It does not.
    """
    why = schema.mismatch(fields, given)
    if why or not isinstance(given, dict):
        raise ProtocolError(f"{what}: {why}")
    return given


def number(what: str, value: int, high: int, low: int = 0) -> int:
    """An integer within bounds, both included.

    Raises:
        ProtocolError: It is not.
    """
    if not low <= value <= high:
        raise ProtocolError(f"{what} is {value}; it must be from {low} to {high}")
    return value


def count(what: str, value: int) -> int:
    """A number that is counted or measured in bytes.

    Raises:
        ProtocolError: It is negative, or beyond ``schema.LIMITS["count"]``.
    """
    return number(what, value, schema.LIMITS["count"])


def _maybe(what: str, value: int | None, high: int) -> int | None:
    return None if value is None else number(what, value, high)


def text(what: str, value: str, limit: str) -> str:
    """A text of bounded length.

    Raises:
        ProtocolError: It is longer than ``schema.LIMITS[limit]``.
    """
    if len(value) > schema.LIMITS[limit]:
        raise ProtocolError(f"{what} has {len(value)} characters; at most {schema.LIMITS[limit]} are allowed")
    return value


def texts(what: str, values: Sequence[str], limit: str) -> tuple[str, ...]:
    """A list of bounded length.

    Raises:
        ProtocolError: It has more than ``schema.LIMITS[limit]`` items.
    """
    if len(values) > schema.LIMITS[limit]:
        raise ProtocolError(f"{what} has {len(values)} items; at most {schema.LIMITS[limit]} are allowed")
    return tuple(values)


def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    """A word of a list.

    Raises:
        ProtocolError: It is none of them.
    """
    if value not in allowed:
        raise ProtocolError(f"{what} is {value[:50]!r}, which is none of {', '.join(allowed)}")
    return value


def seconds(what: str, value: float) -> float:
    """A duration.

    Raises:
        ProtocolError: It is negative, none, or beyond three centuries.
    """
    if not 0 <= value <= _DURATION_MAX_S:  # which a NaN is not either
        raise ProtocolError(f"{what} is {value}")
    return float(value)


def _process_id(value: str) -> ProcessId:
    if not PROCESS_ID.fullmatch(value):
        raise ProtocolError("a process id that is none")
    return ProcessId(value)


def pid(value: int) -> int:
    """A pid inside a sandbox.

    Raises:
        ProtocolError: It is none.
    """
    return number("pid", value, schema.LIMITS["pid"], low=1)


def process_result(expected: ProcessId, given: object) -> ProcessResult:
    """The result of ``process.start`` and ``process.attach``.

    Args:
        expected: The process that was asked for.
        given: What came over the wire.

    Raises:
        ProtocolError: It is no such result, or another process's.
    """
    fields = fit("process result", schema.CALLS["process.start"]["result"], given)
    if fields["process"] != expected:
        raise ProtocolError("the result of another process")
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
        raise ProtocolError("a process that ended has either an exit code or a signal")
    return result


def process_end(expected: ProcessId, given: object) -> ProcessResult:
    """The result of ``process.wait``.

    Args:
        expected: The process that was asked for.
        given: What came over the wire.

    Raises:
        ProtocolError: It is no such result, another process's, or that of one that runs on.
    """
    result = process_result(expected, given)
    if result.reason is None:
        raise ProtocolError("a process that has not ended has a result")
    return result


def process_info(given: object) -> ProcessInfo:
    """One record of ``process.list``.

    Raises:
        ProtocolError: It is none.
    """
    fields = fit("process", schema.RECORDS["process"], given)
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
    """The result of ``process.get``.

    Raises:
        ProtocolError: It is none, or another process's.
    """
    info = process_info(given)
    if info.process != expected:
        raise ProtocolError("the record of another process")
    return info


def processes(given: object) -> tuple[ProcessInfo, ...]:
    """The result of ``process.list``.

    Raises:
        ProtocolError: It is none, or has too many.
    """
    records = fit("process list", schema.CALLS["process.list"]["result"], given)["processes"]
    number("processes", len(records), schema.LIMITS["processes"])
    return tuple(process_info(record) for record in records)


def entry(given: object) -> Entry:
    """One file, folder or link.

    Raises:
        ProtocolError: It is none.
    """
    fields = fit("entry", schema.RECORDS["entry"], given)
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
    )


def listing(given: object) -> Listing:
    """The result of ``file.list``.

    Raises:
        ProtocolError: It is none, or has too many entries.
    """
    fields = fit("listing", schema.CALLS["file.list"]["result"], given)
    number("entries", len(fields["entries"]), schema.LIMITS["entries"])
    return Listing(tuple(entry(record) for record in fields["entries"]), fields["more"])


def guest_info(given: object) -> GuestInfo:
    """The result of ``guest.info``.

    Raises:
        ProtocolError: It is none.
    """
    fields = fit("guest info", schema.CALLS["guest.info"]["result"], given)
    return GuestInfo(
        generation=count("generation", fields["generation"]),
        identity=text("identity", fields["identity"], "name"),
        uptime_s=seconds("uptime", fields["uptime_s"]),
        processes=count("processes", fields["processes"]),
        tasks=count("tasks", fields["tasks"]),
        cpu_s=seconds("cpu", fields["cpu_s"]),
        streams=count("streams", fields["streams"]),
    )


def nothing(given: object) -> None:
    """A result that holds nothing.

    Raises:
        ProtocolError: It holds something.
    """
    fit("result", {}, given)


def running(given: object) -> bool:
    """The result of ``process.signal``, ``process.resize`` and ``kernel.interrupt``.

    Raises:
        ProtocolError: It is none.
    """
    return bool(fit("result", schema.CALLS["process.signal"]["result"], given)["running"])


def removed(given: object) -> int:
    """The result of ``file.remove``.

    Raises:
        ProtocolError: It is none.
    """
    return count("removed", fit("result", schema.CALLS["file.remove"]["result"], given)["removed"])


def python(given: object) -> str | None:
    """The result of ``guest.wake``: where the image has its python.

    Raises:
        ProtocolError: It is none.
    """
    path = fit("result", schema.CALLS["guest.wake"]["result"], given).get("python")
    return None if path is None else text("python", path, "path")


def error_of(reason: Mapping[str, Any]) -> SandlotError:
    """The error of a RESET that the guest sent: its code, message and hint. Other fields of it are not taken.

    The fields of an error are the service's own words to its clients, some of which become headers of the answer.
    """
    code = reason["code"] if reason["code"] in schema.RESET_CODES else "internal"
    hint = reason.get("hint")
    return from_code(code, reason["message"][: schema.LIMITS["text"]], hint=hint[:_HINT_CHARS] if type(hint) is str else "")

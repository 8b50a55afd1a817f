"""The checks of what kernels tell, by the laws of :mod:`sandlot.link.parse`."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from sandlot.link import parse
from sandlot.link.types import CellError, CellResult, CellStarted, Cleared, Display, KernelInfo
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError

_MIME_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+;= -]{1,127}")


def cell_result(given: object) -> CellResult:
    """The result of ``kernel.execute`` and ``kernel.attach``.

    Raises:
        ProtocolError: It is none.
    """
    fields = parse.fit("cell result", schema.CALLS["kernel.execute"]["result"], given)
    return CellResult(
        status=parse.one_of("status", fields["status"], schema.CELL_STATUSES),
        execution_count=parse.count("execution count", fields["execution_count"]),
        duration_s=parse.seconds("duration", fields["duration_s"]),
    )


def display(given: object) -> Display:
    """The event ``display``.

    Raises:
        ProtocolError: It is none.
    """
    fields = parse.fit("display", schema.CALLS["kernel.execute"]["events"]["display"], given)
    data: dict[str, Any] = fields["data"]
    parse.number("representations", len(data), schema.LIMITS["mime_types"])
    for name, value in data.items():
        if not _MIME_TYPE.fullmatch(name) or type(value) not in {str, bytes}:
            raise ProtocolError("a display that is not MIME types to text or bytes")
    metadata: dict[str, Any] = fields.get("metadata") or {}
    parse.number("metadata", len(metadata), schema.LIMITS["mime_types"])
    display_id = fields.get("display_id")
    return Display(
        MappingProxyType(data),
        fields["main"],
        MappingProxyType(metadata),
        None if display_id is None else parse.text("display id", display_id, "name"),
        bool(fields.get("update")),
    )


def started(given: object) -> CellStarted:
    """The event ``started`` of a cell.

    Raises:
        ProtocolError: It is none.
    """
    return CellStarted(parse.count("count", parse.fit("started", schema.CALLS["kernel.execute"]["events"]["started"], given)["count"]))


def cleared(given: object) -> Cleared:
    """The event ``clear`` of a cell.

    Raises:
        ProtocolError: It is none.
    """
    return Cleared(parse.fit("clear", schema.CALLS["kernel.execute"]["events"]["clear"], given)["wait"])


def kernel(given: object) -> KernelInfo:
    """The result of ``kernel.create``, and one record of ``kernel.list``.

    Raises:
        ProtocolError: It is none.
    """
    fields = parse.fit("kernel", schema.RECORDS["kernel"], given)
    process = fields.get("pid")
    return KernelInfo(
        kernel=parse.text("kernel", fields["kernel"], "name"),
        language=parse.one_of("language", fields["language"], schema.LANGUAGES),
        cwd=parse.text("cwd", fields["cwd"], "path"),
        state=parse.one_of("state", fields["state"], schema.KERNEL_STATES),
        execution_count=parse.count("execution count", fields["execution_count"]),
        pid=None if process is None else parse.pid(process),
    )


def kernels(given: object) -> tuple[KernelInfo, ...]:
    """The result of ``kernel.list``.

    Raises:
        ProtocolError: It is none, or has too many.
    """
    records = parse.fit("kernel list", schema.CALLS["kernel.list"]["result"], given)["kernels"]
    parse.number("kernels", len(records), schema.LIMITS["kernels"])
    return tuple(kernel(record) for record in records)


def cell_error(given: object) -> CellError:
    """The event ``error``.

    Raises:
        ProtocolError: It is none.
    """
    fields = parse.fit("error", schema.CALLS["kernel.execute"]["events"]["error"], given)
    return CellError(
        name=parse.text("error name", fields["name"], "text"),
        value=parse.text("error value", fields["value"], "text"),
        traceback=tuple(parse.text("traceback", line, "text") for line in parse.texts("traceback", fields["traceback"], "traceback")),
    )

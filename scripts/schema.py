#!/usr/bin/env python3
"""Freezes the wire: everything that both ends must agree on, written to src/sandlot/protocol/schemas/<generation>.json.

    scripts/schema.py             write the schema of a new generation
    scripts/schema.py --check     say what differs from the frozen one, and exit with 1 if anything does
    scripts/schema.py --replace   write over a frozen one, which is right only while no release has spoken it

A service talks to guests that an older release started. So a frozen schema never changes: raise ``GENERATION`` in
``sandlot.protocol.connection`` instead, and keep what the older ones need.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

from sandlot.protocol import connection, frames, handshake, schema, stream_table, streams, values

FOLDER = Path(schema.__file__).parent / "schemas"


def describe() -> dict[str, Any]:
    """The wire as this code speaks it."""
    types = {}
    for number, name in sorted(frames.NAMES.items()):
        sides = [side for side, others in (("host", frames.FROM_GUEST_ONLY), ("guest", frames.FROM_HOST_ONLY)) if number not in others]
        types[name] = {"type": number, "from": sides, "on": "connection" if number in frames.ON_CONNECTION else "stream"}
    return {
        "generation": connection.GENERATION,
        "frame": {
            "header": frames.HEADER.format,
            "sync": frames.SYNC,
            "more": frames.MORE,
            "host_max_bytes": frames.HOST_FRAME_MAX,
            "guest_max_bytes": frames.GUEST_FRAME_MAX,
            "types": types,
        },
        "greeting": {
            "magic": handshake.MAGIC.hex(),
            "hello": handshake.HELLO.format,
            "hello_bytes": len(handshake.hello(bytes(handshake.NONCE_BYTES), 1, 1)),
            "welcome": handshake.WELCOME.format,
        },
        "credit": {"window_bytes": streams.WINDOW_BYTES, "cost_min_bytes": streams.COST_MIN},
        "streams": {"host_max": stream_table.HOST_STREAMS_MAX, "guest_max": stream_table.GUEST_STREAMS_MAX, "id_max": stream_table.STREAM_ID_MAX},
        "message_max_bytes": connection.MESSAGE_MAX_BYTES,
        "value": {"depth_max": values.MAX_DEPTH, "items_max": values.MAX_ITEMS},
        "channels": {"stdin": schema.STDIN, "body": schema.BODY, "stdout": schema.STDOUT, "stderr": schema.STDERR},
        "call_id_bytes": schema.CALL_ID_BYTES,
        "output_buffer_bytes": schema.OUTPUT_BUFFER_BYTES,
        "calls": schema.CALLS,
        "records": schema.RECORDS,
        "limits": schema.LIMITS,
        "texts": {
            "reset_codes": list(schema.RESET_CODES),
            "process_reasons": list(schema.PROCESS_REASONS),
            "cell_statuses": list(schema.CELL_STATUSES),
            "entry_kinds": list(schema.ENTRY_KINDS),
        },
    }


def main(arguments: list[str]) -> int:
    """Write or check; the exit status."""
    path = FOLDER / f"{connection.GENERATION}.json"
    now = json.dumps(describe(), indent=2) + "\n"
    frozen = path.read_text(encoding="utf-8") if path.exists() else ""
    if now == frozen:
        return 0
    if frozen and "--replace" not in arguments:
        sys.stdout.writelines(difflib.unified_diff(frozen.splitlines(keepends=True), now.splitlines(keepends=True), "frozen", "now", n=1))
        print(
            f"The wire of generation {connection.GENERATION} is frozen in {path.name}, and this code speaks another.\n"
            "Guests that a release has started speak it for as long as they live: raise GENERATION in sandlot.protocol.connection,\n"
            "keep what older guests need, and run scripts/schema.py. Only while no release has spoken it: scripts/schema.py --replace."
        )
        return 1
    if "--check" in arguments:
        print(f"No frozen schema of generation {connection.GENERATION}: run scripts/schema.py.")
        return 1
    path.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

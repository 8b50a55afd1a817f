"""Tools of the MCP server: the tools of :mod:`sandlot.toolset` with a parameter for the sandbox, and tools about sandboxes themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sandlot.toolset.parameters import Parameter
from sandlot.toolset.tools import TOOLS, Tool

INSTRUCTIONS: Final = (
    "Sandlot runs code, commands and servers in isolated Linux sandboxes. Files, variables and installed packages of a sandbox persist between "
    "calls. Each result names its sandbox: pass this id as `sandbox` in later calls to continue there. A call without `sandbox` uses the sandbox of "
    "this session, if the connection has sessions, or a new one. Kill sandboxes that you created and no longer need."
)

_SANDBOX = Parameter(
    "sandbox",
    "string",
    "Id or name of the sandbox, from an earlier result. Default: the sandbox of this session, or a new one.",
    minimum=1,
    maximum=100,
)
_REQUIRED = Parameter("sandbox", "string", "Id or name of the sandbox.", required=True, minimum=1, maximum=100)

CREATE: Final = Tool(
    "create_sandbox",
    "Create a sandbox",
    "Create a sandbox and return its id. The other tools create one by themselves; use this tool for another template, a snapshot, a name or another "
    "network.",
    (
        Parameter("template", "string", "Template, such as `code-interpreter` or `base`. Default: code-interpreter.", minimum=1, maximum=200),
        Parameter("snapshot", "string", "Snapshot to start from in place of a template. Default: none.", minimum=1, maximum=200),
        Parameter("name", "string", "Name that can be used in place of the id. Default: none.", minimum=1, maximum=63),
        Parameter("timeout", "number", "Seconds until the sandbox ends. Default: 21600.", minimum=1, maximum=604800),
        Parameter(
            "network",
            "string",
            "Access to the network; `packages` is package indexes only. Default: packages.",
            choices=("none", "packages", "internet"),
        ),
    ),
)
LIST: Final = Tool("list_sandboxes", "List sandboxes", "List the live sandboxes with their states and templates.", (), read_only=True)
KILL: Final = Tool("kill_sandbox", "Kill a sandbox", "End a sandbox and delete everything in it.", (_REQUIRED,))
SNAPSHOT: Final = Tool(
    "snapshot_sandbox",
    "Save a snapshot",
    "Save the memory and files of a sandbox. create_sandbox starts new sandboxes from the snapshot.",
    (_REQUIRED, Parameter("name", "string", "Name of the snapshot. Default: none.", minimum=1, maximum=63)),
)
FORK: Final = Tool(
    "fork_sandbox",
    "Fork a sandbox",
    "Copy a running sandbox with its memory, programs and files, for instance to try several continuations. The sandbox keeps running.",
    (_REQUIRED, Parameter("count", "integer", "Number of copies. Default: 1.", default=1, minimum=1, maximum=10)),
)
PORTS: Final = Tool(
    "list_ports",
    "List ports",
    "List the TCP ports on which programs in a sandbox listen, with the URLs under which a browser opens them.",
    (_REQUIRED,),
    read_only=True,
)
REFUSALS: Final = Tool(
    "list_network_refusals",
    "List network refusals",
    "List the connections and requests of a sandbox that its network policy has refused, with the reasons. Use it if a program cannot reach a host.",
    (_REQUIRED,),
    read_only=True,
)

IN_SANDBOX: Final[Mapping[str, Tool]] = {each.name: replace(each, parameters=(*each.parameters, _SANDBOX)) for each in TOOLS.values()}
"""Tools that work in a sandbox."""
ABOUT_SANDBOXES: Final[Mapping[str, Tool]] = {each.name: each for each in (CREATE, LIST, KILL, SNAPSHOT, FORK, PORTS, REFUSALS)}
ALL: Final[Mapping[str, Tool]] = {**IN_SANDBOX, **ABOUT_SANDBOXES}
DESTRUCTIVE: Final = frozenset({KILL.name})
"""Tools that destroy something outside of a sandbox."""

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "number"}
_INTEGER = {"type": "integer"}
_RUN: Mapping[str, Any] = {
    "status": _TEXT,
    "exit_code": _INTEGER,
    "stdout": _TEXT,
    "stderr": _TEXT,
    "results": _TEXTS,
    "error": {"type": ["string", "object", "null"]},
    "fault": {"type": ["string", "null"]},
    "duration_s": _NUMBER,
    "execution": {"type": ["string", "null"]},
    "output_file": {"type": ["string", "null"]},
    "image_files": _TEXTS,
    "pid": {"type": ["integer", "null"]},
}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_OUTPUTS: Mapping[str, Mapping[str, Any]] = {
    "run_code": _RUN,
    "run_command": _RUN,
    "install_packages": _RUN,
    "read_file": {
        "path": _TEXT,
        "content": _TEXT,
        "first_line": _INTEGER,
        "last_line": _INTEGER,
        "more": {"type": "boolean"},
        "media_type": _TEXT,
        "image_files": _TEXTS,
    },
    "write_file": {"path": _TEXT, "bytes": _INTEGER},
    "edit_file": {"path": _TEXT, "replaced": _INTEGER},
    "list_files": {"path": _TEXT, "entries": _OBJECTS, "more": {"type": "boolean"}},
    "get_url": {"url": _TEXT, "port": _INTEGER},
    LIST.name: {"sandboxes": _OBJECTS},
    SNAPSHOT.name: {"snapshot": _TEXT},
    FORK.name: {"copies": _TEXTS},
    PORTS.name: {"ports": _OBJECTS},
    REFUSALS.name: {"mode": _TEXT, "refusals": _OBJECTS},
}


def output_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of the structured result of a tool. An error has only ``error`` and, if it is known, ``sandbox``."""
    return {
        "type": "object",
        "properties": {"sandbox": _TEXT, **_OUTPUTS.get(name, {}), "error": _OUTPUTS.get(name, {}).get("error", {"type": "object"})},
    }

"""The tools that models call in a sandbox, as data.

``input_schema`` is JSON Schema that Anthropic (``input_schema``), OpenAI (``parameters``) and MCP (``inputSchema``) accept unchanged. The names are
those of other sandbox vendors, which models know. :mod:`sandlot.toolset.toolset` runs the tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.model.languages import DEFAULT_CONTEXT_IDS
from sandlot.toolset.parameters import Parameter, object_schema

MAX_TIMEOUT_S: Final = 3600.0
MAX_LINES: Final = 2000
"""Largest number of lines that one call of ``read_file`` returns."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Description of one tool.

    Args:
        name: Name of the tool.
        title: Name for people.
        description: Description for the model.
        parameters: Parameters of the tool.
        read_only: True if the tool changes nothing in the sandbox.
    """

    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    read_only: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return object_schema(self.parameters)

    @property
    def strict_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments for OpenAI's ``strict: true``: each property is required, and optional ones may be null."""
        return object_schema(self.parameters, strict=True)


_PATH = "Absolute path, or a path relative to the working directory."

RUN_CODE: Final = Tool(
    "run_code",
    "Run code",
    "Run code in an isolated sandbox, as in a notebook: variables, imports, files and installed packages persist between calls. The result has what "
    "the code printed, the value of its last expression, its charts, and the traceback if it failed. The sandbox may not reach the internet; use "
    "install_packages for packages.",
    (
        Parameter("code", "string", "Code to run. The value of the last expression is returned; print everything else that you need.", required=True),
        Parameter(
            "language",
            "string",
            "Language of the code; r needs a template with R, such as `languages`. Default: python.",
            default="python",
            choices=tuple(DEFAULT_CONTEXT_IDS),
        ),
        Parameter(
            "timeout",
            "number",
            "Seconds until the code is interrupted. Its variables are kept. Default: 60.",
            default=60.0,
            minimum=1,
            maximum=MAX_TIMEOUT_S,
        ),
    ),
)
RUN_COMMAND: Final = Tool(
    "run_command",
    "Run a command",
    "Run a shell command in the sandbox and return its output and exit code. Each command starts in a new shell; files persist between calls. Start "
    "servers and other programs that do not end with `background`.",
    (
        Parameter("command", "string", "Command line for bash.", required=True, minimum=1),
        Parameter("cwd", "string", "Directory in which the command starts. Default: the working directory of the sandbox.", minimum=1),
        Parameter(
            "background",
            "boolean",
            "Do not wait for the end of the command. The result names the file that receives its output. Default: false.",
            default=False,
        ),
        Parameter(
            "timeout",
            "number",
            "Seconds until the command is killed; not with `background`. Default: 60.",
            default=60.0,
            minimum=1,
            maximum=MAX_TIMEOUT_S,
        ),
    ),
)
INSTALL_PACKAGES: Final = Tool(
    "install_packages",
    "Install packages",
    "Install packages in the sandbox. Running code can import them at once; they persist between calls.",
    (
        Parameter(
            "packages",
            "array",
            "Names of packages, with versions in the form of the package manager, such as `requests>=2`.",
            required=True,
            minimum=1,
            maximum=100,
        ),
        Parameter(
            "manager",
            "string",
            "Package manager: pip (Python), npm (Node.js) or apt (Debian). Default: pip.",
            default="pip",
            choices=("pip", "npm", "apt"),
        ),
    ),
)
READ_FILE: Final = Tool(
    "read_file",
    "Read a file",
    "Read lines of a text file in the sandbox, or look at an image file (PNG, JPEG, GIF or WebP).",
    (
        Parameter("path", "string", _PATH, required=True, minimum=1),
        Parameter("offset", "integer", "Number of the first line to read, from 1. Default: 1.", default=1, minimum=1, maximum=10**12),
        Parameter("limit", "integer", f"Largest number of lines to read. Default: {MAX_LINES}.", default=MAX_LINES, minimum=1, maximum=MAX_LINES),
    ),
    read_only=True,
)
WRITE_FILE: Final = Tool(
    "write_file",
    "Write a file",
    "Create a text file in the sandbox, or replace the whole content of an existing one. Missing directories are created. Use edit_file to change "
    "parts of a file.",
    (
        Parameter("path", "string", _PATH, required=True, minimum=1),
        Parameter("content", "string", "Content of the file.", required=True),
    ),
)
EDIT_FILE: Final = Tool(
    "edit_file",
    "Edit a file",
    "Replace a part of a text file in the sandbox. `old_text` must be the exact text of the file, with its white space, and must occur once.",
    (
        Parameter("path", "string", _PATH, required=True, minimum=1),
        Parameter("old_text", "string", "Text to replace, with enough lines around it to be unique.", required=True, minimum=1),
        Parameter("new_text", "string", "Text that takes its place; empty to delete.", required=True),
        Parameter("replace_all", "boolean", "Replace each occurrence of `old_text`. Default: false.", default=False),
    ),
)
LIST_FILES: Final = Tool(
    "list_files",
    "List files",
    "List the files in a directory of the sandbox, with their sizes.",
    (Parameter("path", "string", f"{_PATH} Default: the working directory.", default=".", minimum=1),),
    read_only=True,
)
GET_URL: Final = Tool(
    "get_url",
    "Get the URL of a port",
    "Return the URL under which a browser outside opens a server in the sandbox. Start the server first, with run_command and `background`.",
    (Parameter("port", "integer", "TCP port on which the server listens in the sandbox.", required=True, minimum=1, maximum=65535),),
    read_only=True,
)

TOOLS: Final[Mapping[str, Tool]] = {
    each.name: each for each in (RUN_CODE, RUN_COMMAND, INSTALL_PACKAGES, READ_FILE, WRITE_FILE, EDIT_FILE, LIST_FILES, GET_URL)
}
"""Name -> tool."""

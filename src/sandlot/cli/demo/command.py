"""``sandlot demo``: an agent's code analyzes data in a sandbox, fails once and is corrected; the result is checked."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from sandlot.cli.demo.scripted_agent import Reply
    from sandlot.sdk import Execution, Sandbox

MAX_TURNS = 6
WIDTH = 110
DEFAULT_NAME = "demo.png"
SANDBOX_TIMEOUT_S = 300.0
TEMPLATE = "code-interpreter-slim"
"""The agent needs pandas and Matplotlib only: the default template has four times as many packages, and its first build takes minutes."""


class DemoError(Exception):
    """A step did not have the expected result."""


class DemoConsole:
    """The console, and the durations of the steps."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a heading, run a step, and show its duration."""
        from rich.rule import Rule

        self.console.print()
        self.console.print(Rule(f"[bold]{len(self.times) + 1}  {title}[/]", align="left", style="cyan"))
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.times.append((title, seconds))
        self.console.print(f"[dim]{seconds:.2f} s[/]", justify="right")

    def show(self, label: str, content: Any, style: str = "dim") -> None:  # noqa: ANN401 - any renderable of rich
        """Show content in a frame."""
        from rich.panel import Panel

        self.console.print(Panel(content, title=label, title_align="left", border_style=style))


def demo(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File of the chart. (default: demo.png in the data directory)")
    ] = None,
) -> None:
    """Run a scripted agent that analyzes data and draws a chart.

    The agent's first attempt fails, and the agent corrects it. The results are compared with the same computation on this machine. The last line of
    standard output is the path of the chart.
    """
    from rich.console import Console

    console = Console()
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    try:
        target = _play(DemoConsole(console), output)
    except (DemoError, ValueError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    typer.echo(target)


def _play(screen: DemoConsole, output: Path | None) -> Path:
    """Run all steps, and return the path of the chart."""
    from rich.panel import Panel

    from sandlot.cli.demo import scripted_agent
    from sandlot.cli.progress import announce_build
    from sandlot.sdk import Client, Sandbox

    screen.console.print(Panel(f"[bold]Sandlot demo[/]\nThe agent's task: {scripted_agent.TASK}", border_style="cyan"))
    with tempfile.TemporaryDirectory(prefix="sandlot-demo-") as folder, Client() as client:
        data = Path(folder, "wine.csv")
        with screen.step("Create a sandbox"):
            announce_build(client.templates.list(), TEMPLATE)
            sandbox = Sandbox.create(TEMPLATE, timeout=SANDBOX_TIMEOUT_S, name="demo", client=client)
            info = sandbox.info()
            network = "" if info.network is None else f", network: {info.network.mode}"
            screen.console.print(f"{info.id}: {info.template}, isolated by {info.isolation}{network}", highlight=False)
        with sandbox:
            with screen.step("Get the data and upload it"):
                rows = _fetch_data(sandbox, data)
                sandbox.files.upload(data, scripted_agent.DATA)
                screen.console.print(
                    f"{data.name}: {rows} wines, {len(scripted_agent.COLUMNS)} columns, {data.stat().st_size} bytes", highlight=False
                )
            found = _converse(screen, sandbox)
            with screen.step("Download the chart and check the results"):
                content = sandbox.files.read(scripted_agent.CHART, "bytes")
                width, height = scripted_agent.png_size(content)
                _check(screen, found, scripted_agent.expected_results(data))
                target = _target(output, client.target.local)
                target.write_bytes(content)
                screen.console.print(f"chart: {width} x {height} pixels, {len(content)} bytes", highlight=False)
    _show_times(screen)
    return target


def _target(output: Path | None, state: Path | None) -> Path:
    """Return the path of the chart: ``output``, or a file in the data directory of the local service, or in the current directory."""
    target = (output or (state or Path.cwd()) / DEFAULT_NAME).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _fetch_data(sandbox: Sandbox, data: Path) -> int:
    """Copy scikit-learn's wine data out of the image, add names of columns, and return the number of rows."""
    from sandlot.cli.demo import scripted_agent

    located = sandbox.run_code(scripted_agent.LOCATE)
    if not located.ok:
        raise DemoError(f"scikit-learn was not found in the sandbox: {located.error or located.stderr}")
    table = scripted_agent.table_of(sandbox.files.read(f"{located.stdout.strip()}/{scripted_agent.RAW_DATA}"))
    with data.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return len(table) - 1


def _converse(screen: DemoConsole, sandbox: Sandbox) -> dict[str, Any]:
    """Run the agent's code and return its output to the agent, until the agent has finished. Return the printed results."""
    from sandlot.cli.demo import scripted_agent

    history: list[scripted_agent.Outcome] = []
    found: dict[str, Any] = {}
    failures = 0
    for _ in range(MAX_TURNS):
        reply = scripted_agent.next_reply(history)
        if reply.code is None:
            screen.console.print(f"\n[bold]agent:[/] {reply.text}", highlight=False)
            break
        title = (
            "The agent's first attempt"
            if not history
            else "The agent reads the error and corrects its code"
            if history[-1].traceback
            else "The agent draws"
        )
        with screen.step(title):
            execution = _turn(screen, sandbox, reply)
        failures += execution.error is not None
        history.append(scripted_agent.Outcome(execution.stdout, "" if execution.error is None else str(execution.error)))
        if execution.stdout.startswith("{"):
            found = json.loads(execution.stdout)
    if failures != 1 or not found:
        raise DemoError(f"The code should fail once and then succeed; it failed {failures} times and printed {found or 'nothing'}.")
    return found


def _turn(screen: DemoConsole, sandbox: Sandbox, reply: Reply) -> Execution:
    from rich.syntax import Syntax

    screen.console.print(f"[bold]agent:[/] {reply.text}", highlight=False)
    screen.show("code", Syntax((reply.code or "").rstrip(), "python", theme="ansi_dark", background_color="default", word_wrap=True))
    execution = sandbox.run_code(reply.code or "")
    if not execution.ok and execution.error is None:
        raise DemoError(f"The code ended with {execution.status}: {execution.stderr}")
    _show_outcome(screen, execution)
    return execution


def _show_outcome(screen: DemoConsole, execution: Execution) -> None:
    from rich.text import Text

    if execution.stdout:
        screen.show("stdout", Text(execution.stdout.rstrip()))
    if execution.error is not None:
        screen.show("traceback, back to the agent", Text("\n".join(str(execution.error).splitlines()[-6:])), "red")
    if not execution.stdout and execution.error is None:
        screen.console.print("[dim]no output[/]")


def _check(screen: DemoConsole, found: dict[str, Any], expected: dict[str, Any]) -> None:
    from rich.table import Table

    from sandlot.cli.demo import scripted_agent

    table = Table("result", "in the sandbox", "on this machine", "", box=None, padding=(0, 2, 0, 0))
    for name in dict.fromkeys([*expected, *found]):
        same = name in found and name in expected and scripted_agent.agree(found[name], expected[name])
        table.add_row(name, _figure(found.get(name)), _figure(expected.get(name)), "[green]same[/]" if same else "[bold red]DIFFERENT[/]")
    screen.console.print(table)
    if wrong := scripted_agent.differences(found, expected):
        raise DemoError(f"The results of the sandbox and of this machine differ: {', '.join(wrong)}.")


def _show_times(screen: DemoConsole) -> None:
    from rich.table import Table

    table = Table("step", box=None, padding=(0, 2, 0, 0))
    table.add_column("seconds", justify="right")
    for title, seconds in screen.times:
        table.add_row(title, f"{seconds:.2f}")
    table.add_row("[bold]all steps[/]", f"[bold]{sum(seconds for _, seconds in screen.times):.2f}[/]")
    screen.console.print()
    screen.console.print(table)


def _figure(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)

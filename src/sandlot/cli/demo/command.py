"""``sandlot demo``: an agent's code analyses real data in a sandbox, stumbles, and mends itself; the result is checked."""

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

    from sandlot.cli.demo.scripted_agent import Answer
    from sandlot.sdk import Execution, Sandbox

MAX_TURNS = 6
WIDTH = 110
DEFAULT_NAME = "demo.png"
SANDBOX_TIMEOUT_S = 300.0


class DemoError(Exception):
    """A step did not come to what it has to."""


class Stage:
    """Where the demo plays: the console, and how long each step took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One timed step under a heading."""
        from rich.rule import Rule

        self.console.print()
        self.console.print(Rule(f"[bold]{len(self.times) + 1}  {title}[/]", align="left", style="cyan"))
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.times.append((title, seconds))
        self.console.print(f"[dim]{seconds:.2f} s[/]", justify="right")

    def show(self, label: str, content: Any, style: str = "dim") -> None:  # noqa: ANN401 - whatever rich can draw
        """Something in a frame."""
        from rich.panel import Panel

        self.console.print(Panel(content, title=label, title_align="left", border_style=style))


def demo(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the chart goes. (default: demo.png in the state directory)")
    ] = None,
) -> None:
    """Watch an agent's code analyse real data in a sandbox, from a wrong first attempt to a chart.

    A script stands in for the model. The figures are checked against the same computation done here. The last line of standard output is the
    chart's path.
    """
    from rich.console import Console

    console = Console()
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    try:
        target = _play(Stage(console), output)
    except (DemoError, ValueError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    typer.echo(target)


def _play(stage: Stage, output: Path | None) -> Path:
    """All of it; where the chart is."""
    from rich.panel import Panel

    from sandlot.cli.demo import scripted_agent
    from sandlot.cli.progress import announce_build
    from sandlot.sdk import Client, Sandbox

    stage.console.print(Panel(f"[bold]Sandlot demo[/]\nThe agent's task: {scripted_agent.TASK}", border_style="cyan"))
    with tempfile.TemporaryDirectory(prefix="sandlot-demo-") as folder, Client() as client:
        data = Path(folder, "wine.csv")
        with stage.step("A sandbox is made"):
            announce_build(client.templates.list(), None)
            sandbox = Sandbox.create(timeout=SANDBOX_TIMEOUT_S, name="demo", client=client)
            info = sandbox.info()
            network = "" if info.network is None else f", network: {info.network.mode}"
            stage.console.print(f"{info.id}: {info.template}, isolated by {info.isolation}{network}", highlight=False)
        with sandbox:
            with stage.step("The data: out of the image, then uploaded as a user would"):
                rows = _fetch_data(sandbox, data)
                sandbox.files.upload(data, scripted_agent.DATA)
                stage.console.print(f"{data.name}: {rows} wines, {len(scripted_agent.COLUMNS)} columns, {data.stat().st_size} bytes", highlight=False)
            found = _converse(stage, sandbox)
            with stage.step("The chart comes out, and the figures are checked here"):
                content = sandbox.files.read(scripted_agent.CHART, "bytes")
                width, height = scripted_agent.png_size(content)
                _check(stage, found, scripted_agent.figures_of(data))
                target = _place(output, client.target.local)
                target.write_bytes(content)
                stage.console.print(f"chart: {width} x {height} pixels, {len(content)} bytes", highlight=False)
    _show_times(stage)
    return target


def _place(output: Path | None, state: Path | None) -> Path:
    """Where the chart goes: where it was asked for, beside the local service's state, or here, where the service is elsewhere."""
    target = (output or (state or Path.cwd()) / DEFAULT_NAME).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _fetch_data(sandbox: Sandbox, data: Path) -> int:
    """Copy scikit-learn's wine data out of the image, give its columns their names, and say how many wines there are."""
    from sandlot.cli.demo import scripted_agent

    located = sandbox.run_code(scripted_agent.LOCATE)
    if not located.ok:
        raise DemoError(f"scikit-learn was not found in the sandbox: {located.error or located.stderr}")
    table = scripted_agent.table_of(sandbox.files.read(f"{located.stdout.strip()}/{scripted_agent.RAW_DATA}"))
    with data.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return len(table) - 1


def _converse(stage: Stage, sandbox: Sandbox) -> dict[str, Any]:
    """The agent's loop: its code runs, what came of it goes back, until it is done. Gives the figures that it printed."""
    from sandlot.cli.demo import scripted_agent

    history: list[scripted_agent.Outcome] = []
    found: dict[str, Any] = {}
    failures = 0
    for _ in range(MAX_TURNS):
        reply = scripted_agent.answer(history)
        if reply.code is None:
            stage.console.print(f"\n[bold]agent:[/] {reply.text}", highlight=False)
            break
        title = (
            "The agent's first attempt" if not history else "The agent reads the error and mends it" if history[-1].traceback else "The agent draws"
        )
        with stage.step(title):
            execution = _turn(stage, sandbox, reply)
        failures += execution.error is not None
        history.append(scripted_agent.Outcome(execution.stdout, "" if execution.error is None else str(execution.error)))
        if execution.stdout.startswith("{"):
            found = json.loads(execution.stdout)
    if failures != 1 or not found:
        raise DemoError(f"The loop should raise once and then succeed; it raised {failures} times and found {found or 'nothing'}.")
    return found


def _turn(stage: Stage, sandbox: Sandbox, reply: Answer) -> Execution:
    from rich.syntax import Syntax

    stage.console.print(f"[bold]agent:[/] {reply.text}", highlight=False)
    stage.show("code", Syntax((reply.code or "").rstrip(), "python", theme="ansi_dark", background_color="default", word_wrap=True))
    execution = sandbox.run_code(reply.code or "")
    if not execution.ok and execution.error is None:
        raise DemoError(f"The code ended with {execution.status}: {execution.stderr}")
    _show_outcome(stage, execution)
    return execution


def _show_outcome(stage: Stage, execution: Execution) -> None:
    from rich.text import Text

    if execution.stdout:
        stage.show("stdout", Text(execution.stdout.rstrip()))
    if execution.error is not None:
        stage.show("traceback, back to the agent", Text("\n".join(str(execution.error).splitlines()[-6:])), "red")
    if not execution.stdout and execution.error is None:
        stage.console.print("[dim]it ran without a word[/]")


def _check(stage: Stage, found: dict[str, Any], expected: dict[str, Any]) -> None:
    from rich.table import Table

    from sandlot.cli.demo import scripted_agent

    table = Table("figure", "in the sandbox", "on this machine", "", box=None, padding=(0, 2, 0, 0))
    for name in dict.fromkeys([*expected, *found]):
        same = name in found and name in expected and scripted_agent.agree(found[name], expected[name])
        table.add_row(name, _figure(found.get(name)), _figure(expected.get(name)), "[green]same[/]" if same else "[bold red]DIFFERENT[/]")
    stage.console.print(table)
    if wrong := scripted_agent.differences(found, expected):
        raise DemoError(f"The sandbox's figures are not those computed here: {', '.join(wrong)}.")


def _show_times(stage: Stage) -> None:
    from rich.table import Table

    table = Table("step", box=None, padding=(0, 2, 0, 0))
    table.add_column("seconds", justify="right")
    for title, seconds in stage.times:
        table.add_row(title, f"{seconds:.2f}")
    table.add_row("[bold]all of it[/]", f"[bold]{sum(seconds for _, seconds in stage.times):.2f}[/]")
    stage.console.print()
    stage.console.print(table)


def _figure(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)

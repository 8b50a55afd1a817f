"""How long the first things take: a cold create, a warm cell, a command; beside the same without Sandlot.

Every variant takes its turn in every round, so that what else the machine does falls on all of them alike. Medians are what
counts; ratios are between medians of this one run. ``--json`` prints the figures for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.container.runtime import find_crun
from sandlot.drivers.oci.gvisor.config import oci_config
from sandlot.drivers.oci.gvisor.plan import group_limits
from sandlot.drivers.oci.gvisor.runtime import find_runsc
from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.model.ids import NodeId, new_node_id, new_sandbox_id
from sandlot.model.ports import Driver, Instance, PreparedSandbox
from sandlot.model.specs import CellSpec, Limits, ProcessSpec, RootFs, SandboxSpec, Shape
from sandlot.sdk import AsyncClient, AsyncSandbox
from tests.support.cache import CACHE_DIR

PYTHON = ("/usr/bin/python3", "-c", "print(1)")
TRUE = ("/bin/true",)
CALLS = 3
"""Of those over the link, in each round."""

ISOLATIONS = ("gvisor", "container")

#: figure -> (what it is, the figure that it is compared with).
ONCE: dict[str, tuple[str, str | None]] = {
    "native python": ("python3 -c 'print(1)' on the host", None),
    "native spawn": ("/bin/true on the host", None),
    "raw runsc": ("runsc run of the same root: python3 -c 'print(1)'", None),
    "http": ("GET /v1/version over the unix socket: what any call costs", None),
}
EACH: dict[str, tuple[str, str | None]] = {
    "create": ("Sandbox.create(), cold", "raw runsc"),
    "run_code": ("sandbox.run_code('print(1)'), warm", "native python"),
    "commands.run argv": ("sandbox.commands.run(['/bin/true'])", "native spawn"),
    "commands.run": ("sandbox.commands.run('true'): a shell as well", "native spawn"),
    "link spawn": ("/bin/true over the link, no service", "native spawn"),
    "guest spawn": ("the same, timed inside by the guest", "native spawn"),
    "link cell": ("print(1) in the kernel over the link, no service", None),
    "prepare": ("of a create: group, disk, pipes, stage", None),
    "boot": ("of a create: until the runtime says that it runs", None),
    "greet": ("of a create: until the guest answers HELLO", None),
    "wake": ("of a create: until the guest is somebody's", None),
    "destroy": ("until every trace is gone", None),
}
FIGURES = ONCE | {f"{isolation} {name}": figure for isolation in ISOLATIONS for name, figure in EACH.items()}
"""For each kind of isolation the same, its name in front."""


class Rounds:
    """Collected milliseconds by figure."""

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {name: [] for name in FIGURES}

    def add(self, name: str, started_s: float) -> None:
        """What passed since ``time.perf_counter()`` was ``started_s``."""
        self.figures[name].append((time.perf_counter() - started_s) * 1000)

    async def timed(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever the work gives
        """Do some work, timed."""
        started_s = time.perf_counter()
        result = await work()
        self.add(name, started_s)
        return result


async def native(rounds: Rounds, name: str, argv: tuple[str, ...]) -> None:
    """A program on the host, from spawn to reaped."""

    def run() -> None:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    await rounds.timed(name, lambda: asyncio.to_thread(run))


async def raw_runsc(rounds: Rounds, root: RootFs, folder: Path) -> None:
    """The runtime itself with the driver's flags and configuration, but for the control group, the disk and the guest."""
    shape = Shape(root=root)
    spec = SandboxSpec(id=new_sandbox_id(new_node_id()))
    config = oci_config(shape, group_limits(shape.limits), has_hub=False, has_card=False)
    config["process"]["args"] = list(PYTHON)
    config["root"]["path"] = str(root.tree)
    bundle = Path(tempfile.mkdtemp(dir=folder))
    (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
    flags = ("--platform=systrap", "--network=none", "--directfs=false", "--host-uds=none", "--overlay2=root:memory", "--ignore-cgroups")
    argv = (str(find_runsc().path), f"--root={bundle / 'state'}", *flags, "run", f"-bundle={bundle}", spec.id)
    await native(rounds, "raw runsc", argv)
    await asyncio.to_thread(shutil.rmtree, bundle)


async def through_the_sdk(rounds: Rounds, isolation: str, client: AsyncClient, warm: AsyncSandbox, template: str) -> None:
    """What a user sees."""
    await rounds.timed("http", client.service.version)
    await rounds.timed(f"{isolation} run_code", lambda: warm.run_code("print(1)"))
    await rounds.timed(f"{isolation} commands.run argv", lambda: warm.commands.run(list(TRUE)))
    await rounds.timed(f"{isolation} commands.run", lambda: warm.commands.run("true"))
    sandbox = await rounds.timed(f"{isolation} create", lambda: AsyncSandbox.create(template, client=client, isolation=isolation))
    await sandbox.kill()


async def by_the_driver(rounds: Rounds, driver: Driver, node: NodeId, root: RootFs, env: dict[str, str]) -> None:
    """The same without the service: each step of a create, and calls over the link."""
    limits, kind = Limits(), driver.name
    blank: PreparedSandbox = await rounds.timed(f"{kind} prepare", lambda: driver.prepare(Shape(root=root, limits=limits)))
    spec = SandboxSpec(id=new_sandbox_id(node), limits=limits, isolation=kind)
    instance: Instance = await rounds.timed(f"{kind} boot", lambda: blank.boot(spec))

    async def greeted() -> Link:
        return await Link.open(await instance.connect())

    link: Link = await rounds.timed(f"{kind} greet", greeted)
    await rounds.timed(f"{kind} wake", lambda: link.wake(identity="bench", hostname="bench", env=env, pids=limits.pids, deadline_s=600))
    await (await link.processes.start(ProcessSpec(TRUE))).result()
    await (await link.kernels.execute(CellSpec("1"))).result()
    for _ in range(CALLS):
        started_s = time.perf_counter()
        result = await (await link.processes.start(ProcessSpec(TRUE))).result()
        rounds.add(f"{kind} link spawn", started_s)
        rounds.figures[f"{kind} guest spawn"].append(result.duration_s * 1000)
        await rounds.timed(f"{kind} link cell", lambda: _cell(link))
    await link.aclose()
    await rounds.timed(f"{kind} destroy", instance.destroy)


async def _cell(link: Link) -> None:
    await (await link.kernels.execute(CellSpec("print(1)"))).result()


async def measure(rounds: Rounds, template: str, count: int, folder: Path) -> None:
    """All figures, round by round."""
    store = ImageStore(CACHE_DIR)
    root, env = await asyncio.to_thread(store.root, template), dict(store.environment(template))
    node = new_node_id()
    drivers = [open_driver(name, DriverSettings(node=node, data_dir=folder / "driver")) for name in ISOLATIONS]
    (folder / "service").mkdir()
    os.environ["SANDLOT_ISOLATION_ALLOWED"] = ",".join(ISOLATIONS)
    async with AsyncClient(data_dir=folder / "service") as client:
        try:
            warm = {name: await AsyncSandbox.create(template, client=client, timeout=3600, isolation=name) for name in ISOLATIONS}
            # What only the first one pays for, on either way, is in no figure.
            for driver in drivers:
                await through_the_sdk(Rounds(), driver.name, client, warm[driver.name], template)
                await by_the_driver(Rounds(), driver, node, root, env)
            for number in range(count):
                await native(rounds, "native python", PYTHON)
                await native(rounds, "native spawn", TRUE)
                await raw_runsc(rounds, root, folder)
                for driver in drivers:
                    await through_the_sdk(rounds, driver.name, client, warm[driver.name], template)
                    await by_the_driver(rounds, driver, node, root, env)
                if sys.stderr.isatty():
                    print(f"\rround {number + 1} of {count}", end="\n" if number + 1 == count else "", file=sys.stderr, flush=True)
        finally:
            await client.service.stop()


def summary(rounds: Rounds) -> dict[str, dict[str, float | int | str]]:
    """Median, least and most of each figure, and the ratio to what it is compared with."""
    medians = {name: statistics.median(values) for name, values in rounds.figures.items()}
    return {
        name: {
            "what": what,
            "n": len(rounds.figures[name]),
            "median_ms": round(medians[name], 2),
            "min_ms": round(min(rounds.figures[name]), 2),
            "max_ms": round(max(rounds.figures[name]), 2),
            **({"beside": beside, "ratio": round(medians[name] / medians[beside], 2)} if beside else {}),
        }
        for name, (what, beside) in FIGURES.items()
    }


def machine(template: str) -> dict[str, str]:
    """What these figures were taken on."""
    return {
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{value:.1f}" for value in os.getloadavg()),
        "kernel": os.uname().release,
        "runsc": find_runsc().version,
        "crun": find_crun().version,
        "template": template,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=15, help="rounds (default 15, about a minute)")
    parser.add_argument("--template", default="base", help="what sandboxes start from (default base)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rounds = Rounds()
    facts = {"before": machine(options.template)}
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
        asyncio.run(measure(rounds, options.template, options.n, Path(folder)))
    facts["after"] = machine(options.template)
    figures = summary(rounds)
    if options.json:
        print(json.dumps({"machine": facts, "figures": figures}, indent=2))
        return
    print("  ".join(f"{name} {text}" for name, text in facts["before"].items()), f" load after {facts['after']['load']}")
    print(f"{'':28}{'median':>9}{'min':>9}{'max':>9}{'n':>5}   ratio")
    for name, row in figures.items():
        ratio = f"{row['ratio']:>7} x {row['beside']}" if "ratio" in row else ""
        print(f"{name:28}{row['median_ms']:>9}{row['min_ms']:>9}{row['max_ms']:>9}{row['n']:>5} {ratio:25} {row['what']}")
    print("milliseconds")


if __name__ == "__main__":
    main()

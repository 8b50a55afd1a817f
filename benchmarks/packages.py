"""How long it takes to install a package from a warm cache: in a sandbox of each kind, beside the same on the host.

Each round installs pandas (with what it needs: 4 wheels, 29 MB, 4,000 files) into an environment that does not have it: a fresh sandbox of the
template, and a fresh virtual environment on the host. On the host it is the same uv, once from its own warm cache (nothing is downloaded or
unpacked there) and once without, from the index that the machine is configured for. Every variant takes its turn in every round. Medians are what
counts; ratios are between medians of this one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

from sandlot.sdk import AsyncClient, AsyncSandbox

ISOLATIONS = ("gvisor", "container")
MOST = 5
"""Rounds; each takes half a minute."""
PARTS = ("install()", "typed uv", "typed pip", "npm", "apt-get")
HOST = {
    "host uv, no cache": "a fresh venv on the host, from the machine's index: downloaded and unpacked",
    "host uv, warm cache": "the same out of uv's own cache: files are linked, nothing else",
    "host pip, warm cache": "pip on the host, its cache warm",
}


class Rounds:
    """Collected seconds by figure."""

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """One more."""
        self.figures.setdefault(name, []).append(seconds)


async def inside(rounds: Rounds, client: AsyncClient, template: str, isolation: str, package: str) -> None:
    """Every way of installing, each into a sandbox that has it not."""
    commands = {
        "typed uv": ["uv", "pip", "install", package],
        "typed pip": ["pip", "install", package],
        "npm": ["npm", "install", "-g", "left-pad"],
        "apt-get": ["sh", "-c", "apt-get -qq update && apt-get -qq install tree"],
    }
    for part in PARTS:
        async with AsyncSandbox.create(template, client=client, isolation=isolation, timeout=600) as sandbox:
            started_s = time.perf_counter()
            argv = commands.get(part)
            done = await (sandbox.install(package) if argv is None else sandbox.commands.run(argv, timeout=300))
            seconds = time.perf_counter() - started_s
            if done.exit_code != 0:
                raise SystemExit(f"{isolation} {part} failed: {done.stderr}")
            rounds.add(f"{isolation} {part}", seconds)


def on_the_host(rounds: Rounds, folder: Path, package: str, number: int) -> None:
    """The same with the host's own tools."""
    uv = Path(sys.executable).parent / "uv"
    cached = {"UV_CACHE_DIR": str(folder / "uv"), "PIP_CACHE_DIR": str(folder / "pip")}
    ways = {
        "host uv, no cache": ([str(uv), "pip", "install", "--no-cache", package], {}),
        "host uv, warm cache": ([str(uv), "pip", "install", package], cached),
        "host pip, warm cache": (["bin/python", "-m", "pip", "install", "--no-compile", package], cached),
    }
    for name, (argv, more) in ways.items():
        home = folder / f"venv-{number}-{name.replace(' ', '-')}"
        venv.create(home, with_pip="pip" in name)
        command = [str(home / argv[0]), *argv[1:]] if argv[0] == "bin/python" else argv
        rounds.add(name, _timed(command, {**_index(), **more, "VIRTUAL_ENV": str(home), "UV_LINK_MODE": "hardlink"}))


def _timed(argv: list[str], more: Mapping[str, str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **more}, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def _index() -> dict[str, str]:
    """The index of pip, for uv, which does not read pip's configuration."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    return {"UV_DEFAULT_INDEX": said.stdout.strip()} if said.returncode == 0 and said.stdout.strip() else {}


async def measure(rounds: Rounds, template: str, package: str, count: int, folder: Path) -> None:
    """All figures, round by round."""
    os.environ["SANDLOT_ISOLATION_ALLOWED"] = ",".join(ISOLATIONS)
    (folder / "service").mkdir()
    async with AsyncClient(data_dir=folder / "service") as client:
        try:
            # What fills the caches is in no figure.
            await inside(Rounds(), client, template, "container", package)
            await asyncio.to_thread(on_the_host, Rounds(), folder, package, -1)
            for number in range(count):
                await asyncio.to_thread(on_the_host, rounds, folder, package, number)
                for isolation in ISOLATIONS:
                    await inside(rounds, client, template, isolation, package)
        finally:
            await client.service.stop()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=5, help="rounds (default 5, about three minutes, and no more are done)")
    parser.add_argument("--template", default="base", help="what sandboxes start from; it must not have the package (default base)")
    parser.add_argument("--package", default="pandas", help="what pip and uv install (default pandas)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rounds = Rounds()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
        asyncio.run(measure(rounds, options.template, options.package, min(options.n, MOST), Path(folder)))
    medians = {name: statistics.median(values) for name, values in rounds.figures.items()}
    beside = medians["host uv, no cache"]
    if options.json:
        told = {
            name: {"median_s": round(medians[name], 3), "all_s": [round(value, 3) for value in values]} for name, values in rounds.figures.items()
        }
        print(json.dumps({"load": before, "cores": os.cpu_count(), "figures": told}, indent=2))
        return
    print(f"{options.package} into {options.template}; cores {os.cpu_count()}  load {before[0]:.1f} to {os.getloadavg()[0]:.1f}")
    print(f"{'':28}{'median':>9}{'min':>9}{'max':>9}{'n':>4}   ratio")
    for name, values in rounds.figures.items():
        same = "npm" in name or "apt" in name
        ratio = "" if same else f"{medians[name] / beside:>7.2f} x host uv, no cache"
        print(f"{name:28}{medians[name]:>9.2f}{min(values):>9.2f}{max(values):>9.2f}{len(values):>4} {ratio:28} {HOST.get(name, '')}")
    print("seconds")


if __name__ == "__main__":
    main()

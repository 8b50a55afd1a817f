"""Facts about the client's machine and the service, for the report."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandlot import __version__
from sandlot.sdk import AsyncClient, SandlotError


def load() -> list[float]:
    """Return the load averages of this machine over 1, 5 and 15 minutes (proc_loadavg(5))."""
    return [round(value, 2) for value in os.getloadavg()]


def machine() -> dict[str, Any]:
    """Return cores, processor, memory and kernel of this machine, and the version of Python."""
    return {
        "cores": os.cpu_count(),
        "processor": _proc_field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


async def service(client: AsyncClient) -> dict[str, Any]:
    """Return version, address and, for operators, driver runtimes of the service."""
    found: dict[str, Any] = {"address": str(client.target), "client": __version__, **asdict(await client.service.version())}
    with suppress(SandlotError):  # only operators may ask
        drivers = await client.service.capabilities()
        found["runtimes"] = {each.driver: f"{each.runtime.name} {each.runtime.version}" for each in drivers if each.runtime is not None}
    return found


def _proc_field(path: str, name: str) -> str | None:
    """Return the value of the first line with a name in a file of /proc; None if there is none."""
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), None)

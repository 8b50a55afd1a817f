"""What the figures were taken on: this machine, and the service."""

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
    """The load of this machine over the last 1, 5 and 15 minutes (proc_loadavg(5))."""
    return [round(value, 2) for value in os.getloadavg()]


def machine() -> dict[str, Any]:
    """This machine: cores, processor, memory, kernel, and the Python of the client."""
    return {
        "cores": os.cpu_count(),
        "processor": _named("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


async def service(client: AsyncClient) -> dict[str, Any]:
    """The service: its version, where it is, and the runtimes of its drivers, where it tells.

    Args:
        client: Reaches it.
    """
    told: dict[str, Any] = {"address": str(client.target), "client": __version__, **asdict(await client.service.version())}
    with suppress(SandlotError):  # not for everybody
        told["runtimes"] = {driver.driver: driver.runtime for driver in await client.service.capabilities()}
    return told


def _named(path: str, name: str) -> str | None:
    """The first line of a file of /proc that begins with a name."""
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), None)

"""Keep the processors of the host out of sleep states while requests arrive (PM QoS, /dev/cpu_dma_latency).

A call crosses half a dozen processes. Each of them has to be woken, which takes many times as long if an idle processor sleeps.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

DEVICE: Final = Path("/dev/cpu_dma_latency")
HOLD_S: Final = 0.02
"""Time for which the processors stay awake after a request began or ended."""
_NO_LATENCY: Final = bytes(4)
"""The longest time in microseconds that waking may take, as a 32-bit number (Documentation/power/pm_qos_interface.rst)."""


class CpuLatency:
    """The host's limit of the time that waking a processor may take. The kernel undoes it when the process ends.

    Args:
        device: Device of the limit.
    """

    def __init__(self, device: Path = DEVICE) -> None:
        self._device = device
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._until_s = 0.0

    def hold(self) -> None:
        """Keep the processors awake for ``HOLD_S`` seconds from now. Nothing happens on a host without the device."""
        self._until_s = self._loop.time() + HOLD_S
        if self._fd < 0:
            try:
                self._fd = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
                os.write(self._fd, _NO_LATENCY)
            except OSError:
                self.close()
                return
            self._loop.call_at(self._until_s, self._end)

    def close(self) -> None:
        """Let the processors sleep."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _end(self) -> None:
        if self._fd >= 0 and self._loop.time() < self._until_s:
            self._loop.call_at(self._until_s, self._end)
        else:
            self.close()

"""Reseeding of the random number generators that libraries keep in the memory of this process.

A sandbox that was restored or forked starts with a copy of the memory of another sandbox. Without new seeds, both sandboxes would draw the same
random numbers.
"""

from __future__ import annotations

import random
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def reseed(entropy: bytes) -> None:
    """Reseed the random number generators of the standard library, and of OpenSSL, numpy and torch if they are imported.

    Args:
        entropy: 64 random bytes that no other kernel receives.
    """
    for renew in (_reseed_standard_library, _reseed_openssl, _reseed_numpy, _reseed_torch):
        try:
            renew(entropy)
        except Exception:  # noqa: BLE001, S112 - a cell may have replaced the module
            continue


def _reseed_standard_library(entropy: bytes) -> None:
    random.seed(entropy)
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # noqa: SLF001 - tempfile creates a new generator for names


def _reseed_openssl(entropy: bytes) -> None:
    """Add entropy to OpenSSL's generator. OpenSSL itself reads entropy when a process starts or forks, but not when its memory is restored."""
    ssl: Any = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(entropy, float(len(entropy)))
    bindings: Any = sys.modules.get("cryptography.hazmat.bindings._rust")  # the package cryptography contains an OpenSSL of its own
    if bindings is not None:
        bindings._openssl.lib.RAND_add(entropy, len(entropy), float(len(entropy)))  # noqa: SLF001 - as pyOpenSSL's rand.add() does


def _reseed_numpy(entropy: bytes) -> None:
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([int.from_bytes(entropy[at : at + 4], "big") for at in range(0, len(entropy), 4)])


def _reseed_torch(entropy: bytes) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(entropy[4:12], "big") >> 1)

"""``signal``, ``socket`` and a hash without the Python halves of those modules, which bring enum, re's friends and selectors.

Importing them took more than half of the guest's start (24 ms on the host with them, 10 without). The C halves have the same
functions and constants; what is missing is wrappers: constants are plain integers, and a listening socket accepts by
``_accept``, which gives a descriptor.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from hashlib import blake2b
else:
    import _signal as signal
    import _socket as socket
    from _blake2 import blake2b

__all__ = ["blake2b", "signal", "socket"]

"""Names of the standard library, imported from its C modules instead of the Python modules around them.

Imports make up most of the guest's start: ``signal`` and ``socket`` bring enum, selectors and more, and take longer than
the rest of the start (24 ms on the host with them, 10 ms without). ``collections`` takes longer than the whole protocol.

The C modules have the same functions and constants. The differences:

- Constants of ``signal`` and ``socket`` are plain integers.
- A listening socket has ``_accept``, which returns a descriptor and an address.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections import OrderedDict, deque
    from hashlib import blake2b
else:
    import _signal as signal
    import _socket as socket
    from _blake2 import blake2b
    from _collections import OrderedDict, deque

__all__ = ["OrderedDict", "blake2b", "deque", "signal", "socket"]

"""Names of the standard library, imported from its C modules instead of the Python modules that wrap the C modules.

Most of the time of the guest's start is spent on imports. The Python modules ``signal`` and ``socket`` import enum, selectors and other modules,
which takes longer than the rest of the start (measured on the host: 24 ms with these imports, 10 ms without). Importing ``collections`` takes longer
than importing all modules of the protocol.

The C modules have the same functions and constants, with these differences:

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

"""Resolution of ``*.localhost``, as by systemd's nss-myhostname, for Python programs with this folder in ``PYTHONPATH``.

The C library resolves ``localhost`` only. Nothing but the resolution of names is changed in the programs. ``SANDLOT_TEST_LOCALHOST`` is the address.
"""

from __future__ import annotations

import os
import socket

_resolve = socket.getaddrinfo


def resolve_localhost(host, *args, **options):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201 - the arguments of getaddrinfo
    """Do what ``socket.getaddrinfo`` does, and resolve ``*.localhost`` too."""
    name = host.decode() if isinstance(host, bytes) else host
    is_local = name is not None and name.endswith(".localhost")
    return _resolve(os.environ["SANDLOT_TEST_LOCALHOST"] if is_local else host, *args, **options)


socket.getaddrinfo = resolve_localhost

"""The network of the sandbox: its card, the DNS server, captured connections and ``/etc/resolv.conf``.

The driver sets up the card, with a NAT table that leads to the guest, before the guest or any program runs, and starts the guest with the argument
``schema.NETWORK_ARGUMENT``. Without this argument, nothing is opened or written: the guest may share the network and the files of a host in tests.
"""

from __future__ import annotations

import os

from sandlot.guest.loop import log
from sandlot.guest.net.capture import CaptureListener
from sandlot.guest.net.dns import NameTable
from sandlot.guest.net.dns_server import DnsServer
from sandlot.protocol.schema import NAMESERVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandlot.guest.loop import Loop
    from sandlot.guest.streams import StreamRouter

RESOLV_CONF = "/etc/resolv.conf"


class GuestNetwork:
    """Opens and suspends the network with the lifecycle of the guest.

    Args:
        loop: The guest's loop.
        router: Opens the streams to the host.
        has_card: True if the driver has set up the card. Without the card, all methods do nothing.
    """

    __slots__ = ("_capture", "_dns", "_has_card", "_table")

    def __init__(self, loop: Loop, router: StreamRouter, *, has_card: bool) -> None:
        self._table = NameTable()
        self._capture = CaptureListener(loop, router, self._table)
        self._dns = DnsServer(loop, router, self._table)
        self._has_card = has_card

    def set_local_domains(self, domains: Iterable[str]) -> None:
        """Replace the domains whose names get addresses although they end in ``.local`` or ``.internal``."""
        self._table.local_domains = tuple(domains)

    def on_wake(self, *, is_first: bool) -> None:
        """Open the network.

        Args:
            is_first: True for the first wake after the boot. Only this wake writes ``/etc/resolv.conf``: a later change of the file is kept.
        """
        if self._has_card and is_first:
            write_resolv_conf()
        self.resume()

    def resume(self) -> None:
        """Accept connections, again after :meth:`suspend`."""
        if self._has_card:
            self._dns.open()
            self._capture.open()

    def suspend(self) -> None:
        """Reset all connections to other hosts, and refuse further ones until :meth:`resume` is called. DNS continues. Idempotent."""
        self._capture.suspend()


def write_resolv_conf(path: str = RESOLV_CONF) -> None:
    """Replace a file, link or special file at ``path`` by a file that names the sandbox's name server. If this fails, log the error."""
    try:
        if os.path.lexists(path):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"nameserver {NAMESERVER}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        log(f"cannot write {path}: {error}")

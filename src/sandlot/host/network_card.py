"""Check whether this host can create the network card of a sandbox."""

from __future__ import annotations

from sandlot.host.blocking import call_in_own_thread
from sandlot.host.nat_table import nat_table
from sandlot.host.stage.network import card, loopback_card, private_network
from sandlot.protocol.schema import NETWORK_ADDRESS


def find_card_problem(*, is_copied: bool = False) -> str:
    """Create a card and its NAT table in a network namespace that exists only during the call. Needs root. Takes some milliseconds.

    Return the reason why the host cannot create the card, as a sentence with the fix; empty if it can.

    Args:
        is_copied: True for the card that a runtime copies to a network stack of its own. It needs no device.
    """

    def work() -> None:
        private_network(())
        if is_copied:
            loopback_card(NETWORK_ADDRESS, nat_table())
        else:
            card("eth0", NETWORK_ADDRESS, nat_table())

    try:
        call_in_own_thread(work)
    except OSError as error:
        return (
            f"This host cannot create a network card: {error.filename or 'the kernel refuses it'} ({error.strerror}). "
            "Load the kernel modules tun, iptable_nat and xt_REDIRECT (modprobe(8), modules-load.d(5))."
        )
    return ""

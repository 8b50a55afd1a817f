"""Network cards of the sandboxes of a program: found once, and given up once."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from sandlot.drivers.oci.network_cards import NetworkCards
from sandlot.drivers.oci.runtime import Program, Runtime
from sandlot.model.ports import ProbeResult

COPYING = Program("runsc", Path("/usr/bin/runsc"), "0" * 64, "release-20270101.0", copies_network=True)
OTHER = Program("runsc", Path("/usr/bin/runsc"), "1" * 64, "0.0~20240729.0", has_control=True)
YES, NO = ProbeResult(ok=True), ProbeResult(ok=False, reason="no NAT")


class Host:
    """A runtime whose probes have these results, in this order."""

    def __init__(self, *results: ProbeResult) -> None:
        self.results = list(results)

    def probe_card(self, _program: Program) -> ProbeResult:
        return self.results.pop(0)


def cards(*results: ProbeResult) -> NetworkCards:
    return NetworkCards(cast("Runtime", Host(*results)))


def test_missing_card_is_tried_again_until_it_is_found() -> None:
    made = cards(NO, YES)
    assert [made.probe(COPYING) for _ in range(3)] == [NO, YES, YES]


def test_copied_card_is_given_up_once_and_for_one_program() -> None:
    made = cards(YES, YES)
    assert made.give_up(COPYING, "no luck")
    assert not made.give_up(COPYING, "no luck")
    assert not made.probe(COPYING).ok
    assert "no luck" in made.probe(COPYING).reason
    assert not made.give_up(OTHER, "no luck"), "the control socket creates its card"
    assert made.probe(OTHER) == YES

"""Network cards of sandboxes: which programs of a runtime give their sandboxes one on this host.

Invariants:
- A card that was possible once is not tried again: a sandbox has a card, or could not be prepared.
- A program that cannot start sandboxes with a copied network starts them without a card from then on.
"""

from __future__ import annotations

from sandlot.drivers.oci.runtime import Program, Runtime
from sandlot.model.ports import ProbeResult


class NetworkCards:
    """Results of the probes of network cards, by the digests of the programs.

    Args:
        runtime: Runtime of the programs.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._results: dict[str, ProbeResult] = {}

    def probe(self, program: Program) -> ProbeResult:
        """Return whether sandboxes of a program get a card. A card that the host could not create before is tried again.

        May block for some milliseconds.
        """
        known = self._results.get(program.sha256)
        if known is None:
            known = self._runtime.probe_card(program)
            if known.ok:
                self._results[program.sha256] = known
        return known

    def give_up(self, program: Program, reason: str) -> bool:
        """Give sandboxes of a program no card any more, because a sandbox with a copied network did not start.

        Return False if this changes nothing: the program copies no network, or its sandboxes have no card.

        Args:
            program: Program of the runtime.
            reason: Reason of the failure, as a sentence.
        """
        if not program.copies_network or not self.probe(program).ok:
            return False
        message = f"runsc {program.version} cannot start sandboxes with a copied network: {reason}"
        self._results[program.sha256] = ProbeResult(ok=False, reason=message)
        return True

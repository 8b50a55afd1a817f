"""The output of ``sandlot version``. Imports no other part of the command line, because the command must be fast."""

from __future__ import annotations

import json

from sandlot import __version__
from sandlot.host.programs import installed_runtimes


def version_text(*, json_output: bool = False) -> str:
    """Return the output of ``sandlot version``: the version of Sandlot, and the builds of the runtimes that are installed on this machine."""
    runtimes = installed_runtimes()
    if json_output:
        found = [{"name": each.name, "version": each.version, "build_date": each.build_date, "source": each.source} for each in runtimes]
        return json.dumps({"version": __version__, "runtimes": found}, indent=2)
    built = (f"{each.name} {each.version}{f', built {each.build_date}' if each.build_date else ''} ({each.source})" for each in runtimes)
    return "\n".join((f"sandlot {__version__}", *built))

"""A program for E2B's package of any release: creates sandboxes, changes their network, and prints what a command writes in each as JSON.

Argument: JSON of the command, and of one entry for each sandbox: the arguments of ``Sandbox.create``, and of each ``update_network`` after it.
"""

from __future__ import annotations

import json
import sys

from e2b import Sandbox

command, entries = json.loads(sys.argv[1])
outputs = []
for options, changes in entries:
    sandbox = Sandbox.create(template="base", **options)
    outputs.append([sandbox.commands.run(command, timeout=120).stdout])
    for change in changes:
        sandbox.update_network(change)
        outputs[-1].append(sandbox.commands.run(command, timeout=120).stdout)
    sandbox.kill()
print(json.dumps(outputs))

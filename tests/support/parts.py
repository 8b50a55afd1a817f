"""All tests in three pytest processes side by side, because most of them wait more than they compute.

Laws:
- Every test is in exactly one part: what a part of ``BESIDE`` names is in that one, all else in the first.
- The run is good if all parts are; what fails in one ends nothing of the others.
- How far each is comes line by line, with the name of the part before it; what a part says in the end comes in one piece.
- Ctrl-C ends all of them, and whatever ends this script ends them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping

BESIDE = {
    "hard": ("tests/conformance", "tests/integration/guest", "tests/integration/kernels", "tests/security", "tests/soak"),
    "unit": ("tests/compat", "tests/fuzz", "tests/meta", "tests/unit"),
}
"""Each about as long as what is left, on two cores. No test may look at what the other parts do: each has services, state directories,
control groups and networks of its own, and counts only those."""

PYTEST = (sys.executable, "-m", "pytest", "--durations=15")
_lock = threading.Lock()


def parts() -> dict[str, list[str]]:
    """What each pytest is told to run, by the name of the part."""
    named = {name: list(folders) for name, folders in BESIDE.items()}
    return {"most": [f"--ignore={folder}" for folders in named.values() for folder in folders], **named}


def follow(name: str, lines: Iterable[str]) -> None:
    """Pass on what a pytest says.

    Args:
        name: Of its part.
        lines: Its output. From the second ruled line on (after the header's) it is held back until its end.
    """
    rules, kept = 0, list[str]()
    for line in lines:
        rules += line.startswith("=")
        if rules < 2:
            _say(f"{name:>4} | {line}")
        else:
            kept.append(line)
    _say("".join(kept))


def run(told: Mapping[str, list[str]]) -> int:
    """Run them side by side.

    Args:
        told: Name -> arguments of pytest.

    Returns:
        An exit status: 1 if any of them failed, found no test or was interrupted.
    """
    running = {name: subprocess.Popen([*PYTEST, *args], stdout=subprocess.PIPE, text=True, errors="replace") for name, args in told.items()}
    readers = [threading.Thread(target=follow, args=(name, each.stdout)) for name, each in running.items()]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        ended = {name: each.wait() for name, each in running.items()}
    except KeyboardInterrupt:  # they have heard of it as well, and say how far they came
        ended = {name: each.wait() for name, each in running.items()}
    finally:
        for each in running.values():
            each.terminate()
    bad = {name: status for name, status in ended.items() if status}
    print(f"failed: {', '.join(f'{name} (exit status {status})' for name, status in bad.items())}" if bad else "all passed", flush=True)
    return 1 if bad else 0


def _say(text: str) -> None:
    with _lock:
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run(parts()))

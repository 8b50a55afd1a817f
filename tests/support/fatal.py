"""The service as it is, that can be told to die between two writes of one transfer: ``python -m tests.support.fatal``.

Where its state directory has a file ``die-after`` with a number, the service ends itself by SIGKILL after it has written that many large
frames to guests; large are those that carry a file's content. Nothing else differs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sandlot.host.link_pipes import PipeStream
from sandlot.server.__main__ import main

DIE_AFTER = "die-after"
LARGE_BYTES = 2048


def arm(file: Path) -> None:
    """From now on look at every large frame whether it is the last.

    Args:
        file: Tells how many there may be; it need not be there yet.
    """
    try_send, written = PipeStream.try_send, 0

    def last_words(self: PipeStream, frame: bytes) -> bool:
        nonlocal written
        done = try_send(self, frame)
        if done and len(frame) >= LARGE_BYTES and file.exists():
            written += 1
            if written >= int(file.read_text(encoding="ascii") or "1"):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(PipeStream, "try_send", last_words)  # noqa: B010 - mypy knows it for a method


if __name__ == "__main__":
    arm(Path(os.environ["SANDLOT_DATA_DIR"]) / DIE_AFTER)
    sys.exit(main(["--local"]))

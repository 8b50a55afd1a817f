"""The end of a helper: a signal that does not interrupt the system call in which the helper waits."""

from __future__ import annotations

import subprocess
import sys

from sandlot.protocol import values

PROGRAM = """
import signal, threading
from sandlot.guest.helpers.helper import read, serve

def work(request):
    threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    read(1)
    return {}

serve(work)
"""
"""A helper in which another thread receives SIGTERM. The main thread's read is then not interrupted, as if the signal had arrived just before it."""


def test_helper_ends_on_a_signal_that_does_not_interrupt_its_read() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-P", "-X", "utf8", "-c", PROGRAM], stdin=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(values.encode_message({}))
        process.stdin.flush()

        try:
            assert process.wait(60) == 1
            assert process.stderr.read() == b""
        finally:
            process.kill()

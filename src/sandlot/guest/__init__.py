"""The program inside every sandbox: PID 1, processes, files, kernels, and the guest's end of the link.

Runs as uid 0 on its own interpreter (Debian bookworm's python 3.11, shipped at ``/.sandlot``), standard library and
``sandlot.protocol`` only, single-threaded, and never blocks in a read or a write. Whatever is imported here is paid for at
every cold start: no asyncio, dataclasses, typing, subprocess or argparse.

It is no security boundary. Root inside the sandbox can replace it; the host treats every byte that it sends as hostile.
"""

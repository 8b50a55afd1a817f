"""The guest, which is the program that runs as PID 1 in every sandbox and executes the calls that the host sends over the link.

The guest runs as uid 0 on its own interpreter (Debian bookworm's Python 3.11, shipped at ``/.sandlot``). It uses the standard
library and ``sandlot.protocol``, has one thread, and never blocks in a read or a write.

The guest is not a security boundary. Root inside the sandbox can replace the guest, so the host treats all bytes from the guest
as hostile.

Modules import in one direction only: ``main`` imports ``lifecycle``, and both import the services (``wake_scripts``, ``kernels``,
``process``, ``fs``, ``net``). The services import ``identity``, ``rpc``, ``streams``, ``connection`` and ``loop``, and these import
``sandlot.protocol``. The exception is ``process/accounts.py``, which ``identity`` imports too.

Constraints of gVisor and of checkpoints, and the files that deal with them:

- Imports make up most of the start-up time: the guest does not import asyncio, dataclasses, enum, typing or subprocess.
  ``protocol/fast_imports.py``; a test compares the imports with the modules that the interpreter contains.
- Waking another process takes 150 µs: writes are batched, and the output of a short cell is sent together with its result.
  ``connection.py``, ``kernels/cell.py``.
- A read into newly allocated memory takes 465 µs: all reads share one buffer. ``loop.py`` (``ReadBuffer``).
- fork takes 10 to 18 ms, vfork 1 ms: only programs on a terminal are started with fork, and every descriptor is close-on-exec.
  ``process/spawn.py``.
- The monotonic clock continues while a checkpoint lies on disk: timers use ``Loop.time``. ``loop.py``.
- If a descriptor becomes ready while a checkpoint is saved, epoll may never report the descriptor after the restore: at every
  handshake, all descriptors are registered in a new epoll instance. ``connection.py``, ``loop.py`` (``rearm``). For the same reason,
  the host sends nothing to the guest while a checkpoint is taken.
- The state of the NAT table is not in a checkpoint: connections to other hosts are reset before. ``net/capture.py``.
- PID 1 is not protected from signals, and a core size limit of 0 does not prevent a core handler from running. ``main.py``.
- A sandbox has at least two processors, and does not enforce affinities. ``process/affinity.py``.
- RLIMIT_NPROC does not limit root. ``process/pid_limit.py``. There is no OOM killer inside a sandbox. ``kernels/oom.py``.
- Set-uid bits are ignored. ``process/sudo.py``.
- close_range(2) may refuse its arguments, which GLib takes as fatal. ``sandlot/link/first_program.py``.
- open(2) with ``O_DIRECTORY | O_NOFOLLOW`` follows a symbolic link. ``fs/paths.py`` (``open_folder``).
- Terminals deliver neither SIGHUP nor SIGWINCH. ``process/procfs.py`` (``hang_up``), ``process/pty.py`` (``resize``).
- inotify may be missing. ``helpers/watch.py``.
- In a copy of a sandbox, random number generators start in the state of the original: every wake sets new entropy, and every kernel
  gets entropy of its own.
  ``identity.py``, ``kernel_programs/python/sandlot_kernel/randomness.py``.
"""

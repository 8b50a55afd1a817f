"""Files in a real sandbox: whole, as the user that was named, and never where a link leads astray."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.executions import Output
from sandlot.model.faults import Fault
from sandlot.model.specs import ProcessSpec, User, shell_argv
from tests.support.driver_sandboxes import GuestSession


async def read(inside: GuestSession, path: str, user: User = User.USER, offset: int = 0, length: int | None = None) -> bytes:
    reader = await inside.link.files.read(path, user=user, offset=offset, length=length)
    return b"".join([piece async for piece in reader])


async def test_names_may_be_odd(inside: GuestSession) -> None:
    path = "/workspace/ä ö\n'\"$(id)-🏝"
    await inside.link.files.write(path, b"odd")
    assert await read(inside, path) == b"odd"
    assert path.rpartition("/")[2] in [entry.name for entry in (await inside.link.files.list("/workspace")).entries]
    await inside.sh("touch /workspace/$'not-utf8-\\xff'")
    assert "not-utf8-?" in [entry.name for entry in (await inside.link.files.list("/workspace")).entries]


async def test_broken_upload_leaves_only_the_old_file(inside: GuestSession) -> None:
    await inside.link.files.write("/workspace/keep/file", b"old")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"x" * 200_000
        raise RuntimeError("the client went away")

    with pytest.raises(RuntimeError, match="went away"):
        await inside.link.files.write("/workspace/keep/file", breaks())
    assert await read(inside, "/workspace/keep/file") == b"old"
    for _ in range(100):
        if await inside.sh("ls -A keep") == "file\n":
            return
    pytest.fail("the unfinished file was left behind")


async def test_a_full_disk_is_said_and_loses_nothing(inside: GuestSession) -> None:
    await inside.link.files.write("/workspace/full/file", b"old")
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.write("/workspace/full/file", b"z" * (80 << 20))
    assert (refused.value.code, refused.value.fault) == (ErrorCode.DISK_FULL, Fault.LIMIT)
    assert await read(inside, "/workspace/full/file") == b"old"
    await inside.link.files.write("/workspace/full/other", b"room again")


async def test_write_in_place_keeps_inode_owner_mode_links_and_open_descriptors(inside: GuestSession) -> None:
    await inside.sh("mkdir -p in-place && cd in-place && echo old-old > file && chmod 666 file && ln file hard && ln -s file soft")
    before = await inside.sh("stat -c '%i %u %g %a %h' in-place/file")
    open_in_advance = "cd in-place; exec 3< file; touch opened; until [ -e written ]; do sleep 0.05; done; cat <&3"
    reader = await inside.link.processes.start(ProcessSpec(shell_argv(open_in_advance), timeout_s=60))
    await inside.sh("until [ -e in-place/opened ]; do sleep 0.05; done")
    await inside.link.files.write("/workspace/in-place/soft", b"new\n", user=User.ROOT, mode=0o600, in_place=True)
    await inside.link.files.write("/workspace/in-place/written", b"")
    assert b"".join([item.data async for item in reader if isinstance(item, Output)]) == b"new\n"
    assert await inside.sh("cd in-place; stat -c '%i %u %g %a %h' file; cat hard; readlink soft") == f"{before}new\nfile\n"


async def test_write_in_place_into_a_folder_of_another_user(inside: GuestSession) -> None:
    await inside.sh("mkdir -p /srv/in-place && echo old > /srv/in-place/file && chmod 666 /srv/in-place/file", user=User.ROOT)
    await inside.link.files.write("/srv/in-place/file", b"new", in_place=True)
    assert await read(inside, "/srv/in-place/file") == b"new"
    await inside.sh("echo old > /tmp/of-the-user")
    assert (await inside.link.files.write("/tmp/of-the-user", b"new", user=User.ROOT, in_place=True)).uid == 1000


async def test_write_in_place_on_a_full_disk_is_reported_and_leaves_a_part(inside: GuestSession) -> None:
    await inside.link.files.write("/workspace/full-in-place", b"old")
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.write("/workspace/full-in-place", b"z" * (80 << 20), in_place=True)
    assert (refused.value.code, refused.value.fault) == (ErrorCode.DISK_FULL, Fault.LIMIT)
    assert await read(inside, "/workspace/full-in-place", length=8) == b"zzzzzzzz"
    await inside.link.files.write("/workspace/full-in-place", b"room again", in_place=True)
    assert await read(inside, "/workspace/full-in-place") == b"room again"


async def test_write_in_place_refuses_other_kinds_of_files_and_never_blocks(inside: GuestSession) -> None:
    await inside.sh("mkfifo /tmp/in-place-fifo && ln -s /tmp/in-place-fifo /tmp/in-place-link && ln -s /etc/shadow /tmp/in-place-shadow")
    for path in ("/tmp/in-place-fifo", "/tmp/in-place-link", "/dev/zero", "/dev/null", "/workspace", "/run/sandlot/guest.sock"):
        with pytest.raises(SandlotError) as refused:
            await inside.link.files.write(path, b"x", user=User.ROOT, in_place=True)
        assert refused.value.code == (ErrorCode.PATH_IS_DIRECTORY if path == "/workspace" else ErrorCode.PATH_NOT_REGULAR), path
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.write("/tmp/in-place-shadow", b"x", in_place=True)
    assert refused.value.code == ErrorCode.PERMISSION_DENIED
    assert b"root:" in await read(inside, "/etc/shadow", user=User.ROOT)


async def test_modes_are_kept_and_can_be_set(inside: GuestSession) -> None:
    await inside.link.files.write("/workspace/tool", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert await inside.sh("./tool") == "ran\n"
    await inside.link.files.write("/workspace/tool", b"#!/bin/sh\necho again\n")
    assert await inside.sh("./tool") == "again\n"


async def test_the_user_reaches_what_the_user_may_and_root_the_rest(inside: GuestSession) -> None:
    for path in ("/etc/shadow", "/root/x"):
        with pytest.raises(SandlotError) as refused:
            await read(inside, path)
        assert refused.value.code == ErrorCode.PERMISSION_DENIED
    for path in ("/etc/new", "/etc/passwd", "/.sandlot/guest.zip"):
        with pytest.raises(SandlotError) as refused:
            await inside.link.files.write(path, b"")
        assert refused.value.code == ErrorCode.PERMISSION_DENIED
    assert b"root:" in await read(inside, "/etc/shadow", user=User.ROOT)


async def test_links_give_no_access_beyond_the_rights_of_the_user(inside: GuestSession) -> None:
    await inside.sh(
        "mkdir -p links && cd links && ln -s /etc/shadow s && ln -s /root r && ln -s /etc/new n && ln -s loop loop && ln -s ../tool ok; true"
    )
    for path in ("s", "r/x", "loop"):
        with pytest.raises(SandlotError):
            await read(inside, f"/workspace/links/{path}")
    for path in ("s", "r/x", "n"):
        with pytest.raises(SandlotError):
            await inside.link.files.write(f"/workspace/links/{path}", b"broken in")
    assert await inside.sh("test -e /etc/new && echo there || echo not", user=User.ROOT) == "not\n"
    entry = await inside.link.files.stat("/workspace/links/s", follow=False)
    assert (entry.kind, entry.target) == ("symlink", "/etc/shadow")


async def test_removing_a_tree_removes_links_and_not_what_they_point_to(inside: GuestSession) -> None:
    await inside.sh(
        "mkdir -p victim tree/a/b && echo safe > victim/file && ln -s /workspace/victim tree/a/link && for i in $(seq 300); do : > tree/a/b/$i; done"
    )
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.remove("/workspace/tree")
    assert refused.value.code == ErrorCode.PATH_NOT_EMPTY
    assert await inside.link.files.remove("/workspace/tree", recursive=True) == 304
    assert await read(inside, "/workspace/victim/file") == b"safe\n"


async def test_special_files_are_refused_and_never_block(inside: GuestSession) -> None:
    await inside.sh("mkfifo /tmp/fifo")
    for path in ("/tmp/fifo", "/dev/zero", "/workspace", "/run/sandlot/guest.sock"):
        with pytest.raises(SandlotError) as refused:
            await read(inside, path)
        assert refused.value.code == (ErrorCode.PATH_IS_DIRECTORY if path == "/workspace" else ErrorCode.PATH_NOT_REGULAR), path
        with pytest.raises(SandlotError):
            await inside.link.files.write(path, b"x")
    assert b"MemTotal" in await read(inside, "/proc/meminfo")


async def test_file_with_several_hard_links_is_written_in_place(inside: GuestSession) -> None:
    await inside.sh("mkdir names && cd names && echo old-old > first && ln first second && ln -s second soft && chmod 640 first")
    before = await inside.sh("stat -c '%i %u %h' names/first")
    for path, mode in (("first", None), ("second", 0o600), ("soft", None)):
        entry = await inside.link.files.write(f"/workspace/names/{path}", path.encode(), mode=mode)
        assert entry.mode == (0o640 if path == "first" else 0o600)
        assert await inside.sh("cd names; stat -c '%i %u %h' first; cat first second") == f"{before}{path}{path}"
    await inside.sh("rm names/second")
    await inside.link.files.write("/workspace/names/first", b"alone")
    assert not (await inside.sh("stat -c '%i %u %h' names/first")).startswith(before.split()[0] + " ")


async def test_unchanged_file_of_the_image_is_replaced_whatever_its_link_count(inside: GuestSession) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x" * 200_000
        raise RuntimeError

    before = await read(inside, "/etc/debian_version")
    with pytest.raises(RuntimeError):
        await inside.link.files.write("/etc/debian_version", breaks(), user=User.ROOT)
    assert await read(inside, "/etc/debian_version") == before


async def test_hard_links_to_files_of_others_need_their_permission(inside: GuestSession) -> None:
    await inside.sh("mkdir -m 777 /srv/links && cd /srv/links && echo old > first && ln first /workspace/of-root", user=User.ROOT)
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.write("/workspace/of-root", b"new")
    assert refused.value.code == ErrorCode.PERMISSION_DENIED
    await inside.sh("chmod 666 /srv/links/first", user=User.ROOT)
    with pytest.raises(SandlotError) as refused:
        await inside.link.files.write("/workspace/of-root", b"new", mode=0o600)
    assert refused.value.code == ErrorCode.PERMISSION_DENIED
    assert await inside.sh("cat /srv/links/first") == "old\n"
    await inside.link.files.write("/workspace/of-root", b"new")
    assert await inside.sh("cat /srv/links/first") == "new"

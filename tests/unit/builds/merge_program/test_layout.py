"""Folders, accounts and files that the merge program adds to images, odd ones included, and the same files as those of built-in templates."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandlot.builds.merge_program import main as program
from sandlot.builds.merge_program.files import Files, Node
from sandlot.images import command_lines, rootfs_layout, tree
from sandlot.protocol import tar
from tests.support.image_layers import FOLDER, SYMLINK, TIME_S, Entry, entry, job_of, layer_of

ROOT_LINE, USER_LINE = "root:x:0:0:root:/root:/bin/sh\n", "user:x:1000:1000::/home/user:/bin/sh\n"


def furnish(folder: Path, *entries: Entry) -> tuple[Files, list[str]]:
    """Return the file system of one layer, and the lines of the program."""
    lines: list[str] = []
    return program.merge(job_of(folder, layer_of(*entries)), lines.append)[0], lines


def node(files: Files, path: str) -> Node:
    found = files.resolve(path)[2]
    assert found is not None, path
    return found


def text(files: Files, path: str) -> str:
    content = node(files, path).content
    assert content is not None
    return content.decode("utf-8", "surrogateescape")


def test_empty_image_gets_everything(tmp_path: Path) -> None:
    files, lines = furnish(tmp_path)
    for path, (mode, owner) in rootfs_layout.FOLDERS.items():
        folder = node(files, path)
        assert (folder.is_folder, folder.mode, folder.uid, folder.gid) == (True, mode, owner, owner), path
    assert text(files, "/etc/passwd") == ROOT_LINE + USER_LINE
    assert text(files, "/etc/group") == "root:x:0:\nuser:x:1000:\n"
    assert files.resolve("/etc/shadow")[2] is None
    assert text(files, "/usr/bin/sudo") == rootfs_layout.SUDO
    assert node(files, "/usr/bin/sudo").mode == 0o755
    assert text(files, "/etc/hostname") == "sandbox\n"
    assert node(files, "/etc/hosts").mtime_ns == command_lines.BUILD_TIME_S * 10**9
    assert not [line for line in lines if "warning" in line]


@pytest.mark.parametrize(
    "before, after",
    [
        ("root:x:0:0::/root:/bin/bash", f"root:x:0:0::/root:/bin/bash\n{USER_LINE}"),  # without a line break at its end
        ("", ROOT_LINE + USER_LINE),
        ("admin:x:0:0::/:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n", "admin:x:0:0::/:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"),
        (f"{ROOT_LINE}user:x:1001:1001::/:/bin/sh\n", f"{ROOT_LINE}user:x:1001:1001::/:/bin/sh\n"),
        (f"\udcff\n:::\nx\n{ROOT_LINE}", f"\udcff\n:::\nx\n{ROOT_LINE}{USER_LINE}"),
        ("#root:x:0:0\n", f"#root:x:0:0\n{USER_LINE}"),  # the id is taken, by whatever that line is
    ],
)
def test_accounts_are_added_unless_the_image_has_their_name_or_id(tmp_path: Path, before: str, after: str) -> None:
    files, _ = furnish(tmp_path, entry("etc/passwd", before.encode("utf-8", "surrogateescape"), mode=0o444))
    assert text(files, "/etc/passwd") == after
    assert node(files, "/etc/passwd").mode == 0o444


def test_shadow_gets_the_user_if_the_image_has_one(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, entry("etc/shadow", b"root:*:1:::::\n", mode=0o640, owner=42))
    assert text(files, "/etc/shadow") == "root:*:1:::::\nuser:*:19000:0:99999:7:::\n"
    assert (node(files, "/etc/shadow").mode, node(files, "/etc/shadow").gid) == (0o640, 42)


def test_shell_of_the_user_is_bash_if_the_image_has_one(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, entry("usr/bin/bash", b"x"), entry("bin", kind=SYMLINK, target="usr/bin"))
    assert text(files, "/etc/passwd").endswith(":/home/user:/bin/bash\n")
    assert node(files, "/").children["bin"].kind == tar.SYMLINK


@pytest.mark.parametrize(
    "entries",
    [
        [entry("etc/passwd", kind=FOLDER)],
        [entry("etc/other", b"root:x:0:0::/:/bin/sh\n"), entry("etc/passwd", kind=SYMLINK, target="other")],
        [entry("etc/passwd", b"x" * ((1 << 20) + 1))],
    ],
    ids=["folder", "link to another name", "too large"],
)
def test_table_of_accounts_that_cannot_be_changed_is_left_with_a_warning(tmp_path: Path, entries: list[Entry]) -> None:
    _, lines = furnish(tmp_path, *entries)
    assert "warning: did not add accounts to /etc/passwd, which is no file or is too large" in lines


def test_linked_table_of_accounts_is_changed_in_its_place(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, entry("lib/passwd", ROOT_LINE.encode()), entry("etc/passwd", kind=SYMLINK, target="../lib/passwd"))
    assert text(files, "/lib/passwd") == ROOT_LINE + USER_LINE
    assert node(files, "/etc").children["passwd"].kind == tar.SYMLINK


@pytest.mark.parametrize("target", ["nowhere", "loop", "/a/b/c"])
def test_dangling_links_in_place_of_folders_are_replaced(tmp_path: Path, target: str) -> None:
    links = [entry(name, kind=SYMLINK, target=target) for name in ("home", "etc", "loop", "workspace", "tmp", "proc")]
    files, _ = furnish(tmp_path, *links)
    for path in ("/home/user/.local/bin", "/etc", "/workspace", "/tmp", "/proc"):
        assert node(files, path).is_folder
    assert text(files, "/etc/passwd") == ROOT_LINE + USER_LINE
    assert all(files.root.children[name].is_folder for name in ("home", "etc", "workspace", "tmp", "proc"))
    assert "a" not in files.root.children


def test_files_in_place_of_folders_are_replaced(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, *(entry(name, b"x") for name in ("home", "etc", "usr", "workspace", "dev", "tmp")))
    assert node(files, "/home/user").uid == command_lines.USER_ID
    assert text(files, "/usr/bin/sudo") == rootfs_layout.SUDO


def test_links_to_folders_are_followed_inside_of_the_image(tmp_path: Path) -> None:
    files, _ = furnish(
        tmp_path,
        entry("var/home", kind=FOLDER, mode=0o711),
        entry("home", kind=SYMLINK, target="../../../var/home"),
        entry("root", kind=SYMLINK, target="/var/roothome"),
        entry("var/roothome", kind=FOLDER, mode=0o750, owner=7),
    )
    assert files.root.children["home"].kind == tar.SYMLINK
    assert node(files, "/var/home/user").uid == command_lines.USER_ID
    assert (node(files, "/var/home").mode, node(files, "/root").mode, node(files, "/root").uid) == (0o711, 0o750, 7)


def test_system_folders_are_emptied_and_temporary_files_stay(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, entry("proc/x"), entry("sys/x"), entry("dev/x"), entry("tmp/x"), entry("tmp", kind=FOLDER, mode=0o700))
    assert [list(node(files, path).children) for path in ("/proc", "/sys", "/dev", "/tmp")] == [[], [], [], ["x"]]
    assert node(files, "/tmp").mode == 0o1777


def test_folders_of_the_user_become_those_of_the_user(tmp_path: Path) -> None:
    files, _ = furnish(tmp_path, entry("workspace", kind=FOLDER), entry("workspace/file", b"x"))
    assert (node(files, "/workspace").uid, node(files, "/workspace/file").uid) == (command_lines.USER_ID, 0)


def test_home_gets_the_skeleton_but_no_file_is_replaced(tmp_path: Path) -> None:
    files, _ = furnish(
        tmp_path,
        entry("etc/skel/.bashrc", b"new"),
        entry("etc/skel/.profile", b"new"),
        entry("etc/skel/folder/x", b"new"),
        entry("home/user/.profile", b"old"),
    )
    assert (text(files, "/home/user/.bashrc"), node(files, "/home/user/.bashrc").uid) == ("new", command_lines.USER_ID)
    assert (node(files, "/home/user/.profile").size, node(files, "/home/user/.profile").mtime_ns) == (3, TIME_S * 10**9)
    assert "folder" not in node(files, "/home/user").children


def test_guest_of_the_image_is_replaced_by_ours(tmp_path: Path) -> None:
    guest = str(tmp_path / "guest").strip("/")
    files, _ = furnish(tmp_path, entry(f"{guest}/evil", b"x"), entry(".dockerenv"), entry("etc/resolv.conf", b"nameserver 1.2.3.4"))
    placed = files.root.children[guest]
    assert set(placed.children) == {"guest.zip", "volumes"}
    assert placed.children["guest.zip"].path == str(tmp_path / "guest/guest.zip")
    assert files.resolve("/.dockerenv")[2] is None
    assert files.resolve("/etc/resolv.conf")[2] is None


def test_layout_equals_that_of_builtin_templates(tmp_path: Path) -> None:
    files = {
        "etc/passwd": b"root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false",
        "etc/group": b"root:x:0:\nadm:x:4:",
        "etc/shadow": b"root:*:19000:0:99999:7:::\n",
        "etc/skel/.profile": b"p\n",
        "etc/skel/.bashrc": b"b\n",
        "usr/bin/sudo": b"of the image",
        "bin/bash": b"",
    }
    merged, _ = furnish(tmp_path, *(entry(path, content, mode=0o640 if path == "etc/shadow" else 0o644) for path, content in files.items()))
    folder = tmp_path / "tree"
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(0o640 if path == "etc/shadow" else 0o644)
    rootfs_layout.apply_layout(folder, rootfs_layout.FILES)
    (folder / "tmp/.X11-unix").mkdir()  # the root image gets it (images/erofs_image.py)
    (folder / "tmp/.X11-unix").chmod(0o1777)
    expected = {
        path: (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, (folder / path).read_bytes() if stat.S_ISREG(status.st_mode) else None)
        for path, status in tree.walk(folder)
    }
    guest = str(tmp_path / "guest").strip("/")
    added = {path: each for path, each in merged.walk() if path and not path.startswith(guest)}
    assert {path: (each.mode, each.uid, each.gid, each.content) for path, each in added.items()} == expected

"""Layout of a root file system, and removal of traces of the host."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandlot.images import recipe, rootfs_layout
from sandlot.model.errors import InvalidRequestError


def status(root: Path, path: str) -> tuple[int, int, int]:
    found = (root / path).lstat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


def test_empty_tree_gets_user_folders_and_sudo(tmp_path: Path) -> None:
    rootfs_layout.apply_layout(tmp_path, {"/etc/deep/er/x.conf": "x\n", "/usr/local/bin/run": "#!/bin/sh\n"})
    assert (tmp_path / "etc/passwd").read_text(encoding="utf-8") == "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"
    assert (tmp_path / "etc/group").read_text(encoding="utf-8") == "root:x:0:\nuser:x:1000:\n"
    assert status(tmp_path, "etc/shadow")[0] == 0o640
    for folder in ("home/user", "workspace", "output", "home/user/.local/bin"):
        assert status(tmp_path, folder) == (0o755, 1000, 1000)
    for folder in ("tmp", "var/tmp"):
        assert status(tmp_path, folder) == (0o1777, 0, 0)
    assert status(tmp_path, "root") == (0o700, 0, 0)
    assert status(tmp_path, "usr/bin/sudo") == (0o755, 0, 0)
    assert (tmp_path / "usr/bin/sudo").read_text(encoding="utf-8") == (
        '#!/bin/sh\nexec /.sandlot/lib/ld.so --library-path /.sandlot/lib /.sandlot/bin/python3 -SI /.sandlot/helpers/sudo.py "$@"\n'
    )
    assert (tmp_path / "etc/deep/er/x.conf").read_text(encoding="utf-8") == "x\n"
    assert status(tmp_path, "etc/deep/er/x.conf") == (0o644, 0, 0)
    assert status(tmp_path, "usr/local/bin/run") == (0o755, 0, 0)


def test_sudo_of_an_image_belongs_to_one_generation() -> None:
    """A cached image keeps its sudo beside a newer guest layer, so a change of sudo needs a higher generation."""
    assert (recipe.GENERATION, rootfs_layout.SUDO) == (
        4,
        '#!/bin/sh\nexec /.sandlot/lib/ld.so --library-path /.sandlot/lib /.sandlot/bin/python3 -SI /.sandlot/helpers/sudo.py "$@"\n',
    )


def test_existing_accounts_and_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").touch()
    (tmp_path / "etc/skel").mkdir(parents=True)
    (tmp_path / "etc/skel/.profile").write_text("p\n", encoding="utf-8")
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false", encoding="utf-8")
    (tmp_path / "usr/lib/python3.11").mkdir(parents=True)
    rootfs_layout.apply_layout(tmp_path, {})
    assert (tmp_path / "etc/passwd").read_text(encoding="utf-8").splitlines() == [
        "root:x:0:0:root:/root:/bin/bash",
        "daemon:x:1:1::/:/bin/false",
        "user:x:1000:1000::/home/user:/bin/bash",
    ]
    assert status(tmp_path, "home/user/.profile") == (0o644, 1000, 1000)
    # A folder that only user's python would look into: user's sys.path would differ from root's.
    assert not (tmp_path / "home/user/.local/lib").exists()


def test_layout_is_not_written_through_a_linked_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "passwd").write_text("the host's\n", encoding="utf-8")
    (root / "etc").symlink_to(outside)
    with pytest.raises(InvalidRequestError, match="etc"):
        rootfs_layout.apply_layout(root, {})
    assert (outside / "passwd").read_text(encoding="utf-8") == "the host's\n"
    assert [path.name for path in outside.iterdir()] == ["passwd"]


def test_linked_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "etc").mkdir(parents=True)
    outside.write_text("the host's\n", encoding="utf-8")
    (root / "etc/pip.conf").symlink_to(outside)
    rootfs_layout.write_file(root, "/etc/pip.conf", "ours\n", 0o600)
    assert outside.read_text(encoding="utf-8") == "the host's\n"
    assert (root / "etc/pip.conf").read_text(encoding="utf-8") == "ours\n"
    assert status(root, "etc/pip.conf") == (0o600, 0, 0)


LEFTOVERS = [
    "etc/resolv.conf",
    "etc/machine-id",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/passwd-",
    "var/log/apt/term.log",
    "var/cache/apt/archives/x.deb",
    "var/lib/apt/lists/mirror_InRelease",
    "root/.cache/pip/x",
    "tmp/scratch/x",
    "run/x.pid",
]


def test_build_traces_are_removed(tmp_path: Path) -> None:
    rootfs_layout.apply_layout(tmp_path, {})
    for path in LEFTOVERS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("mirror.example", encoding="utf-8")
    (tmp_path / "etc/hostname").write_text("mirror.example", encoding="utf-8")
    rootfs_layout.create_device_nodes(tmp_path)
    assert (tmp_path / "dev/null").is_char_device()

    rootfs_layout.remove_build_traces(tmp_path)
    assert [path for path in LEFTOVERS if (tmp_path / path).exists()] == []
    assert "mirror.example" not in "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file())
    for folder in ("dev", "tmp", "run"):
        assert list((tmp_path / folder).iterdir()) == []
    assert (tmp_path / "var/log/apt").is_dir()
    assert (tmp_path / "etc/hostname").read_text(encoding="utf-8") == "sandbox\n"
    assert "localhost" in (tmp_path / "etc/hosts").read_text(encoding="utf-8")


def test_apt_sources_of_the_build_are_removed_and_those_of_the_recipe_stay(tmp_path: Path) -> None:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text("deb http://mirror.example x main", encoding="utf-8")
    (tmp_path / "etc/apt/sources.list.d/0000image.sources").write_text("URIs: http://mirror.example", encoding="utf-8")
    rootfs_layout.remove_apt_sources(tmp_path)
    assert list((tmp_path / "etc/apt").iterdir()) == []
    rootfs_layout.apply_layout(tmp_path, {"/etc/apt/sources.list.d/own.sources": "URIs: http://127.0.0.1\n"})
    rootfs_layout.remove_build_traces(tmp_path)
    assert [path.name for path in (tmp_path / "etc/apt/sources.list.d").iterdir()] == ["own.sources"]
    assert not (tmp_path / "etc/apt/sources.list").exists()


def test_usr_local_is_given_to_user_without_following_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.touch()
    rootfs_layout.chown_usr_local(root)
    assert not root.exists()
    (root / "usr/local/lib/deep").mkdir(parents=True)
    (root / "usr/local/lib/deep/tool").touch()
    (root / "usr/local/lib/deep/tool").chmod(0o755)
    (root / "usr/local/lib/out").symlink_to(outside)
    (root / "usr/share").mkdir()
    rootfs_layout.chown_usr_local(root)
    for path in ("usr/local", "usr/local/lib", "usr/local/lib/deep"):
        assert status(root, path)[1:] == (1000, 1000)
    assert status(root, "usr/local/lib/deep/tool") == (0o755, 1000, 1000)
    assert status(root, "usr/local/lib/out")[1:] == (1000, 1000)
    assert outside.stat().st_uid == 0
    for path in ("usr", "usr/share"):
        assert status(root, path)[1:] == (0, 0)

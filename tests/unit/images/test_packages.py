"""Packages of a tree: of Debian, Python and npm, also in trees that are hostile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.images import packages
from sandlot.images.package_changes import PackageChange, changes
from sandlot.images.packages import Description, described, installed

STATUS = """Package: bash
Status: install ok installed
Version: 5.2-1
Description: shell
 Version: 9

Package: gone
Status: deinstall ok config-files
Version: 1

Package: incomplete
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "var/lib/dpkg/status", STATUS)
    write(tmp_path / "usr/lib/python3/dist-packages/Some_Thing-1.2.dist-info/METADATA", "Name: Some_Thing\nVersion: 1.2\n\nName: body\n")
    write(tmp_path / "opt/old.egg-info/PKG-INFO", "Name: old\nVersion: 0.1\n")
    write(tmp_path / "usr/lib/node_modules/left/package.json", '{"name": "left", "version": "3.0.0"}')
    write(tmp_path / "usr/lib/node_modules/@scope/right/package.json", '{"name": "@scope/right", "version": "1.0.0"}')
    write(tmp_path / "usr/lib/node_modules/left/test/package.json", '{"name": "fixture", "version": "0.0.0"}')
    return tmp_path


def test_packages_of_all_kinds_are_found(tree: Path) -> None:
    assert installed(str(tree)) == [
        ("deb", "bash", "5.2-1"),
        ("npm", "@scope/right", "1.0.0"),
        ("npm", "left", "3.0.0"),
        ("pypi", "old", "0.1"),
        ("pypi", "some-thing", "1.2"),
    ]


COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: GPL-2+

Files: debian/*
License: Expat
 Permission is hereby granted
 License: of the text
"""


def test_packages_name_their_licences_and_source_packages(tmp_path: Path) -> None:
    fields = {"bash": "", "gcc-12-base": "Source: gcc-12\n", "libgcc-s1": "Source: gcc-12 (12.2-1)\n", "prose": "", "outside": ""}
    write(tmp_path / "var/lib/dpkg/status", "\n".join(f"Package: {name}\nVersion: 2\n{more}" for name, more in fields.items()))
    docs = tmp_path / "usr/share/doc"
    write(docs / "bash/copyright", COPYRIGHT)
    write(docs / "gcc-12-base/copyright", COPYRIGHT.replace("Expat", "GPL-3+"))
    (docs / "libgcc-s1").symlink_to("gcc-12-base")
    write(docs / "prose/copyright", "License: it is free software\n")
    write(tmp_path / "secret/copyright", COPYRIGHT)
    (docs / "outside").symlink_to(tmp_path / "secret")
    write(tmp_path / "node_modules/left/package.json", '{"name": "left", "version": "3", "license": "MIT"}')
    write(tmp_path / "node_modules/old/package.json", '{"name": "old", "version": "1", "license": {"type": "MIT"}}')
    write(tmp_path / "a.dist-info/METADATA", "Name: a\nVersion: 1\nLicense: a long text\nLicense-Expression: BSD-3-Clause\n")
    assert described(str(tmp_path)) == [
        Description("deb", "bash", "2", "bash", "2", ("Expat", "GPL-2+")),
        Description("deb", "gcc-12-base", "2", "gcc-12", "2", ("GPL-2+", "GPL-3+")),
        Description("deb", "libgcc-s1", "2", "gcc-12", "12.2-1", ("GPL-2+", "GPL-3+")),
        Description("deb", "outside", "2", "outside", "2"),
        Description("deb", "prose", "2", "prose", "2"),
        Description("npm", "left", "3", licences=("MIT",)),
        Description("npm", "old", "1"),
        Description("pypi", "a", "1", licences=("BSD-3-Clause",)),
    ]
    assert installed(str(tmp_path))[0] == ("deb", "bash", "2")


def test_image_without_a_package_manager_has_one_file_for_each_package(tmp_path: Path) -> None:
    write(tmp_path / "var/lib/dpkg/status.d/libc6", "Package: libc6\nVersion: 2.36\n")
    assert installed(str(tmp_path)) == [("deb", "libc6", "2.36")]


def test_hostile_files_are_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = installed(str(tree))
    secret = tree.parent / "secret"
    secret.write_text("Name: secret\nVersion: 1\n")
    for number, text in enumerate(("[" * 100_000, "{", "[]", '{"name": 1, "version": []}', "\udcff")):
        write(tree / f"node_modules/bad{number}/package.json", text.encode("utf-8", "surrogateescape").decode("latin-1"))
    (tree / "a.dist-info").mkdir()
    (tree / "a.dist-info/METADATA").symlink_to(secret)
    (tree / "b.dist-info").mkdir()
    os.mkfifo(tree / "b.dist-info/METADATA")
    (tree / "c.dist-info").symlink_to(tree / "opt/old.egg-info")
    write(tree / "d.dist-info/METADATA", "Name: large\nVersion: 1\n" + "x" * 4096)
    monkeypatch.setattr(packages, "MAX_FILE_BYTES", 4096)
    assert installed(str(tree)) == expected


def test_number_of_packages_is_limited(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_PACKAGES", 2)
    assert len(installed(str(tree))) == 2
    monkeypatch.setattr(packages, "MAX_ENTRIES", 0)
    assert installed(str(tree)) == [("deb", "bash", "5.2-1")]


def test_changes_name_old_and_new_versions() -> None:
    old = [("deb", "a", "1"), ("deb", "b", "1"), ("npm", "c", "1"), ("npm", "c", "2")]
    new = [("deb", "a", "1"), ("deb", "b", "2"), ("npm", "c", "2"), ("pypi", "d", "4")]
    assert changes(old, new) == [PackageChange("deb", "b", "1", "2"), PackageChange("npm", "c", "1, 2", "2"), PackageChange("pypi", "d", "", "4")]


def test_text_of_the_module_is_a_program(tmp_path: Path) -> None:
    program = Path(packages.__file__).read_text().replace('described("/")', f"described({str(tmp_path)!r})")
    write(tmp_path / "node_modules/left/package.json", '{"name": "left", "version": "3.0.0"}')
    subprocess.run([sys.executable, "-SI", "-c", program, str(tmp_path / "result")], check=True)
    assert json.loads((tmp_path / "result").read_text()) == [["npm", "left", "3.0.0", "", "", []]]

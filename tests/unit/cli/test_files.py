"""Locations of ``sandlot cp``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli.files import CopyLocation, local_target, parse_location

ID = "sb-abcd-abcdefghijklmnop"


def test_location_of_a_sandbox_or_of_this_machine(subtests: pytest.Subtests) -> None:
    for word, expected in (
        (f"{ID}:/a/b", CopyLocation("/a/b", ID)),
        (f"{ID}:b", CopyLocation("b", ID)),
        (f"{ID}:b/", CopyLocation("b", ID, is_directory=True)),
        (f"{ID}:", CopyLocation(".", ID, is_directory=True)),
        (f"{ID}:.", CopyLocation(".", ID, is_directory=True)),
        (f"{ID}:a:b", CopyLocation("a:b", ID)),
        ("name:b", CopyLocation("b", "name")),
        ("./a:b", CopyLocation("./a:b")),
        ("/a:b", CopyLocation("/a:b")),
        (":b", CopyLocation(":b")),
        ("/a/b/", CopyLocation("/a/b/", is_directory=True)),
        (ID, CopyLocation(ID)),
    ):
        with subtests.test(word=word, expected=expected):
            assert parse_location(word) == expected


def test_copy_into_a_directory_stays_inside_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for word, name in (("b", "b"), ("a/b/", "b"), ("..", ""), ("a/..", "workspace"), ("/a/b/../..", ""), ("/", ""), ("../../x", "x")):
        for slash in ("", "/"):
            with subtests.test(word=word, name=name, slash=slash):
                assert local_target(parse_location(f"{ID}:{word}"), parse_location(f"{tmp_path}{slash}"), "/workspace") == tmp_path / name

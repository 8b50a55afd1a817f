"""Which side of `sandlot cp` is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli import copy
from sandlot.cli.copy import Place, place

ID = "sb-abcd-abcdefghijklmnop"


def test_a_place(subtests: pytest.Subtests) -> None:
    for word, expected in (
        (f"{ID}:/a/b", Place("/a/b", ID)),
        (f"{ID}:b", Place("/workspace/b", ID)),
        (f"{ID}:b/", Place("/workspace/b", ID, into=True)),
        (f"{ID}:", Place("/workspace", ID, into=True)),
        (f"{ID}:.", Place("/workspace", ID, into=True)),
        (f"{ID}:a:b", Place("/workspace/a:b", ID)),
        ("a:b", Place("a:b")),
        ("sb-abcd:x", Place("sb-abcd:x")),
        ("/a/b/", Place("/a/b/", into=True)),
        (ID, Place(ID)),
    ):
        with subtests.test(word=word, expected=expected):
            assert place(word) == expected


def test_a_folder_takes_in_what_is_copied_and_nothing_lies_beside_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for word, name in (("b", "b"), ("a/b/", "b"), ("..", ""), ("a/..", "workspace"), ("/a/b/../..", ""), ("/", ""), ("../../x", "x")):
        for slash in ("", "/"):
            with subtests.test(word=word, name=name, slash=slash):
                assert copy.on_this_machine(place(f"{ID}:{word}"), place(f"{tmp_path}{slash}")) == tmp_path / name

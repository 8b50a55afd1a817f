"""Which side of `sandlot cp` is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli.fs import copy
from sandlot.cli.fs.copy import Place, place

ID = "sb-abcd-abcdefghijklmnop"


@pytest.mark.parametrize(
    "word, expected",
    [
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
    ],
)
def test_a_place(word: str, expected: Place) -> None:
    assert place(word) == expected


@pytest.mark.parametrize("word,name", [("b", "b"), ("a/b/", "b"), ("..", ""), ("a/..", "workspace"), ("/a/b/../..", ""), ("/", ""), ("../../x", "x")])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_takes_in_what_is_copied_and_nothing_lies_beside_it(tmp_path: Path, word: str, name: str, slash: str) -> None:
    assert copy.on_this_machine(place(f"{ID}:{word}"), place(f"{tmp_path}{slash}")) == tmp_path / name


@pytest.mark.parametrize("word,name", [("..", "a"), (".", "b"), ("c/..", "b"), ("c", "c")])
def test_so_does_a_folder_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert copy.inside(place(word), "/workspace/in") == f"/workspace/in/{name}"

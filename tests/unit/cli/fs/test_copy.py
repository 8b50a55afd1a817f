"""Which side of `sandlot cp` is which."""

from __future__ import annotations

import pytest

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

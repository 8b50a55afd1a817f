"""Project pages of a Python index, and the table of their files."""

from __future__ import annotations

from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.index_page import FetchedInput
from sandlot.egress.packages.registries.pypi_index import JSON_TYPE, IndexFile, parse_pages
from sandlot.egress.packages.registries.pypi_pages import as_html, as_json, as_table, find_source

A, B = "a" * 64, "b" * 64
WHEEL = IndexFile(
    "pkg-1.0+l-py3-none-any.whl", ("https://u:p@one.example/w?token=1",), {"sha256": A}, '>=3, <"4"', "no & <good>", {"sha256": B}, 9, "T"
)
BARE = IndexFile("pkg-1.0.tar.gz", ("file:///opt/x",), {"md5": "x"}, metadata=True)
FILES = [WHEEL, BARE]
BASE = "http://cache/pypi/simple/pkg/"


def test_html_and_json_pages_are_equal_and_link_only_to_the_cache() -> None:
    pages = [FetchedInput(BASE, JSON_TYPE, as_json("pkg", FILES, None)), FetchedInput(BASE, "text/html", as_html("pkg", FILES))]
    for page in pages:
        for secret in (b"one.example", b"token", b"/opt", b"md5"):
            assert secret not in page.body
    from_json, from_html = (parse_pages([page], "pkg")[0] for page in pages)
    assert from_json[0].urls == from_html[0].urls == (f"http://cache/pypi/files/pkg/sha256-{A}/sha256-{B}/pkg-1.0%2Bl-py3-none-any.whl",)
    assert from_json[1].urls == from_html[1].urls == ("http://cache/pypi/files/pkg/unknown/unknown/pkg-1.0.tar.gz",)
    for one, two, given in zip(from_json, from_html, FILES, strict=True):
        for name in ("filename", "digest", "requires_python", "yanked", "metadata"):
            assert getattr(one, name) == getattr(two, name) == getattr(given, name), name
    assert (from_json[0].size, from_json[0].upload_time) == (9, "T")


def test_source_is_found_only_by_the_whole_name() -> None:
    table = as_table(FILES)
    place = find_source(table, WHEEL.filename)
    assert place is not None
    assert (place.urls, place.digest, place.metadata, place.has_metadata) == (WHEEL.urls, Digest("sha256", A), Digest("sha256", B), True)
    bare = find_source(table, BARE.filename)
    assert bare is not None
    assert (bare.digest, bare.metadata, bare.has_metadata) == (None, None, True)
    for name in ("pkg-1.0", "kg-1.0.tar.gz", "", "pkg-1.0.tar.gz\t"):
        assert find_source(table, name) is None

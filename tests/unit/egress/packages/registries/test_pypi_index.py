"""Parsing and merging pages of Python's simple indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sandlot.egress.packages.index_page import FetchedInput
from sandlot.egress.packages.registries.pypi_index import JSON_TYPE, IndexFile, is_project_name, normalize, parse_pages

A, B, C = "a" * 64, "b" * 64, "c" * 64


def html(text: str, url: str = "https://one.example/simple/pkg/", **more: bool) -> FetchedInput:
    return FetchedInput(url, "text/html", text.encode(), **more)


def as_json(*files: Mapping[str, object], url: str = "https://one.example/simple/pkg/", **more: object) -> FetchedInput:
    return FetchedInput(url, JSON_TYPE, json.dumps({"meta": {"api-version": "1.1"}, "name": "pkg", "files": files, **more}).encode())


def only(*pages: FetchedInput) -> IndexFile:
    (found,), _ = parse_pages(pages, "pkg")
    return found


@pytest.mark.parametrize("text, expected", [("Pkg", "pkg"), ("a_b.c--d", "a-b-c-d"), ("x", "x")])
def test_name_is_normalized(text: str, expected: str) -> None:
    assert is_project_name(text)
    assert normalize(text) == expected


@pytest.mark.parametrize("text", ["", "-a", "a-", "a/b", "a b", "é", "a" * 200, ".."])
def test_invalid_name_is_refused(text: str) -> None:
    assert not is_project_name(text)


def test_attributes_of_a_file_are_read_from_html() -> None:
    found = only(
        html(
            f'<a href="../../f/pkg-1.0-py3-none-any.whl#sha256={A.upper()}" data-requires-python="&gt;=3.9" data-yanked="broken" '
            f'data-core-metadata="sha256={B}" data-gpg-sig="true">pkg</a>'
        )
    )
    assert found == IndexFile(
        "pkg-1.0-py3-none-any.whl", ("https://one.example/f/pkg-1.0-py3-none-any.whl",), {"sha256": A}, ">=3.9", "broken", {"sha256": B}
    )


def test_html_with_a_base_old_metadata_attribute_and_quoted_name_is_read() -> None:
    found = only(html('<base href="https://files.example/x/"><a href="pkg-1.0%2Blocal.tar.gz" data-dist-info-metadata="true" data-yanked>x</a>'))
    assert (found.filename, found.urls) == ("pkg-1.0+local.tar.gz", ("https://files.example/x/pkg-1.0%2Blocal.tar.gz",))
    assert (found.metadata, found.yanked, found.digest) == (True, True, None)


def test_attributes_of_a_file_are_read_from_json() -> None:
    words = {
        "filename": "pkg-1.0.tar.gz", "url": "/f/pkg-1.0.tar.gz", "hashes": {"sha256": A}, "requires-python": ">=3", "yanked": "why",
        "core-metadata": {"sha256": B}, "size": 5, "upload-time": "2026-01-01T00:00:00Z", "provenance": "https://elsewhere.example/",
    }  # fmt: skip
    assert only(as_json(words)) == IndexFile(
        "pkg-1.0.tar.gz", ("https://one.example/f/pkg-1.0.tar.gz",), {"sha256": A}, ">=3", "why", {"sha256": B}, 5, "2026-01-01T00:00:00Z"
    )


@pytest.mark.parametrize("value, expected", [(True, True), (False, None), ({}, True), (None, None)])
def test_every_form_of_metadata_is_read_from_json(value: object, expected: object) -> None:
    assert only(as_json({"filename": "pkg-1.tar.gz", "url": "x", "dist-info-metadata": value})).metadata == expected


def test_first_index_describes_a_file_and_equal_files_add_urls() -> None:
    first = as_json(
        {"filename": "pkg-1.tar.gz", "url": "u", "hashes": {"sha256": A}}, {"filename": "pkg-2.tar.gz", "url": "u", "hashes": {"sha256": A}}
    )
    second = html(
        f'<a href="pkg-1.tar.gz#sha256={A}"></a><a href="pkg-2.tar.gz#sha256={B}"></a><a href="pkg-3.tar.gz"></a>', "file:///opt/simple/pkg/"
    )
    found, versions = parse_pages([first, second], "pkg")
    assert [each.filename for each in found] == ["pkg-1.tar.gz", "pkg-2.tar.gz", "pkg-3.tar.gz"]
    assert found[0].urls == ("file:///opt/simple/pkg/pkg-1.tar.gz", "https://one.example/simple/pkg/u"), "this machine's own goes first"
    assert found[1].urls == ("https://one.example/simple/pkg/u",)
    assert found[1].hashes == {"sha256": A}
    assert versions is None


def test_versions_are_listed_if_every_index_lists_them() -> None:
    one, two = ({"filename": f"pkg-{number}.tar.gz", "url": "u"} for number in (1, 2))
    assert parse_pages([as_json(one, versions=["1"]), as_json(two, versions=["2", "1"])], "pkg")[1] == ["1", "2"]
    assert parse_pages([as_json(one, versions=["1"]), as_json(two)], "pkg")[1] is None
    assert parse_pages([as_json(one, versions=["1"]), FetchedInput("file:///w/", "application/json", b'["other-1.tar.gz"]', is_flat=True)], "pkg")[
        1
    ] == ["1"]


def test_folder_contributes_only_files_of_the_project() -> None:
    names = ["pkg-1.0-py3-none-any.whl", "PKG-2.tar.gz", "pkg-extra-1.0.tar.gz", "pkg_more-1-py3-none-any.whl", "pkg.txt", "pkg-1.0.zip"]
    found, _ = parse_pages([FetchedInput("file:///opt/my%20wheels/", "application/json", json.dumps(names).encode(), is_flat=True)], "pkg")
    assert [each.filename for each in found] == ["pkg-1.0-py3-none-any.whl", "PKG-2.tar.gz", "pkg-1.0.zip"]
    assert found[0].urls == ("file:///opt/my%20wheels/pkg-1.0-py3-none-any.whl",)
    assert [
        each.filename
        for each in parse_pages([FetchedInput("file:///w/", "application/json", json.dumps(names).encode(), is_flat=True)], "pkg-extra")[0]
    ] == ["pkg-extra-1.0.tar.gz"]


@pytest.mark.parametrize("href", ["file:///etc/shadow", "javascript:x", "ftp://a/b", "", "https://[bad/x"])
def test_network_page_leads_to_no_local_file_and_no_unknown_scheme(href: str) -> None:
    assert parse_pages([html(f'<a href="{href}">pkg-1.tar.gz</a>')], "pkg")[0] == []
    assert parse_pages([as_json({"filename": "pkg-1.tar.gz", "url": href})], "pkg")[0] == []


@pytest.mark.parametrize("name", ["../pkg-1.tar.gz", "pkg-1\n.tar.gz", "pkg/1.tar.gz", "", ".hidden", "p\tq", "a" * 300])
def test_file_with_an_invalid_name_is_ignored(name: str) -> None:
    assert parse_pages([as_json({"filename": name, "url": "u"})], "pkg")[0] == []


@pytest.mark.parametrize("body", [b"{}", b'"x"', b"{", b'{"files": 3}', b"\xff", b"3", b"null"])
def test_malformed_page_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them: the text is the parser's
        parse_pages([FetchedInput("https://one.example/", JSON_TYPE, body)], "pkg")


@pytest.mark.parametrize("body", [b"", b"<a", b"<a href", b"<<<>>>", b"\xff\xfe", b"<a href='x'", b"<![a;", b"<![;>"])
def test_malformed_html_has_no_files(body: bytes) -> None:
    assert parse_pages([FetchedInput("https://one.example/", "text/html", body)], "pkg")[0] == []


@pytest.mark.parametrize("base", ["https://one.example/simple/pkg/", "https://u:geheim@one.example/simple/pkg/"])
def test_credentials_in_links_are_removed(base: str) -> None:
    links = {"here.whl": "here.whl", "there.whl": "https://u:geheim@one.example/there.whl?sig=1"}
    page = as_json(*({"filename": name, "url": url} for name, url in links.items()), url=base)
    text = html("".join(f'<a href="{url}">x</a>' for url in links.values()), base)
    for each in (page, text):
        found, _ = parse_pages([each], "pkg")
        assert [file.urls[0].removesuffix("?sig=1").rpartition("/")[::2] for file in found][1] == ("https://one.example", "there.whl")
        assert "geheim" not in repr(found)

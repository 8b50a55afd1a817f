"""npm metadata: rewritten links, the table of files, and the abbreviated form."""

from __future__ import annotations

import json

import pytest

from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.index_page import FetchedInput
from sandlot.egress.packages.registries.npm_metadata import build_metadata, find_file, is_package_name

URL = "https://registry.example/npm/@s%2fpkg"
SHA1 = "a" * 40


def packument(**versions: object) -> dict[str, object]:
    return {"name": "@s/pkg", "dist-tags": {"latest": "1.0.0"}, "versions": versions, "readme": "long", "time": {"modified": "T"}}


def got(words: object, media_type: str = "application/json") -> FetchedInput:
    return FetchedInput(URL, media_type, json.dumps(words).encode())


def version(number: str = "1.0.0", **more: object) -> dict[str, object]:
    dist = {"tarball": f"https://cdn.example/@s/pkg/-/odd-{number}.tgz?sig=1", "shasum": SHA1, "signatures": []}
    return {"name": "@s/pkg", "version": number, "dist": dist, "scripts": {"install": "x"}, "os": ["linux"], "gitHead": "x", **more}


@pytest.mark.parametrize("name", ["a", "@s/a", "JSONStream", "@types/node", "a.b_c~d", "lodash.debounce"])
def test_valid_package_name_is_accepted(name: str) -> None:
    assert is_package_name(name)


@pytest.mark.parametrize("name", ["", ".a", "_a", "@s", "@s/", "@/a", "a/b", "@s/a/b", "a b", "a%2f", "a" * 300])
def test_invalid_package_name_is_refused(name: str) -> None:
    assert not is_package_name(name)


def test_links_lead_to_the_cache_and_files_are_found_by_both_names() -> None:
    made = build_metadata([got(packument(**{"1.0.0": version()}))], name="@s/pkg", origin="http://cache", short=False)
    served = json.loads(made["body"])
    assert served["versions"]["1.0.0"]["dist"]["tarball"] == "http://cache/npm/@s/pkg/-/pkg-1.0.0.tgz"
    assert served["readme"] == "long"
    assert b"cdn.example" not in made["body"]
    for name in ("pkg-1.0.0.tgz", "odd-1.0.0.tgz"):
        assert find_file(made["table"], name) == ("https://cdn.example/@s/pkg/-/odd-1.0.0.tgz?sig=1", Digest("sha1", SHA1))
    assert find_file(made["table"], "pkg-1.0.1.tgz") is None


def test_full_metadata_is_abbreviated_to_the_fields_of_an_install() -> None:
    made = build_metadata(
        [got(packument(**{"1.0.0": version(), "2.0.0": version("2.0.0", scripts={"test": "x"})}))], name="@s/pkg", origin="http://cache", short=True
    )
    served = json.loads(made["body"])
    assert set(served) == {"name", "dist-tags", "versions", "modified"}
    assert set(served["versions"]["1.0.0"]) == {"name", "version", "dist", "os", "hasInstallScript"}
    assert "hasInstallScript" not in served["versions"]["2.0.0"]


@pytest.mark.parametrize("dist", [None, {}, {"tarball": 5}, {"tarball": "file:///etc/passwd"}, "x"])
def test_version_without_a_fetchable_file_has_no_link(dist: object) -> None:
    made = build_metadata([got(packument(**{"1.0.0": version(dist=dist)}))], name="@s/pkg", origin="http://cache", short=False)
    assert find_file(made["table"], "pkg-1.0.0.tgz") is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"versions": []}', b"\xff"])
def test_malformed_metadata_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them: the text is the parser's
        build_metadata([FetchedInput(URL, "application/json", body)], name="a", origin="http://cache", short=True)


def test_credentials_in_links_are_removed() -> None:
    words = version()
    words["dist"] = {"tarball": "https://u:geheim@cdn.example/pkg.tgz", "shasum": SHA1}
    both = packument(**{"1.0.0": words, "2.0.0": {"dist": {"tarball": "ftp://u:geheim@odd/x"}}})
    made = build_metadata([got(both)], name="@s/pkg", origin="http://here", short=False)
    assert find_file(made["table"], "pkg-1.0.0.tgz") == ("https://cdn.example/pkg.tgz", Digest("sha1", SHA1))
    assert find_file(made["table"], "pkg-2.0.0.tgz") is None
    assert b"geheim" not in made["table"] + made["body"]

"""Addresses of previews."""

from __future__ import annotations

import pytest

from sandlot.model.ids import SandboxId
from sandlot.web.preview_urls import PreviewAddress, parse_domain

SANDBOX = SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")


@pytest.mark.parametrize(
    "text, address",
    [
        ("preview.example.com", PreviewAddress("https", "preview.example.com")),
        ("Preview.Example.com:8443", PreviewAddress("https", "preview.example.com", 8443)),
        ("http://preview.lan:8081", PreviewAddress("http", "preview.lan", 8081)),
        ("localhost:8081", PreviewAddress("http", "localhost", 8081)),
        ("https://localhost:8443", PreviewAddress("https", "localhost", 8443)),
        ("dev.localhost", PreviewAddress("http", "dev.localhost")),
    ],
)
def test_a_domain_has_https_unless_it_is_local_or_says_otherwise(text: str, address: PreviewAddress) -> None:
    assert parse_domain(text) == address


@pytest.mark.parametrize(
    "text", ["", "a b", "-a.com", "a..b", ".a", "a.", "ftp://a", "a/b", "a:0", "a:65536", "a:x", "*.a", "a@b", "a\n", "x" * 64, "a." * 101 + "a"]
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    assert parse_domain(text) is None


def test_urls_have_the_port_of_the_domain_and_escape_the_token() -> None:
    address = PreviewAddress("http", "localhost", 8081)
    assert address.host(SANDBOX, 3000) == f"3000-{SANDBOX}.localhost:8081"
    assert address.url(SANDBOX, 3000) == f"http://3000-{SANDBOX}.localhost:8081/"
    assert address.url(SANDBOX, 3000, "a&b") == f"http://3000-{SANDBOX}.localhost:8081/?sandlot_token=a%26b"
    assert address.url(SANDBOX, 3000, "t", "/a?b=1#c") == f"http://3000-{SANDBOX}.localhost:8081/a?b=1&sandlot_token=t#c"
    assert address.url(SANDBOX, 3000, "t", "#c?d") == f"http://3000-{SANDBOX}.localhost:8081/?sandlot_token=t#c?d"
    assert address.url(SANDBOX, 3000, target="?b=1") == f"http://3000-{SANDBOX}.localhost:8081/?b=1"
    assert address.path_url("a.b") == "http://localhost:8081/p/a.b/"


def test_a_host_is_parsed_back() -> None:
    address = PreviewAddress("http", "localhost", 8081)
    assert address.parse_host(address.host(SANDBOX, 3000)) == (SANDBOX, 3000)
    assert address.parse_host("localhost:8081") is None

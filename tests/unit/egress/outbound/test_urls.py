"""URLs that tenants choose: forms, hosts and ports that are refused."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from sandlot.egress.outbound.urls import check_url, port_of
from sandlot.model.errors import InvalidRequestError


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "/x", "example.com", "ftp://example.com/", "file:///etc/passwd", "https://", "http:///x", "gopher://example.com", "//example.com"),
        *("http://user@example.com/", "http://u:p@example.com/", "http://example.com/#x", "http://exa mple.com/", "http://example.com:99999/"),
        *("http://localhost/", "http://LOCALHOST:8080/", "http://a.localhost./", "http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/"),
        *(
            "http://10.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://a.1/",
            "https://169.254.169.254/latest/meta-data",
            "http://[fe80::1%25eth0]/",
            "http://0.0.0.0:8080/",
        ),
        *("http://example.com:22/", "http://example.com:25/", "http://example.com:1023/", "http://example.com:0/", "http://8.8.8.8:53/"),
        *("http://example.com/\r\nX-Evil: 1", "http://example.com/\0", "http://example.com/\ud800", "http://example.com/" + "x" * 2048),
    ],
)
def test_forbidden_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_url(url)
    assert refused.value.fields == {"field": "url"}


@pytest.mark.parametrize(
    "url, port",
    [
        ("http://example.com", 80),
        ("HTTPS://Example.com/a?b=c", 443),
        ("http://example.com:8080/", 8080),
        ("http://8.8.8.8/", 80),
        ("https://[2606:4700::1111]:1024/", 1024),
        ("http://bücher.example/", 80),
        ("http://localhost.example.com/", 80),
    ],
)
def test_allowed_url_is_accepted(url: str, port: int) -> None:
    assert port_of(check_url(url)) == port


def test_network_of_the_operator_allows_every_port() -> None:
    loopback = [ip_network("127.0.0.0/8")]
    assert check_url("http://127.0.0.1:99/", loopback).host == "127.0.0.1"
    assert check_url("http://localhost/", loopback).host == "localhost"
    with pytest.raises(InvalidRequestError):
        check_url("http://10.0.0.1/", loopback)

"""Apt's configuration: which mirrors, through what, with which credentials."""

from __future__ import annotations

from sandlot.egress.packages.config.apt import parse_sources
from sandlot.egress.packages.config.values import DEBIAN, Credential, basic_auth


def target(uri: str, codename: str, *, origin: str = "Debian", component: str = "main", release: str = "") -> str:
    return (
        f"Created-By: Packages\nTarget-Of: deb\nRepo-URI: {uri}\nRelease: {release or codename}\nCodename: {codename if origin else ''}\n"
        f"Component: {component}\nArchitecture: amd64\nOrigin: {origin}\n"
    )


def archives(*targets: str) -> dict[str, str]:
    return dict(parse_sources("\n".join(targets), "", [], architecture="amd64").archives)


def test_nothing_is_the_public_archive() -> None:
    assert archives() == dict(DEBIAN)


def test_the_machines_mirrors_serve_any_suite() -> None:
    assert archives(
        target("https://third.example/", "bookworm", origin="Third"),
        target("http://mirror.example/debian", "bookworm"),
        target("http://mirror.example/debian/", "bookworm-updates"),
        target("http://mirror.example/sec", "bookworm-security"),
    ) == {"debian": "http://mirror.example/debian/", "debian-security": "http://mirror.example/sec/"}


def test_before_the_first_update_a_suites_name_finds_its_mirror() -> None:
    assert archives(target("http://m.example/d", "bookworm", origin=""), target("http://m.example/s", "bookworm-security", origin="")) == {
        "debian": "http://m.example/d/",
        "debian-security": "http://m.example/s/",
    }


def test_a_folder_is_a_mirror_and_a_strange_scheme_is_none() -> None:
    assert archives(target("file:/srv/debian", "bookworm"))["debian"] == "file:///srv/debian/"
    assert archives(target("copy:/srv/debian", "bookworm"))["debian"] == "file:///srv/debian/"
    assert archives(target("cdrom:[x]/", "bookworm"))["debian"] == DEBIAN["debian"]


def test_how_it_is_reached() -> None:
    dump = (
        'Acquire "";\nAcquire::http::Proxy "http://p:1";\nAcquire::http::Proxy::direct.example "DIRECT";\nAcquire::https::CaInfo "/ca.pem";\n'
        'Acquire::https::Verify-Peer "false";\nAcquire::https::SslCert "/me.pem";\n'
    )
    access = parse_sources("", dump, [("m.example/debian", "u", "p"), ("http://plain.example:8080", "a", "b")], architecture="amd64").access
    assert access.proxies == {"http://": "http://p:1", "https://": "http://p:1", "http://direct.example": None}
    assert (access.ca_files, access.ca_system, access.verify, access.client_cert) == (("/ca.pem",), False, False, "/me.pem")
    assert access.credentials == (
        Credential("https", "m.example", "/debian", basic_auth("u", "p")),
        Credential("http", "plain.example:8080", "/", basic_auth("a", "b")),
    )


def test_a_password_in_a_source_is_taken_out_of_it() -> None:
    found = parse_sources(target("https://u:p@m.example/debian", "bookworm"), "", [], architecture="amd64")
    assert found.archives["debian"] == "https://m.example/debian/"
    assert found.access.credentials == (Credential("https", "m.example", "/", basic_auth("u", "p")),)

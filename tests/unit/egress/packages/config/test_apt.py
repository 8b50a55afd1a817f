"""Apt's configuration: mirrors, proxies, certificates and credentials."""

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


def test_public_archive_is_the_default() -> None:
    assert archives() == dict(DEBIAN)


def test_mirrors_of_the_machine_serve_every_suite() -> None:
    assert archives(
        target("https://third.example/", "bookworm", origin="Third"),
        target("http://mirror.example/debian", "bookworm"),
        target("http://mirror.example/debian/", "bookworm-updates"),
        target("http://mirror.example/sec", "bookworm-security"),
    ) == {"debian": "http://mirror.example/debian/", "debian-security": "http://mirror.example/sec/"}


def test_mirror_is_found_by_its_suite_before_the_first_update() -> None:
    assert archives(target("http://m.example/d", "bookworm", origin=""), target("http://m.example/s", "bookworm-security", origin="")) == {
        "debian": "http://m.example/d/",
        "debian-security": "http://m.example/s/",
    }


def test_folder_is_a_mirror_and_an_unknown_scheme_is_ignored() -> None:
    assert archives(target("file:/srv/debian", "bookworm"))["debian"] == "file:///srv/debian/"
    assert archives(target("copy:/srv/debian", "bookworm"))["debian"] == "file:///srv/debian/"
    assert archives(target("cdrom:[x]/", "bookworm"))["debian"] == DEBIAN["debian"]


def test_proxies_certificates_and_credentials_are_read() -> None:
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


def test_password_is_removed_from_the_url_of_a_source() -> None:
    found = parse_sources(target("https://u:p@m.example/debian", "bookworm"), "", [], architecture="amd64")
    assert found.archives["debian"] == "https://m.example/debian/"
    assert found.access.credentials == (Credential("https", "m.example", "/", basic_auth("u", "p")),)

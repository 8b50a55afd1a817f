"""The machine's apt configuration: which mirrors an image is built from, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.host import apt_sources
from sandlot.host.apt_sources import Source, Target

INDEX = """\
MetaKey: main/binary-amd64/Packages
URI: http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages
Codename: bookworm
Origin: Debian
Suite: oldstable
Architecture: amd64
Component: main
Created-By: Packages
Release: bookworm
Repo-URI: http://mirror.example/debian/
Sourcesentry: /etc/apt/sources.list.d/debian.sources:1
Target-Of: deb

MetaKey: main/i18n/Translation-en
Created-By: Translations
Release: bookworm
Repo-URI: http://mirror.example/debian/
Target-Of: deb

MetaKey: main/source/Sources
Created-By: Sources
Release: bookworm
Repo-URI: http://mirror.example/debian/
Target-Of: deb-src
"""

MAIN = Target("http://a/debian/", "bookworm", "bookworm", "main", "amd64", "Debian", "/etc/apt/sources.list:1")
UPDATES = replace(MAIN, release="bookworm-updates", codename="bookworm-updates")
SECURITY = replace(MAIN, uri="http://a/security/", release="bookworm-security", codename="bookworm-security")


def chosen(*targets: Target) -> list[tuple[str, str]]:
    return [(target.uri, suite) for target, suite in apt_sources.choose(targets, "bookworm", "amd64")]


def test_only_package_indexes_are_parsed() -> None:
    assert apt_sources.parse_targets(INDEX) == (
        Target("http://mirror.example/debian/", "bookworm", "bookworm", "main", "amd64", "Debian", "/etc/apt/sources.list.d/debian.sources:1"),
    )


def test_the_suite_comes_with_its_updates_in_one_order() -> None:
    assert chosen(SECURITY, UPDATES, MAIN) == [
        ("http://a/debian/", "bookworm"),
        ("http://a/debian/", "bookworm-updates"),
        ("http://a/security/", "bookworm-security"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        replace(MAIN, uri="http://other/", origin="Docker"),
        replace(MAIN, uri="http://other/", component="contrib"),
        replace(MAIN, uri="http://other/", architecture="i386"),
        replace(MAIN, uri="http://other/", release="bookworm-backports", codename="bookworm-backports"),
        replace(MAIN, uri="http://other/", release="bookworm-proposed-updates", codename="bookworm-proposed-updates"),
        replace(MAIN, uri="http://other/", release="trixie", codename="trixie"),
    ],
)
def test_only_debians_main_of_the_suite_is_used(other: Target) -> None:
    assert chosen(other, MAIN) == [("http://a/debian/", "bookworm")]


def test_machine_with_another_release_uses_the_same_mirrors() -> None:
    trixie = replace(MAIN, release="trixie", codename="trixie")
    security = replace(SECURITY, release="trixie-security", codename="trixie-security")
    assert chosen(trixie, security) == [("http://a/debian/", "bookworm"), ("http://a/security/", "bookworm-security")]


def test_machine_without_debian_mirrors_has_no_sources() -> None:
    assert chosen() == []
    assert chosen(SECURITY) == []
    assert chosen(replace(MAIN, origin="Ubuntu", codename="noble", release="noble")) == []


def test_the_key_of_a_source_is_found_in_both_styles() -> None:
    deb822 = "# one\nTypes: deb\nURIs: http://a\nSigned-By: /k/one.gpg\n\nTypes: deb\nSigned-By:\n -----BEGIN\n .\n abc\n"
    assert apt_sources.signed_by("/etc/apt/sources.list.d/x.sources:1", deb822) == "/k/one.gpg"
    assert apt_sources.signed_by("/etc/apt/sources.list.d/x.sources:2", deb822) == "-----BEGIN\n.\nabc"
    lines = "deb http://a bookworm main\ndeb [arch=amd64 signed-by=/k/two.gpg] http://b bookworm main\n"
    assert apt_sources.signed_by("/etc/apt/sources.list:1", lines) == ""
    assert apt_sources.signed_by("/etc/apt/sources.list:2", lines) == "/k/two.gpg"
    assert apt_sources.signed_by("/etc/apt/sources.list:9", lines) == ""
    assert apt_sources.signed_by("", "") == ""


def test_sources_are_written_so_that_they_are_read_back() -> None:
    sources = [
        Source("http://a/", "bookworm", "/k/one.gpg"),
        Source("http://b/", "bookworm-security", "-----BEGIN\n.\nabc"),
        Source("http://c/", "x"),
    ]
    read = apt_sources.stanzas(apt_sources.sources_text(sources))
    assert [(stanza["URIs"], stanza["Suites"], stanza.get("Signed-By", "")) for stanza in read] == [
        ("http://a/", "bookworm", "/k/one.gpg"),
        ("http://b/", "bookworm-security", "-----BEGIN\n.\nabc"),
        ("http://c/", "x", ""),
    ]


def test_only_options_for_reaching_archives_are_used() -> None:
    dump = """\
APT "";
APT::Architecture "amd64";
Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3142";
Acquire::https::CAInfo "/etc/ssl/own.pem";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
DPkg::Post-Invoke:: "rm -f /x";
"""
    assert apt_sources.options_text(dump) == (
        'Acquire::http::Proxy "http://proxy.example:3142";\nAcquire::https::CAInfo "/etc/ssl/own.pem";\nAcquire::Check-Valid-Until "false";\n'
    )

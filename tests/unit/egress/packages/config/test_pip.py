"""Pip's configuration, with the precedence and syntax that pip uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.egress.packages.config.pip import config_files, parse_options, parse_sources
from sandlot.egress.packages.config.values import PYPI, Credential, basic_auth

GLOBAL = """
[global]
index-url = https://one.example/simple
extra-index-url =
    https://two.example/simple
    file:///opt/simple
[install]
find-links = /opt/wheels ~/mine https://three.example/links.html
"""


def test_public_index_is_the_default() -> None:
    assert parse_sources(parse_options([], {}), {}).indexes == (PYPI,)


def test_indexes_and_links_are_read_from_a_file() -> None:
    found = parse_sources(parse_options([GLOBAL], {}), {"HOME": "/home/me"})
    assert found.indexes == ("https://one.example/simple/", "https://two.example/simple/", "file:///opt/simple/")
    assert found.links == ("file:///opt/wheels/", "file:///home/me/mine/", "https://three.example/links.html")


def test_user_file_overrides_machine_file_and_variable_overrides_both() -> None:
    texts = [GLOBAL, "[global]\nindex_url = https://user.example/simple/\n"]
    assert parse_sources(parse_options(texts, {}), {}).indexes[0] == "https://user.example/simple/"
    env = {"PIP_INDEX_URL": "https://env.example/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "/w"}
    found = parse_sources(parse_options(texts, env), env)
    assert found.indexes[0] == "https://env.example/simple/"
    assert len(found.indexes) == 3, "an empty variable sets nothing"
    assert found.links == ("file:///w/",)


def test_no_index_keeps_the_links() -> None:
    found = parse_sources(parse_options([GLOBAL], {"PIP_NO_INDEX": "1"}), {})
    assert found.indexes == ()
    assert len(found.links) == 3


def test_credentials_are_separate_from_urls() -> None:
    env = {
        "PIP_INDEX_URL": "https://me:secret@one.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://two.example/s https://__token__:t@three.example/s",
    }
    found = parse_sources(parse_options([], env), env, {"two.example": ("a", "b"), "one.example": ("other", "x"), "four.example": ("c", "d")})
    assert found.indexes == ("https://one.example/simple/", "https://two.example/s/", "https://three.example/s/")
    assert set(found.access.credentials) == {
        Credential("https", "one.example", "/", basic_auth("me", "secret")),
        Credential("https", "three.example", "/", basic_auth("__token__", "t")),
        Credential("https", "two.example", "/", basic_auth("a", "b")),
    }
    assert "secret" not in repr(found)


def test_proxies_and_certificates_are_read() -> None:
    env = {"PIP_CERT": "/ca.pem", "PIP_PROXY": "proxy.example:3128", "PIP_TRUSTED_HOST": "a.example b.example:8080", "PIP_CLIENT_CERT": "/me.pem"}
    access = parse_sources(parse_options([], env), env).access
    assert (access.ca_files, access.ca_system, access.client_cert) == (("/ca.pem",), False, "/me.pem")
    assert access.proxies == {"http://": "http://proxy.example:3128", "https://": "http://proxy.example:3128"}
    assert access.unverified == {"a.example", "b.example:8080"}
    assert parse_sources({}, {"REQUESTS_CA_BUNDLE": "/r.pem", "CURL_CA_BUNDLE": "/c.pem"}).access.ca_files == ("/r.pem",)
    assert parse_sources({}, {}).access.ca_system


@pytest.mark.parametrize("text", ["no section", "[global\nx", "[global]\nindex-url", "\x00"])
def test_malformed_file_is_ignored(text: str) -> None:
    assert parse_sources(parse_options([text, GLOBAL], {}), {}).indexes[0] == "https://one.example/simple/"


def test_files_are_listed_in_order_of_precedence() -> None:
    found = [str(path) for path in config_files({"HOME": "/h", "PIP_CONFIG_FILE": "/mine"}, "/venv")]
    assert found == ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "/h/.pip/pip.conf", "/h/.config/pip/pip.conf", "/venv/pip.conf", "/mine"]
    assert config_files({"PIP_CONFIG_FILE": "/dev/null"}, "/venv") == []
    assert Path("/x/pip/pip.conf") in config_files({"XDG_CONFIG_HOME": "/x"}, "/venv")

"""Npm's configuration, with the precedence and syntax that npm uses."""

from __future__ import annotations

import base64

import pytest

from sandlot.egress.packages.config.npm import config_files, parse_options, parse_sources
from sandlot.egress.packages.config.values import NPM, Credential, NpmSources, basic_auth


def of(*texts: str, **env: str) -> NpmSources:
    return parse_sources(parse_options(texts, env), env)


def test_public_registry_is_the_default() -> None:
    assert of().registry == NPM
    assert of().access.ca_system


def test_user_file_overrides_machine_file_and_variable_overrides_both() -> None:
    texts = ("registry=https://one.example/npm\n", "; comment\n# another\nregistry = https://two.example/\n")
    assert of(*texts).registry == "https://two.example/"
    assert of(*texts, npm_config_registry="https://env.example/x").registry == "https://env.example/x/"
    assert of(*texts, NPM_CONFIG_REGISTRY="https://env.example/x").registry == "https://env.example/x/"


def test_scope_has_its_own_registry() -> None:
    found = of("@mine:registry=https://mine.example/npm/\n@other:registry=https://u:p@other.example/\n")
    assert found.scopes == {"@mine": "https://mine.example/npm/", "@other": "https://other.example/"}
    assert Credential("https", "other.example", "/", basic_auth("u", "p")) in found.access.credentials


def test_credential_is_valid_for_its_url_prefix() -> None:
    password = base64.b64encode(b"pw").decode()
    found = of(
        "registry=http://plain.example:4873/\n@s:registry=https://s.example/npm/\n//plain.example:4873/:_authToken=one\n"
        f"//s.example/npm/:_auth=dHdv\n//cdn.example/:username=me\n//cdn.example/:_password={password}\n//none.example/:username=alone\n"
    )
    assert set(found.access.credentials) == {
        Credential("http", "plain.example:4873", "/", "Bearer one"),
        Credential("https", "s.example", "/npm/", "Basic dHdv"),
        Credential("https", "cdn.example", "/", basic_auth("me", "pw")),
    }
    assert "one" not in repr(found).replace("one=", "").replace("None", "")


def test_variable_is_expanded_and_an_unset_one_stays() -> None:
    text = "//r.example/:_authToken=${WORD}\nregistry=https://r.example/\n"
    assert [each.header for each in of(text, WORD="t").access.credentials] == ["Bearer t"]
    assert [each.header for each in of(text).access.credentials] == ["Bearer ${WORD}"]
    assert of(text.replace("{WORD}", "{WORD?}")).access.credentials == ()


def test_credential_without_a_url_prefix_is_valid_for_the_registry() -> None:
    assert of("registry=https://r.example/npm\n_auth=YTpi\n").access.credentials == (Credential("https", "r.example", "/npm/", "Basic YTpi"),)
    found = of("registry=https://r.example/\n", **{"npm_config_//r.example/:_authToken": "t"}).access.credentials
    assert found == (Credential("https", "r.example", "/", "Bearer t"),)


def test_proxies_and_certificates_are_read() -> None:
    access = of(
        'cafile="/ca.pem"\nca[]="one"\nca[]="two"\nstrict-ssl=false\nhttps-proxy=http://p:1\nproxy=http://q:2\nnoproxy=a.example,.b.example\n',
        NODE_EXTRA_CA_CERTS="/extra.pem",
    ).access
    assert (access.ca_files, access.ca_text, access.ca_system, access.verify) == (("/ca.pem", "/extra.pem"), "one\ntwo", False, False)
    assert access.proxies == {"https://": "http://p:1", "http://": "http://q:2", "all://a.example": None, "all://*.b.example": None}
    plain = of("cafile=null\nproxy=null\n", NODE_EXTRA_CA_CERTS="/extra.pem").access
    assert (plain.ca_files, plain.ca_system, plain.proxies, plain.verify) == (("/extra.pem",), True, {}, True)


@pytest.mark.parametrize("text", ["", "=", "===", "[section]\nx", "registry", "//:_authToken=", '"', "registry=\n"])
def test_malformed_lines_are_ignored(text: str) -> None:
    assert of(text).registry == NPM


def test_files_are_listed_in_order_of_precedence() -> None:
    assert [str(path) for path in config_files({"HOME": "/h"})] == ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", "/h/.npmrc"]
    assert [str(path) for path in config_files({"npm_config_userconfig": "/u", "NPM_CONFIG_GLOBALCONFIG": "/g"})][-2:] == ["/g", "/u"]

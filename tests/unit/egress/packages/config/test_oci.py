"""Registries of the operator, and logins of this machine to them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from sandlot.egress.packages.config.oci import login_files, parse_registries, parse_sources
from sandlot.egress.packages.config.values import DOCKER_HUB, ImageSource


@pytest.mark.parametrize(
    "text, name, url",
    [
        ("registry.example", "registry.example", "https://registry.example/v2/team/app/manifests/1"),
        ("Registry.Example:5000", "registry.example:5000", "https://registry.example:5000/v2/team/app/manifests/1"),
        ("https://registry.example", "registry.example", "https://registry.example/v2/team/app/manifests/1"),
        ("http://127.0.0.1:5000", "127.0.0.1:5000", "http://127.0.0.1:5000/v2/team/app/manifests/1"),
        ("docker.io", "docker.io", f"{DOCKER_HUB}/v2/team/app/manifests/1"),
        ("docker.io=mirror.example:5000/a/b", "docker.io", "https://mirror.example:5000/v2/a/b/team/app/manifests/1"),
        ("docker.io=http://127.0.0.1:5000", "docker.io", "http://127.0.0.1:5000/v2/team/app/manifests/1"),
    ],
)
def test_registry_is_parsed(text: str, name: str, url: str) -> None:
    (source,) = parse_registries([text])
    assert (source.name, source.url("team/app", "manifests", "1")) == (name, url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://a.example",
        "a.example/path",
        "a.example:99999999",
        "user:secret@a.example",
        "a=b=c",
        "a.example=b.example/UP",
        "=a.example",
        "a.example=",
        "a b",
        "a.example:0x1",
        "a.example?x",
        "a.example=b.example/../x",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST"):
        parse_registries([text])


def test_registry_is_named_once() -> None:
    with pytest.raises(ValueError, match="named twice"):
        parse_registries(["a.example", "A.example=b.example"])


def logins_of(**auths: str) -> str:
    return json.dumps({"auths": {name.replace("__", "."): {"auth": base64.b64encode(login.encode()).decode()} for name, login in auths.items()}})


def header(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def test_login_is_sent_to_its_registry_only() -> None:
    sources = parse_sources(parse_registries(["a.example", "b.example:5000"]), [logins_of(a__example="me:one", c__example="me:two")])
    found = sources.access.authorization
    assert found("https://a.example/v2/team/app/blobs/1") == header("me:one")
    assert found("http://a.example/v2/team/app/blobs/1") is None
    assert found("https://b.example:5000/v2/team/app/blobs/1") is None
    assert found("https://c.example/v2/") is None
    assert header("me:one") not in repr(sources)


def test_login_of_docker_hub_and_of_a_namespace_are_found() -> None:
    text = json.dumps(
        {
            "auths": {
                "https://index.docker.io/v1/": {"auth": "aDph"},
                "a.example/team": {"auth": "dDph"},
                "a.example": {"username": "u", "password": "p"},
                "b.example": {"registrytoken": "token"},
            }
        }
    )
    found = parse_sources(parse_registries(["docker.io", "a.example", "b.example"]), [text]).access.authorization
    assert found(f"{DOCKER_HUB}/v2/library/python/manifests/3") == "Basic aDph"
    assert found("https://a.example/v2/team/app/manifests/1") == "Basic dDph"
    assert found("https://a.example/v2/teams/app/manifests/1") == header("u:p")
    assert found("https://b.example/v2/x/manifests/1") == "Bearer token"


def test_first_file_with_a_login_decides_and_damaged_files_are_ignored() -> None:
    texts = ["{", "[]", '{"auths": 1}', '{"auths": {"a.example": {"auth": "!"}}}', logins_of(a__example="me:one"), logins_of(a__example="me:two")]
    sources = parse_sources([ImageSource("a.example", "https://a.example")], texts)
    assert sources.access.authorization("https://a.example/v2/x") == header("me:one")


def test_files_of_podman_come_before_those_of_docker() -> None:
    env = {"HOME": "/h", "REGISTRY_AUTH_FILE": "/f", "XDG_RUNTIME_DIR": "/r"}
    names = ["/f", "/r/containers/auth.json", "/h/.config/containers/auth.json", "/h/.docker/config.json"]
    assert login_files(env) == [Path(name) for name in names]
    assert login_files({"DOCKER_CONFIG": "/d"})[-1] == Path("/d/config.json")

"""Where the service is: arguments before environment before defaults."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.sdk.config import resolve
from sandlot.sdk.http import tls_context


def test_without_anything_it_is_the_local_service() -> None:
    target = resolve({})
    assert target.local == Path("/var/lib/sandlot")
    assert target.socket == Path("/var/lib/sandlot/sandlot.sock")
    assert not target.proxied


def test_the_state_directory_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve({"SANDLOT_DATA_DIR": "state"}).local == tmp_path / "state"
    assert resolve({"SANDLOT_DATA_DIR": "state"}, data_dir="/other").local == Path("/other")


def test_a_url_starts_nothing() -> None:
    target = resolve({"SANDLOT_URL": "http://10.0.0.1:8080/prefix/", "SANDLOT_API_KEY": "k"})
    assert (target.base_url, target.local, target.socket, target.api_key) == ("http://10.0.0.1:8080/prefix", None, None, "k")
    assert target.proxied


def test_arguments_win() -> None:
    target = resolve({"SANDLOT_URL": "http://a", "SANDLOT_API_KEY": "k"}, url="https://b", api_key="l")
    assert (target.base_url, target.api_key) == ("https://b", "l")


def test_a_socket_may_be_an_address() -> None:
    target = resolve({}, url="unix:///run/sandlot.sock")
    assert (target.socket, target.local) == (Path("/run/sandlot.sock"), None)


def test_this_machine_is_never_asked_for_through_a_proxy(subtests: pytest.Subtests) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        with subtests.test(host=host):
            assert not resolve({}, url=f"http://{host}:1").proxied


def test_what_is_no_address_is_refused_and_named(subtests: pytest.Subtests) -> None:
    for url in ("localhost:8080", "ftp://x", "http://", "unix:relative", "unix://host/path", "/run/x.sock"):
        with subtests.test(url=url), pytest.raises(InvalidRequestError, match="SANDLOT_URL"):
            resolve({"SANDLOT_URL": url})


def test_authorities_are_read_once_and_nobody_is_believed_where_nothing_is_encrypted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    far = resolve({}, url="https://a", api_key="k")
    believed = tls_context(far)
    assert (believed.verify_mode, believed.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_context(resolve({}, url="https://b", api_key="l")) is believed
    for near in (resolve({}), resolve({}, url="http://a", api_key="k")):
        no_authorities = tls_context(near)
        assert (no_authorities.verify_mode, no_authorities.check_hostname, no_authorities.get_ca_certs()) == (ssl.CERT_REQUIRED, True, [])
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert tls_context(far) is not believed

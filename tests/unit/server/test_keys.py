"""API keys: shown once, kept as hashes, changed by several at once, seen by a running service."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, HostError, InvalidRequestError, NotFoundError
from sandlot.server.keys import FILE, PREFIX, KeyStore


def test_a_key_is_known_until_it_is_revoked(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    key, secret = keys.create("ci")
    assert secret.startswith(PREFIX)
    assert len(secret) == len(PREFIX) + 43  # 256 bits, base64
    found = keys.verify(secret)
    assert found is not None
    assert found.owner == key.id
    assert keys.verify(secret[:-1]) is None
    assert keys.verify("") is None
    assert keys.verify("\ud800") is None
    assert keys.revoke("ci") == key
    assert keys.verify(secret) is None
    assert keys.list() == ()


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _, secret = KeyStore(tmp_path).create("a")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert secret not in path.read_text()
        assert secret.removeprefix(PREFIX) not in path.read_text()


def test_another_store_sees_a_change_at_once(tmp_path: Path) -> None:
    service, cli = KeyStore(tmp_path), KeyStore(tmp_path)
    secrets = [cli.create(f"k{number}")[1] for number in range(5)]
    for number, secret in enumerate(secrets):
        found = service.verify(secret)
        assert found is not None
        cli.revoke(found.owner if number % 2 else found.name)
        assert service.verify(secret) is None


def test_many_who_create_at_once_lose_none(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: KeyStore(tmp_path).create(f"k{number}"), range(40)))
    assert {key.id for key in KeyStore(tmp_path).list()} == {key.id for key, _ in made}
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "keys.lock"}


def test_killed_while_it_writes_the_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    _, secret = KeyStore(tmp_path).create("first")
    write = (
        "import sys; from pathlib import Path; from sandlot.server.keys import KeyStore\n"
        "for n in range(10**6): KeyStore(Path(sys.argv[1])).create(f'k{n}')"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", write, str(tmp_path)], stderr=subprocess.DEVNULL)
        while len(KeyStore(tmp_path).list()) < 2 and writer.poll() is None:
            pass
        writer.kill()
        writer.wait()
        assert KeyStore(tmp_path).verify(secret) is not None
        (tmp_path / FILE).write_text(json.dumps({"format": 1, "keys": json.loads((tmp_path / FILE).read_text())["keys"][:1]}))


def test_names(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    keys.create("a.b-c_1")
    with pytest.raises(ConflictError):
        keys.create("a.b-c_1")
    for name in ("", " ", "-a", "x" * 64, "ä"):
        with pytest.raises(InvalidRequestError):
            keys.create(name)
    with pytest.raises(NotFoundError):
        keys.revoke("other")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "keys": [{}]}', '{"format": 2, "keys": []}', '{"format": 1, "keys": 3}']
)
def test_a_broken_file_lets_nobody_in_and_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(HostError) as broken:
        KeyStore(tmp_path).verify("x")
    assert FILE in broken.value.message
    assert broken.value.hint

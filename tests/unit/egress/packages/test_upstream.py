"""Requests to upstream: credentials, redirects, certificates, retries and errors."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.egress.packages import upstream as module
from sandlot.egress.packages.config.values import Access, Credential, netloc_of
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.upstream import Upstream, UpstreamError, tls_context
from sandlot.host.blocking import BlockingPool
from tests.support import upstream as fake
from tests.support.until import until
from tests.support.upstream import Said


@pytest.fixture
async def threads() -> AsyncIterator[BlockingPool]:
    found = BlockingPool(2, "upstream")
    yield found
    await found.aclose()


@pytest.fixture
async def other() -> AsyncIterator[fake.Upstream]:
    async with fake.upstream() as found:
        yield found


async def get(threads: BlockingPool, url: str, access: Access | None = None, counters: Counters | None = None) -> tuple[int, bytes]:
    asking = Upstream(access or Access(), threads, asyncio.Semaphore(1), counters or Counters())
    try:
        async with asking.get(url, {}) as reply:
            return reply.status, b"".join([piece async for piece in reply.pieces(decoded=True)])
    finally:
        await asking.aclose()


def secret(origin: str, path: str = "/") -> Access:
    return Access(credentials=(Credential("http", netloc_of(origin), path, "Bearer secret"),))


async def test_redirect_to_another_host_sends_no_credential_and_no_cookie(
    threads: BlockingPool, registry: fake.Upstream, other: fake.Upstream
) -> None:
    registry.says["/a"] = Said(status=302, headers={"Location": f"{other.origin}/b", "Set-Cookie": "session=secret"})
    other.says["/b"] = Said(status=307, headers={"Location": f"{registry.origin}/c", "Set-Cookie": "session=secret"})
    registry.says["/c"] = Said(b"there")
    assert await get(threads, f"{registry.origin}/a", secret(registry.origin)) == (200, b"there")
    assert [each.headers.get("authorization") for each in registry.asked] == ["Bearer secret", "Bearer secret"]
    assert "authorization" not in other.asked[0].headers
    assert all("cookie" not in each.headers for each in (*registry.asked, *other.asked))


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/x", "/a", "//", "http://[bad/", "unix:///x"])
async def test_invalid_redirect_is_not_followed(threads: BlockingPool, registry: fake.Upstream, location: str) -> None:
    registry.says["/a"] = Said(status=301, headers={"Location": location})
    with pytest.raises((UpstreamError, ValueError)):
        await get(threads, f"{registry.origin}/a")


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[fake.Upstream, Path]]:
    """An HTTPS server and its certificate."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1")
    made = await asyncio.create_subprocess_exec(*request, "-keyout", key, "-out", certificate, stderr=subprocess.DEVNULL)
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with fake.upstream(context) as found:
        yield found, certificate


async def test_untrusted_certificate_is_refused(threads: BlockingPool, secure: tuple[fake.Upstream, Path]) -> None:
    https, certificate = secure
    https.says["/a"] = Said(b"there")
    assert await get(threads, f"{https.origin}/a", Access(ca_files=(str(certificate),), ca_system=False)) == (200, b"there")
    assert await get(threads, f"{https.origin}/a", Access(unverified=frozenset({"127.0.0.1"}))) == (200, b"there")
    with pytest.raises(UpstreamError, match="certificate"):
        await get(threads, f"{https.origin}/a")


async def test_redirect_from_https_to_http_is_not_followed(
    threads: BlockingPool, secure: tuple[fake.Upstream, Path], registry: fake.Upstream
) -> None:
    https, certificate = secure
    https.says["/a"] = Said(status=302, headers={"Location": f"{registry.origin}/b"})
    with pytest.raises(UpstreamError, match="not followed"):
        await get(threads, f"{https.origin}/a", Access(ca_files=(str(certificate),)))
    assert registry.asked == []


async def test_temporary_error_is_retried_a_few_times(threads: BlockingPool, registry: fake.Upstream) -> None:
    answers = iter([Said(status=503), Said(status=500), Said(b"there")])
    registry.says["/a"] = lambda _: next(answers)
    counters = Counters()
    assert await get(threads, f"{registry.origin}/a", None, counters) == (200, b"there")
    assert counters.upstream_requests == 3
    registry.says["/b"] = Said(status=503)
    with pytest.raises(UpstreamError, match="status 503"):
        await get(threads, f"{registry.origin}/b")
    assert registry.paths.count("/b") == module.ATTEMPTS
    assert (await get(threads, f"{registry.origin}/none"))[0] == 404


async def test_error_message_contains_no_secret(threads: BlockingPool, registry: fake.Upstream) -> None:
    registry.says["/a?X-Signature=word"] = Said(status=503)
    with pytest.raises(UpstreamError) as error:
        await get(threads, f"{registry.origin}/a?X-Signature=word", secret(registry.origin))
    assert "word" not in str(error.value)
    assert "secret" not in str(error.value)
    with pytest.raises(UpstreamError, match="ConnectError"):
        await get(threads, "http://127.0.0.1:9/x")


async def test_proxy_is_used_except_for_excluded_hosts(threads: BlockingPool, registry: fake.Upstream, other: fake.Upstream) -> None:
    registry.says["http://index.example/x"] = Said(b"by proxy")
    other.says["/x"] = Said(b"direct")
    access = Access(proxies={"http://": registry.origin, "all://127.0.0.1": None})
    assert await get(threads, "http://index.example/x", access) == (200, b"by proxy")
    assert await get(threads, f"{other.origin}/x", access) == (200, b"direct")


async def test_only_regular_local_files_are_served(threads: BlockingPool, tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"file")
    (tmp_path / "folder").mkdir()
    assert await get(threads, (tmp_path / "a b").as_uri()) == (200, b"file")
    assert (await get(threads, (tmp_path / "folder").as_uri() + "/"))[0] == 404
    (tmp_path / "folder/index.html").write_bytes(b"index")
    assert await get(threads, (tmp_path / "folder").as_uri() + "/") == (200, b"index")
    for odd in ("/dev/zero", "/proc/self/fd", str(tmp_path / "none")):
        assert (await get(threads, f"file://{odd}"))[0] == 404


def test_tls_context_follows_the_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tls_context(Access(), verify=True).verify_mode is ssl.CERT_REQUIRED
    assert tls_context(Access(), verify=False).verify_mode is ssl.CERT_NONE
    assert len(tls_context(Access(), verify=True).get_ca_certs()) > 50
    alone = tls_context(Access(ca_system=False, ca_files=(str(tmp_path / "none.pem"),)), verify=True)
    assert alone.get_ca_certs() == []
    assert "are skipped too" in caplog.text


async def test_idle_connections_are_closed(threads: BlockingPool, registry: fake.Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    registry.says["/a"] = Said(b"there")

    def sockets() -> int:
        return sum(entry.readlink().name.startswith("socket:") for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())

    asking, before = Upstream(Access(), threads, asyncio.Semaphore(4), Counters()), sockets()
    for _ in range(2):
        for _ in range(3):
            async with asking.get(f"{registry.origin}/a", {}) as reply:
                assert b"".join([piece async for piece in reply.pieces(decoded=True)]) == b"there"
        assert sockets() > before
        await until(lambda: sockets() <= before)
    await asking.aclose()

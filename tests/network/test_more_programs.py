"""Promise: programs of many kinds reach allowed names without configuration. These programs are in an image that is built for the test."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Network, Sandbox
from sandlot.images.recipe import Debian, Recipe
from sandlot.images.store import ImageStore
from tests.support import postgres
from tests.support.cache import CACHE_DIR
from tests.support.internet import Internet
from tests.support.localservice import LocalService
from tests.support.roots import Roots, own_roots
from tests.support.web_servers import serve

pytestmark = pytest.mark.soak
PROGRAMS = Recipe(
    "network-programs",
    debian=Debian(
        suite="bookworm",
        variant="apt",
        packages=("ca-certificates", "chromium", "golang-go", "openjdk-17-jdk-headless", "openssh-client", "postgresql-client", "redis-tools"),
    ),
)
ADDRESS = "23.8.0.1"
PAGE = b"<p>hello over the network</p>"
CHROMIUM = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --user-data-dir=/tmp/profile"
JAVA = """
import java.net.*;
import java.net.http.*;
public class Get {
    public static void main(String[] names) throws Exception {
        var request = HttpRequest.newBuilder(URI.create("http://web.example.com/page/")).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        System.out.println(new String(new URL("http://web.example.com/page/").openStream().readAllBytes()));
    }
}
"""
GO = """
package main
import ("fmt"; "io"; "net/http")
func main() {
    response, err := http.Get("http://web.example.com/page/")
    if err != nil { panic(err) }
    body, _ := io.ReadAll(response.Body)
    fmt.Println(string(body))
}
"""


@pytest.fixture(scope="module")
def roots() -> Iterator[Roots]:
    with own_roots() as made:
        image = ImageStore(CACHE_DIR, {PROGRAMS.name: PROGRAMS}).ensure(PROGRAMS.name).path
        made.add("programs", image)
        yield made


@pytest.fixture(scope="module")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("ssh") / "key"
    subprocess.run(["dropbearkey", "-t", "ed25519", "-f", file], check=True, capture_output=True, timeout=60)
    return file


@pytest.fixture(scope="module", autouse=True)
def _servers(net: Internet, host_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """PostgreSQL, Redis, SSH and HTTP at one address."""
    net.names |= {f"{name}.example.com": [ADDRESS] for name in ("web", "db", "cache", "ssh", "other")}
    redis_socket = tmp_path_factory.mktemp("redis") / "socket"
    with socket.create_server(("127.0.0.1", 0)) as free:
        ssh_port = free.getsockname()[1]
    ssh = subprocess.Popen(["dropbear", "-F", "-E", "-s", "-p", f"127.0.0.1:{ssh_port}", "-r", str(host_key)], stderr=subprocess.DEVNULL)
    redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", str(redis_socket), "--save", ""], executable="/usr/bin/redis-check-rdb")

    def connect(path: Path) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(path))
        return made

    try:
        with postgres.cluster() as cluster, serve(net.listen(net.outside, ADDRESS, 80), {"/page/": PAGE}):
            net.forward(net.listen(net.outside, ADDRESS, 5432), lambda: connect(cluster.folder / ".s.PGSQL.5432"))
            net.forward(net.listen(net.outside, ADDRESS, 6379), lambda: connect(redis_socket))
            net.forward(net.listen(net.outside, ADDRESS, 22), lambda: socket.create_connection(("127.0.0.1", ssh_port)))
            yield
    finally:
        for server in (redis, ssh):
            server.terminate()
            server.wait()


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    allow = ["web.example.com", "db.example.com:5432", "cache.example.com:6379", "ssh.example.com:22"]
    with service.create("programs", network=Network("allowlist", allow=allow), cpus=2, memory="4GiB", disk="8GiB", timeout=3600) as made:
        yield made


@pytest.mark.parametrize(
    "command, expected",
    [
        (f"psql -h db.example.com -U {postgres.USER} -d postgres -Atc 'select 6 * 7'", "42"),
        ("redis-cli -h cache.example.com set key value && redis-cli -h cache.example.com get key", "value"),
        ("java Get.java", PAGE.decode()),
        ("go run get.go", PAGE.decode()),
        (
            f"chromium {CHROMIUM} --dump-dom http://web.example.com/page/ 2>/dev/null",
            PAGE.decode(),
        ),
    ],
    ids=["psql", "redis-cli", "java", "go", "chromium"],
)
def test_program_reaches_an_allowed_name(sandbox: Sandbox, command: str, expected: str) -> None:
    sandbox.files.write("Get.java", JAVA)
    sandbox.files.write("get.go", GO)
    result = sandbox.commands.run(command, timeout=300)
    assert expected in result.stdout, (result.stdout, result.stderr)


def test_ssh_reaches_its_server(sandbox: Sandbox, host_key: Path) -> None:
    public = subprocess.run(["dropbearkey", "-y", "-f", host_key], check=True, capture_output=True, text=True, timeout=60).stdout
    key = next(line.split()[1] for line in public.splitlines() if line.startswith("ssh-ed25519 "))
    assert key in sandbox.commands.run("ssh-keyscan -t ed25519 ssh.example.com", timeout=60).stdout


@pytest.mark.parametrize("command", ["psql -h other.example.com -U postgres -c 'select 1'", "redis-cli -h other.example.com get key"])
def test_program_ends_at_a_refused_name(sandbox: Sandbox, command: str) -> None:
    result = sandbox.commands.run(command, timeout=60)
    assert (result.reason, result.exit_code == 0) == ("exited", False), result

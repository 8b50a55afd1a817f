"""The programs for ready commands: they answer the commands of E2B's client as the real programs do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

RUN = "import sys; from sandlot.guest.helpers.ready import main; main()"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", RUN, *argv], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as server:
        yield server


class Answers(BaseHTTPRequestHandler):
    """Answers /missing with 404, and all other paths with 200."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def test_ss_lists_a_listening_port_and_no_other(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    for argv in (("-Htuln", "sport", "=", f":{port}"), ("-Htln", f"sport = :{port}"), ("-lH", "state", "listening", "sport", "eq", str(port))):
        (line,) = run("ss", *argv).stdout.splitlines()
        assert f":{port}\t" in line
        assert "LISTEN" in line
    assert f":{port}\t" in run("ss", "-tuln").stdout, "as in `ss -tuln | grep :PORT`"
    listener.close()
    assert run("ss", "-Htuln", "sport", "=", f":{port}").stdout == ""


def test_ss_lists_connections_only_if_asked(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()[:2]) as connection:
        own = f"sport = :{connection.getsockname()[1]}"
        assert run("ss", "-Htln", own).stdout == ""
        assert run("ss", "-Htn", own).stdout.split()[0] == "ESTAB"
        assert run("ss", "-Htan", own, "and", f"dport = :{listener.getsockname()[1]}").stdout != ""


def test_ss_lists_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        wanted = f"sport = :{bound.getsockname()[1]}"
        assert run("ss", "-Htuln", wanted).stdout.split()[:2] == ["udp", "UNCONN"]
        assert run("ss", "-Htln", wanted).stdout == ""


def test_curl_prints_status_and_body(url: str) -> None:
    form = "%{http_code}"
    assert run("curl", "-s", "-o", "/dev/null", "-w", form, f"{url}/").stdout == "200"
    assert run("curl", "-s", "-o", "/dev/null", "-w", form, f"{url}/missing").stdout == "404"
    assert run("curl", "-sS", f"{url.removeprefix('http://')}/page?a=b").stdout == "/page?a=b"


def test_curl_fails_as_the_real_one(url: str, listener: socket.socket) -> None:
    assert run("curl", "-sf", f"{url}/").returncode == 0
    assert run("curl", "-sf", f"{url}/missing").returncode == 22
    port = listener.getsockname()[1]
    listener.close()
    refused = run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://localhost:{port}/")
    assert (refused.returncode, refused.stdout) == (7, "000")


def test_pgrep_finds_a_process_and_not_those_that_wait_for_it() -> None:
    name = "2147483"
    with subprocess.Popen(["sleep", name]) as process:
        try:
            found = run("pgrep", "-f", f"sleep {name}")
            assert (found.returncode, found.stdout.split()) == (0, [str(process.pid)])
            assert str(process.pid) in run("pgrep", "sle").stdout.split()
            assert str(process.pid) not in run("pgrep", "-x", "sle").stdout.split()
        finally:
            process.kill()
    assert run("pgrep", "-f", f"sleep {name}").returncode == 1


@pytest.mark.parametrize(
    "argv", [("ss", "-K"), ("ss", "src", "10.0.0.0/8"), ("curl", "https://localhost/"), ("curl", "-d", "x"), ("pgrep", "-u", "0"), ("pgrep", "(")]
)
def test_options_that_are_not_supported_are_errors(argv: tuple[str, ...]) -> None:
    refused = run(*argv)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Sandlot" in refused.stderr

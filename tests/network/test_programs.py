"""Promise: ordinary programs reach allowed names without configuration, and read why other names are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Network, Sandbox
from tests.support.internet import Internet
from tests.support.localservice import LocalService
from tests.support.web_servers import WebServer, certificate, npm_registry, python_index, serve

ADDRESS = "23.6.0.1"
NAMES = ("git.example.com", "pypi.example.com", "npm.example.com", "secure.example.com")
CERTIFICATE = "/tmp/certificate.pem"


@pytest.fixture(scope="module")
def server(net: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """Plain HTTP for all names, with a git repository of a few megabytes; HTTPS besides."""
    folder = tmp_path_factory.mktemp("repositories")
    _make_repository(folder)
    net.names |= {name: [ADDRESS] for name in (*NAMES, "other.example.com")}
    context, file = certificate(folder, "secure.example.com")
    pages = python_index("tiny", "1.0", "answer = 42\n") | npm_registry("http://npm.example.com", "tiny", "1.0.0", "module.exports = 42\n")
    pages["/hello"] = b"hello over the network"
    plain, secure = net.listen(net.outside, ADDRESS, 80), net.listen(net.outside, ADDRESS, 443)
    with serve(plain, pages, repositories=folder) as running, serve(secure, pages, context=context):
        running.pages["/certificate"] = file.read_bytes()
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService, server: WebServer) -> Iterator[Sandbox]:
    with service.create(network=Network("allowlist", allow=NAMES)) as made:
        made.files.write(CERTIFICATE, server.pages["/certificate"])
        yield made


def _make_repository(folder: Path) -> None:
    """Make a repository with a file of 4 MB that cannot be compressed."""
    repository, work = folder / "project.git", folder / "work"
    work.mkdir()
    (work / "data").write_bytes(b"".join(number.to_bytes(16, "big") * 3 for number in range(90_000)))
    (work / "README").write_text("a project\n")
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
    for command in (
        ("init", "--quiet", "--bare", "--initial-branch=main", str(repository)),
        ("-C", str(repository), "config", "http.receivepack", "true"),
        ("-C", str(work), "init", "--quiet", "--initial-branch=main"),
        ("-C", str(work), "add", "."),
        ("-C", str(work), *identity, "commit", "--quiet", "-m", "first"),
        ("-C", str(work), "push", "--quiet", str(repository), "main"),
    ):
        subprocess.run(["git", *command], check=True, capture_output=True, timeout=60)


def run(sandbox: Sandbox, command: str) -> str:
    """Run a shell command that must succeed; return its output."""
    result = sandbox.commands.run(command, timeout=120, check=False)
    assert result.exit_code == 0, (command, result.stdout, result.stderr)
    return result.stdout


def test_curl_and_python_and_node_reach_http_and_https(sandbox: Sandbox) -> None:
    assert run(sandbox, "curl -sS http://git.example.com/hello") == "hello over the network"
    assert run(sandbox, f"curl -sS --cacert {CERTIFICATE} https://secure.example.com/hello") == "hello over the network"
    fetch = "import urllib.request; print(urllib.request.urlopen('{}').read().decode())"
    assert run(sandbox, f'python3 -c "{fetch.format("http://git.example.com/hello")}"') == "hello over the network\n"
    assert run(sandbox, f'SSL_CERT_FILE={CERTIFICATE} python3 -c "{fetch.format("https://secure.example.com/hello")}"') == "hello over the network\n"
    node = "fetch(process.argv[1]).then(response => response.text()).then(console.log)"
    assert run(sandbox, f'node -e "{node}" http://git.example.com/hello') == "hello over the network\n"
    assert run(sandbox, f'NODE_EXTRA_CA_CERTS={CERTIFICATE} node -e "{node}" https://secure.example.com/hello') == "hello over the network\n"


def test_git_clones_and_pushes(sandbox: Sandbox, server: WebServer) -> None:
    branch = sandbox.id
    script = f"""
set -e
cd "$(mktemp -d)"
git clone --quiet http://git.example.com/git/project.git
cd project
cat README
echo more >> README
git -c user.name=me -c user.email=me@example.com commit --quiet --all -m second
git push --quiet origin main:{branch}
git clone --quiet --branch {branch} http://git.example.com/git/project.git ../again
cat ../again/README
"""
    assert run(sandbox, script) == "a project\na project\nmore\n"
    assert "POST /git/project.git/git-receive-pack" in server.requests


def test_pip_installs_from_an_allowed_index(sandbox: Sandbox) -> None:
    run(sandbox, "pip install --quiet --no-cache-dir --index-url http://pypi.example.com/simple/ --trusted-host pypi.example.com tiny")
    assert run(sandbox, "python3 -c 'import tiny; print(tiny.answer)'") == "42\n"


def test_npm_installs_from_an_allowed_registry(sandbox: Sandbox) -> None:
    run(
        sandbox,
        "cd $(mktemp -d) && npm install --silent --no-audit --registry http://npm.example.com/ tiny && node -p 'require(\"tiny\")' > /tmp/npm",
    )
    assert run(sandbox, "cat /tmp/npm") == "42\n"


def test_refused_request_says_why(sandbox: Sandbox, server: WebServer) -> None:
    server.requests.clear()
    refused = run(sandbox, "curl -s http://other.example.com/hello")
    assert '"reason": "host_not_allowed"' in refused
    code = """
import json, urllib.request
try:
    urllib.request.urlopen("http://other.example.com/")
except OSError as error:
    print(error.code, json.load(error)["reason"])
"""
    assert sandbox.run_code(code).check().stdout == "403 host_not_allowed\n"
    assert "access denied" in run(sandbox, "curl -sS https://other.example.com/hello 2>&1 || true").lower()
    assert not server.requests

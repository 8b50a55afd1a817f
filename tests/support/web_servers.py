"""Web servers of the tests on sockets that are already open: files, an index of Python packages, a registry of npm, git over HTTP, and TLS."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class WebServer(ThreadingHTTPServer):
    """Serves fixed responses by path, and git repositories below ``/git/``.

    Args:
        listener: Listening socket; ownership passes to the server.
        pages: Content by path.
        repositories: Folder with git repositories.
        context: For HTTPS.

    Attributes:
        requests: Method and target of all requests.
    """

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, pages: Mapping[str, bytes], *, repositories: Path | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener if context is None else context.wrap_socket(listener, server_side=True)
        self.pages = dict(pages)
        self.repositories = repositories
        self.requests: list[str] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that leave."""


@contextmanager
def serve(
    listener: socket.socket, pages: Mapping[str, bytes], *, repositories: Path | None = None, context: ssl.SSLContext | None = None
) -> Iterator[WebServer]:
    """Run a web server in a thread."""
    with WebServer(listener, pages, repositories=repositories, context=context) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: WebServer  # type: ignore[mutable-override]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Respond to a request of any method."""
        self.server.requests.append(f"{self.command} {self.path}")
        parts = urlsplit(self.path)
        if parts.path.startswith("/git/") and self.server.repositories is not None:
            self._run_git(self.server.repositories, parts.path, parts.query)
            return
        content = self.server.pages.get(unquote(parts.path))
        kind = (
            "text/html"
            if parts.path.endswith("/")
            else "application/json"
            if content is not None and content[:1] == b"{"
            else "application/octet-stream"
        )
        self._respond(404 if content is None else 200, content or b"not found", {"Content-Type": kind})

    def do_POST(self) -> None:
        """Respond as to a GET."""
        self.do_GET()

    def do_HEAD(self) -> None:
        """Respond as to a GET, without the body."""
        self.do_GET()

    def _run_git(self, folder: Path, path: str, query: str) -> None:
        """Run the CGI program of git, which serves a repository over HTTP (git-http-backend(1))."""
        body = self._body()
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "client",
            "PATH_INFO": path.removeprefix("/git"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=True, timeout=60)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._respond(int(headers.pop("Status", "200").split()[0]), content, headers)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _respond(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def python_index(name: str, version: str, code: str) -> dict[str, bytes]:
    """Return the pages of an index with one Python package of one module (PEP 503)."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text.encode())},{len(text)}\n" for path, text in files.items())
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(path, text)
    file = f"{name}-{version}-py3-none-any.whl"
    link = f'<a href="/files/{file}#sha256={hashlib.sha256(wheel.getvalue()).hexdigest()}">{file}</a>'
    return {f"/simple/{name}/": link.encode(), f"/files/{file}": wheel.getvalue()}


def npm_registry(origin: str, name: str, version: str, code: str) -> dict[str, bytes]:
    """Return the pages of a registry with one package of npm."""
    package = json.dumps({"name": name, "version": version, "main": "index.js"})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in (("package/package.json", package), ("package/index.js", code)):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    file = f"/{name}/-/{name}-{version}.tgz"
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    versions = {version: {**json.loads(package), "dist": {"tarball": f"{origin}{file}", "integrity": integrity}}}
    metadata = {"name": name, "dist-tags": {"latest": version}, "versions": versions}
    return {f"/{name}": json.dumps(metadata).encode(), file: packed.getvalue()}


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """Return the TLS settings of a server with these names, and the file of its certificate, which signs itself."""
    key, file = folder / "key.pem", folder / "certificate.pem"
    subjects = ",".join(f"DNS:{name}" for name in names)
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={names[0]}",
            ),
            *("-addext", f"subjectAltName={subjects}", "-keyout", key, "-out", file),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context, file


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

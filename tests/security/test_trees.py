"""Promise: trees that go in and out, watches, reports of what changed and signed URLs stay inside, whatever somebody makes of them.

The ideas are those of CVE-2018-15664 (``docker cp`` through a link), of "Zip Slip", and of CVE-2007-4559 (python's own tarfile).
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandlot import Sandbox, SandlotError
from tests.support.archives import archive, entry, hostile, outgoing_links
from tests.support.inside import USERS
from tests.support.localservice import LocalService
from tests.support.planted import Planted

REFUSED = {400, 403, 404}
ESCAPES = 12
"""Archives that try to write or to lead out of the folder; ``tests/unit/guest/helpers/test_unpack.py`` has the broken ones too."""


@pytest.fixture(scope="module")
def http(service: LocalService) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock"))
    with httpx.Client(transport=transport, base_url="http://sandlot", timeout=60) as client:
        yield client


def test_archive_writes_only_below_its_target(sandbox: Sandbox, http: httpx.Client, planted: Planted) -> None:
    """As the user and as root: inside, a path of the host is the sandbox's own path of that name, and not even that is written."""
    url = f"/v1/sandboxes/{sandbox.id}/files/archive"
    for number, bad in enumerate(itertools.islice(hostile(planted.paths[0]), ESCAPES)):
        user = USERS[number % len(USERS)]
        answer = http.post(url, params={"path": f"/workspace/{user}/unpacked", "user": user}, content=bad.data)
        assert answer.status_code == 400, (bad.name, answer.text)
        assert bad.named in answer.json()["detail"], bad.name
    listed = sandbox.commands.run("ls -A /workspace/user /workspace/root; find / -xdev -name '*escaped*'", user="root")
    assert listed.stdout.split() == ["/workspace/root:", "unpacked", "/workspace/user:", "unpacked"]
    for path in planted.paths:
        assert not sandbox.files.exists(path, user="root")


def test_links_that_lead_out_of_an_archive_are_skipped(sandbox: Sandbox, http: httpx.Client, planted: Planted) -> None:
    url = f"/v1/sandboxes/{sandbox.id}/files/archive"
    answer = http.post(url, params={"path": "/workspace/skipped"}, content=outgoing_links(planted.paths[0]))
    assert answer.status_code == 200
    assert [name.endswith("out'") for name in answer.json()["skipped_links"]] == [True] * 4
    assert sandbox.commands.run("cd skipped; find . -name '*out'; find . -type l").stdout == "./d/e/up\n"


def test_archive_writes_through_no_link(sandbox: Sandbox, http: httpx.Client, planted: Planted) -> None:
    url = f"/v1/sandboxes/{sandbox.id}/files/archive"
    folder = str(Path(planted.paths[0]).parent)
    assert sandbox.commands.run(f"mkdir -p linked && ln -sfn {folder} linked/way && ln -sfn /proc/1/root linked/root").exit_code == 0
    for name in (f"way/made-{planted.token}", f"root/{folder}/made-{planted.token}"):
        answer = http.post(url, params={"path": "/workspace/linked", "user": "root"}, content=archive(entry(name, content=b"x")))
        assert (answer.status_code, answer.json()["code"]) == (400, "path_not_directory")
    race = (
        "import os, time\n"
        f"os.makedirs('raced/a'); os.symlink({folder!r}, 'raced/b')\n"
        "print('ready', flush=True)\n"
        "r = os.rename\n"
        "while True: r('raced/a', 'raced/c'); r('raced/b', 'raced/a'); r('raced/a', 'raced/b'); r('raced/c', 'raced/a')\n"
    )
    racing = sandbox.commands.run(["python3", "-c", race], background=True)
    assert next(iter(racing)).data == b"ready\n"
    many = archive(*(entry(f"a/{number}-{planted.token}", content=b"x") for number in range(40)))
    for _ in range(4):
        http.post(url, params={"path": "/workspace/raced", "user": "root"}, content=many)
    racing.kill()
    assert sandbox.commands.run(["sh", "-c", f"ls -A {folder} | grep -c {planted.token}"], user="root").stdout == "0\n", (
        "nor where the link leads inside"
    )


def test_packing_and_watching_read_no_host_file(sandbox: Sandbox, http: httpx.Client, planted: Planted) -> None:
    url = f"/v1/sandboxes/{sandbox.id}/files"
    for number, (path, user) in enumerate(zip(planted.paths, USERS * len(planted.paths), strict=False)):
        folder = str(Path(path).parent)
        made = sandbox.commands.run(f"mkdir out{number} && ln -s {path} out{number}/file && ln -s /proc/self/root{folder} out{number}/folder")
        assert made.exit_code == 0
        for target in (
            f"/workspace/out{number}/file",
            f"/workspace/out{number}/folder",
            f"/proc/self/root{folder}/../{Path(folder).name}/{Path(path).name}",
        ):
            assert http.get(f"{url}/archive", params={"path": target, "user": user}).status_code in REFUSED
            assert http.get(f"{url}/watch", params={"path": target, "user": user}).status_code in REFUSED
        packed = http.get(f"{url}/archive", params={"path": f"/workspace/out{number}", "user": user})
        with tarfile.open(fileobj=io.BytesIO(packed.content)) as opened:
            assert {member.name: member.type for member in opened} == {"file": tarfile.SYMTYPE, "folder": tarfile.SYMTYPE}


def test_invalid_paths_are_refused_by_every_call(sandbox: Sandbox, http: httpx.Client) -> None:
    url = f"/v1/sandboxes/{sandbox.id}/files"
    for path in ("", "a\0b", "/a\0b", "x" * 5000, "/" + "x" * 5000, "/" + "x" * 300):
        for answer in (
            http.get(f"{url}/archive", params={"path": path}),
            http.post(f"{url}/archive", params={"path": path}, content=archive()),
            http.get(f"{url}/watch", params={"path": path}),
            http.post(f"{url}/signed-urls", json={"path": path}) if len(path) != 301 else http.get(f"{url}/stat", params={"path": path}),
        ):
            assert answer.status_code in REFUSED, (path[:20], answer.text)
            assert answer.json()["code"] in {"path_invalid", "path_not_found"}


def test_signed_url_gives_access_to_one_file(service: LocalService, sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.files.write("/workspace/signed", "signed")
    sandbox.files.write("/workspace/other", "other")
    with service.create() as neighbour:
        neighbour.files.write("/workspace/signed", "the neighbour's")
        url = sandbox.files.sign_url("/workspace/signed")
        assert http.get(url).text == "signed"
        for was, becomes in (
            ("signed&", "other&"),
            (sandbox.id, neighbour.id),
            ("user=user", "user=root"),
            ("%2Fworkspace%2Fsigned&", "%2Fetc%2Fshadow&"),
        ):
            assert was in url
            changed = http.get(url.replace(was, becomes))
            assert (changed.status_code, changed.json()["code"]) == (403, "forbidden")
        for method in ("PUT", "HEAD", "DELETE", "POST"):
            assert http.request(method, url, content=b"x").status_code == 403
    assert sandbox.files.read("/workspace/signed") == "signed"
    key = service.data_dir / "signing.key"
    assert (key.stat().st_mode & 0o777, key.stat().st_size) == (0o600, 32)
    sandbox.files.remove("/workspace/signed")
    assert http.get(url).status_code == 404


def test_download_creates_only_what_stays_below_its_target(sandbox: Sandbox, service: LocalService, planted: Planted, tmp_path: Path) -> None:
    made = sandbox.commands.run(
        f"mkdir -p odd/sub && cd odd && mkfifo pipe && ln -s {planted.paths[0]} link && ln -s .. sub/up && echo here > sub/file && ln sub/file hard"
    )
    assert made.exit_code == 0
    with pytest.raises(SandlotError):
        sandbox.files.download("/workspace/odd/pipe", tmp_path / "pipe")
    skipped: list[str] = []
    sandbox.files.download("/workspace/odd", tmp_path / "odd", on_skip=skipped.append)
    got = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert got == ["odd", "odd/hard", "odd/sub", "odd/sub/file", "odd/sub/up"]
    assert [path.readlink() for path in tmp_path.rglob("*") if path.is_symlink()] == [Path("..")]
    assert ["/workspace/odd/link" in sentence for sentence in skipped] == [True]
    assert service.is_alive()

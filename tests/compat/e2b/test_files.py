"""Files by E2B's own client: written, read, listed, looked at, moved, removed; and by the URLs that it signs."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import httpx
import pytest
from e2b import FileNotFoundException, FileType, InvalidArgumentException, Sandbox
from e2b.exceptions import AuthenticationException

from tests.compat.e2b.conftest import Options


@pytest.fixture(autouse=True)
def empty_again(sandbox: Sandbox) -> Iterator[None]:
    yield
    sandbox.commands.run("rm -rf /home/user/t /root/t", user="root")


def test_text_and_bytes_round_trip(sandbox: Sandbox) -> None:
    written = sandbox.files.write("t/a b/ä.txt", "grüße\n")
    assert (written.name, written.type, written.path) == ("ä.txt", FileType.FILE, "/home/user/t/a b/ä.txt")
    assert sandbox.files.read("t/a b/ä.txt") == "grüße\n"
    whole = bytes(range(256)) * 10_000
    sandbox.files.write("/home/user/t/raw", whole)
    assert bytes(sandbox.files.read("~/t/raw", format="bytes")) == whole
    with sandbox.files.read("t/raw", format="stream") as stream:
        assert b"".join(stream) == whole
    sandbox.files.write("t/raw", "")
    assert sandbox.files.read("t/raw") == ""
    assert sandbox.commands.run("stat -c '%U %a' t/raw").stdout == "user 644\n"


def test_uploads_are_streamed_and_may_be_compressed(sandbox: Sandbox) -> None:
    whole = b"0123456789abcdef" * 200_000
    for octets, packed in ((True, False), (True, True), (False, False)):
        sandbox.files.write("t/big", whole, use_octet_stream=octets, gzip=packed)
        assert sandbox.commands.run("sha256sum < t/big; wc -c < t/big").stdout.split()[-1] == str(len(whole))
        assert bytes(sandbox.files.read("t/big", format="bytes", gzip=True)) == whole
        sandbox.files.remove("t/big")
    sandbox.files.write("t/file", io.BytesIO(whole))
    sandbox.files.write("t/pieces", (piece for piece in (b"a", b"b", b"c")))
    assert sandbox.files.read("t/pieces") == "abc"
    assert sandbox.files.get_info("t/file").size == len(whole)


def test_many_files_are_written_at_once(sandbox: Sandbox) -> None:
    written = sandbox.files.write_files([{"path": f"t/{number}", "data": f"{number}"} for number in range(120)])
    assert [each.path for each in written] == [f"/home/user/t/{number}" for number in range(120)]
    assert sandbox.files.read("t/119") == "119"
    sandbox.files.write_files([{"path": "/home/user/t/1", "data": b"new"}, {"path": "t/y", "data": b"y"}], user="root")
    assert sandbox.commands.run("cat /home/user/t/1; stat -c %U /root/t/y", user="root").stdout == "newroot\n"
    sandbox.files.write("mail", "x", user="games")
    assert sandbox.commands.run("stat -c %U /usr/games/mail", user="root").stdout == "games\n"


def test_missing_paths_and_folders_are_reported(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("t/nothing")
    with pytest.raises(FileNotFoundException):
        sandbox.files.get_info("t/nothing")
    with pytest.raises(FileNotFoundException):
        sandbox.files.list("t/nothing")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/tmp")
    with pytest.raises(AuthenticationException):
        sandbox.files.read("/etc/passwd", user="no-such-user")
    with pytest.raises(AuthenticationException):
        sandbox.files.write("/tmp/new", "x", user="no-such-user")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("/etc/passwd")
    sandbox.files.remove("t/nothing")


def test_file_entries_have_all_fields(sandbox: Sandbox) -> None:
    before = time.time()
    sandbox.files.write("t/file", "12345")
    sandbox.commands.run("cd t; chmod 640 file; ln -s file link; mkdir -m 1777 sticky; mkfifo fifo")
    found = sandbox.files.get_info("t/file")
    assert (found.name, found.type, found.path, found.size) == ("file", FileType.FILE, "/home/user/t/file", 5)
    assert (found.mode, found.permissions, found.owner, found.group) == (0o640, "-rw-r-----", "user", "user")
    assert abs(found.modified_time.timestamp() - before) < 3600
    assert found.symlink_target is None
    link = sandbox.files.get_info("t/link")
    assert (link.type, link.symlink_target, link.permissions) == (FileType.FILE, "/home/user/t/file", "Lrwxrwxrwx")
    sandbox.commands.run("cd t; ln -s loop loop; ln -s nothing dangling; ln -s link chain; ln -s sticky folder; ln -s /etc/hosts absolute")
    targets = {name: sandbox.files.get_info(f"t/{name}") for name in ("loop", "dangling", "chain", "folder", "absolute")}
    assert {name: (found.type, found.symlink_target) for name, found in targets.items()} == {
        "loop": (None, "/home/user/t/loop"),
        "dangling": (None, "/home/user/t/dangling"),
        "chain": (FileType.FILE, "/home/user/t/file"),
        "folder": (FileType.DIR, "/home/user/t/sticky"),
        "absolute": (FileType.FILE, "/etc/hosts"),
    }
    folder = sandbox.files.get_info("t/sticky")
    assert (folder.type, folder.permissions) == (FileType.DIR, "dtrwxrwxrwx")
    assert [each.name for each in sandbox.files.list("t")] == ["absolute", "chain", "file", "folder", "link", "sticky"], "the client omits the rest"


def test_files_outside_the_home_are_written_as_root_for_the_user(sandbox: Sandbox) -> None:
    for path in ("/srv/t/a/file", "/opt/file", "/etc/file"):
        assert sandbox.files.write(path, "new").path == path
        assert sandbox.files.read(path) == "new"
    assert sandbox.commands.run("stat -c %U /srv /srv/t /srv/t/a /srv/t/a/file /etc/file").stdout.split() == ["root", *["user"] * 4]
    assert sandbox.files.make_dir("/srv/t/b/c") is True
    assert sandbox.commands.run("stat -c %U:%G /srv/t/b /srv/t/b/c").stdout.split() == ["user:user"] * 2
    sandbox.files.rename("/opt/file", "/srv/u/moved")
    sandbox.files.write("/srv/u/moved", "by root", user="root")
    assert sandbox.commands.run("stat -c %U /srv/u /srv/u/moved").stdout.split() == ["user", "root"]
    sandbox.files.write("/srv/u/moved", "by the user")
    assert sandbox.commands.run("stat -c %U /srv/u/moved").stdout == "user\n"
    assert sandbox.files.read("/etc/shadow").startswith("root:")
    assert "shadow" in [each.name for each in sandbox.files.list("/etc")]
    for path in ("/srv/t", "/srv/u", "/etc/file"):
        sandbox.files.remove(path)
        assert sandbox.files.exists(path) is False


def test_metadata_of_files_is_kept_until_they_are_written_again(sandbox: Sandbox) -> None:
    metadata = {"author": "me", "purpose": "a test"}
    for octets in (False, True):
        assert sandbox.files.write("t/file", "x", metadata=metadata, use_octet_stream=octets).metadata == metadata
    assert sandbox.files.get_info("t/file").metadata == metadata
    assert [each.metadata for each in sandbox.files.list("t")] == [metadata]
    assert sandbox.files.rename("t/file", "t/other").metadata == metadata
    many = sandbox.files.write_files([{"path": "t/1", "data": "1"}, {"path": "t/2", "data": "2"}], metadata=metadata)
    assert [each.metadata for each in many] == [metadata] * 2
    sandbox.commands.run("ln t/1 t/linked; ln -s 2 t/soft")
    for path in ("t/1", "t/2", "t/other"):
        assert sandbox.files.write(path, "again").metadata is None
        assert sandbox.files.get_info(path).metadata is None
    sandbox.commands.run("python3 -c \"import os; os.setxattr('t/1', 'user.e2b.a', b'b'); os.setxattr('t/1', 'user.e2b.c', bytes([255]))\"")
    assert sandbox.files.get_info("t/1").metadata == {"a": "b"}


def test_folders_are_created_listed_moved_and_removed(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("t/a/b") is True
    assert sandbox.files.make_dir("t/a/b") is False
    sandbox.files.write("t/a/b/c/file", "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir("t/a/b/c/file")
    assert [each.name for each in sandbox.files.list("t")] == ["a"]
    assert [each.path.removeprefix("/home/user/t/") for each in sandbox.files.list("t", depth=3)] == ["a", "a/b", "a/b/c"]
    assert len(sandbox.files.list("t", depth=10)) == 4
    moved = sandbox.files.rename("t/a/b/c/file", "t/new/place")
    assert (moved.path, sandbox.files.read("t/new/place")) == ("/home/user/t/new/place", "x")
    sandbox.files.write("t/other", "y")
    sandbox.files.rename("t/other", "t/new/place")
    assert sandbox.files.read("t/new/place") == "y"
    with pytest.raises(FileNotFoundException):
        sandbox.files.rename("t/nothing", "t/x/y")
    assert sandbox.files.exists("t/x") is False
    sandbox.files.remove("t/a")
    assert (sandbox.files.exists("t/a"), sandbox.files.exists("t/new")) == (False, True)


def test_signed_url_opens_one_file(sandbox: Sandbox, options: Options) -> None:
    sandbox.files.write("t/file.txt", "content")
    url = sandbox.download_url("t/file.txt")
    assert url.startswith(options["sandbox_url"].removesuffix("/e2b") + "/files?path=t")
    assert httpx.get(url).text == "content"
    assert httpx.get(sandbox.download_url("/etc/shadow", user="root")).text.startswith("root:")
    up = sandbox.upload_url("t/up load.txt", use_signature_expiration=60)
    sent = httpx.post(up, files={"file": ("any name", b"sent")})
    assert sent.json() == [{"name": "up load.txt", "type": "file", "path": "/home/user/t/up load.txt"}]
    assert sandbox.files.read("t/up load.txt") == "sent"
    assert httpx.post(up, files={"file": (None, b"sent without a name")}).status_code == 200
    assert sandbox.files.read("t/up load.txt") == "sent without a name"
    expired = httpx.get(sandbox.download_url("t/file.txt", use_signature_expiration=-120))
    assert (expired.status_code, expired.json()) == (401, {"code": 401, "message": "signature is already expired"})


def test_signed_url_opens_nothing_else(sandbox: Sandbox) -> None:
    sandbox.files.write("t/file", "content")
    url, up = sandbox.download_url("t/file"), sandbox.upload_url("t/file")
    for wrong in (
        httpx.get(url.replace("t%2Ffile", "t%2Fother").replace("t/file", "t/other")),
        httpx.get(f"{url}&username=root"),
        httpx.get(f"{url}&signature_expiration=9999999999"),
        httpx.get(up),
        httpx.post(url, files={"file": ("x", b"x")}),
        httpx.get(url.partition("&signature")[0]),
        httpx.get(url, headers={"E2b-Sandbox-Id": "sb-none-0000000000000000"}),
        httpx.get(sandbox.download_url("t/file", use_signature_expiration=-5)),
        httpx.get(url.replace("/files?", "/e2b/health?")),
    ):
        assert wrong.status_code == 401, wrong.text
        assert wrong.json()["code"] == 401
        assert "content" not in wrong.text
    assert sandbox.files.read("t/file") == "content"

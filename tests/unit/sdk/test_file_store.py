"""The file store: uploads, pages and downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.sdk import Client
from tests.unit.sdk.scripted import Reply, Script

AT = "2026-01-01T00:00:00Z"
FILE = {"id": "file-a", "filename": "a.txt", "media_type": "text/plain", "size_bytes": 3, "sha256": "0", "created_at": AT, "sandbox": None}


def test_files_are_read_page_by_page(service: Script, client: Client) -> None:
    pages = [{"files": [FILE, {**FILE, "id": "file-b"}], "next_cursor": "c"}, {"files": [{**FILE, "id": "file-c"}], "next_cursor": None}]
    service.say(*(Reply(200, page) for page in pages))
    assert [file.id for file in client.file_store.list()] == ["file-a", "file-b", "file-c"]
    assert [seen.query for seen in service.seen] == ["", "cursor=c"]
    service.say(Reply(200, pages[0]))
    assert [file.id for file in client.file_store.iter(limit=1)] == ["file-a"]


def test_upload_needs_a_file_name_and_a_file(service: Script, client: Client, tmp_path: Path) -> None:
    for refused in (b"x", [b"x"]):
        with pytest.raises(InvalidRequestError):
            client.file_store.upload(refused)
    with pytest.raises(InvalidRequestError):
        client.file_store.upload(tmp_path)
    with pytest.raises(NotFoundError):
        client.file_store.upload(tmp_path / "none")
    assert service.seen == []


def test_download_writes_only_the_requested_path(service: Script, client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    service.say(Reply(200, FILE), Reply(200, b"abc"))
    assert client.file_store.download("file-a", folder) == folder / "a.txt"
    assert (folder / "a.txt").read_bytes() == b"abc"
    for name in ("../b", "", ".."):
        service.say(Reply(200, {**FILE, "filename": name}))
        with pytest.raises(InvalidRequestError):
            client.file_store.download("file-a", folder)
    assert [path.name for path in folder.iterdir()] == ["a.txt"]

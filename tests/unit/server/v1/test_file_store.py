"""The file store over HTTP: bodies and forms, exact totals, downloads that a browser cannot be tricked by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sandlot.server.settings import Settings
from sandlot.server.v1.file_store import disposition
from tests.support.http import problem
from tests.support.service import bench, client

MIB = 1024 * 1024


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> tuple[dict[str, str], bytes]:
    """A form's header and its body, byte for byte."""
    return {"Content-Type": "multipart/form-data; boundary=b"}, b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


def part(head: bytes, content: bytes = b"x") -> bytes:
    return b"Content-Disposition: form-data; " + head + b"\r\n\r\n" + content


async def test_a_file_from_its_upload_to_its_end(http: httpx.AsyncClient) -> None:
    sent = await http.post("/v1/files", params={"filename": "a.csv", "media_type": "text/csv"}, content=b"1,2\n" * 100_000)
    assert sent.status_code == 201
    file = sent.json()
    assert (file["filename"], file["media_type"], file["size_bytes"], file["sandbox"]) == ("a.csv", "text/csv", 400_000, None)
    assert (await http.get(f"/v1/files/{file['id']}")).json() == file
    got = await http.get(f"/v1/files/{file['id']}/content")
    assert got.content == b"1,2\n" * 100_000
    assert {name: got.headers[name] for name in ("content-type", "content-length", "x-content-type-options", "content-disposition")} == {
        "content-type": "text/csv",
        "content-length": "400000",
        "x-content-type-options": "nosniff",
        "content-disposition": "attachment; filename=\"a.csv\"; filename*=UTF-8''a.csv",
    }
    assert (await http.delete(f"/v1/files/{file['id']}")).status_code == 204
    for gone in (http.get(f"/v1/files/{file['id']}"), http.get(f"/v1/files/{file['id']}/content"), http.delete(f"/v1/files/{file['id']}")):
        problem(await gone, 404, "file_not_found")


async def test_files_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    ids = [(await http.post("/v1/files", params={"filename": f"{number}"}, content=b"")).json()["id"] for number in range(5)]
    found: list[str] = []
    cursor: dict[str, str | None] = {}
    for size in (2, 2, 1):
        page = (await http.get("/v1/files", params={"limit": 2, **cursor})).json()
        assert len(page["files"]) == size
        found += [file["id"] for file in page["files"]]
        cursor = {"cursor": page["next_cursor"]}
    assert (found, cursor) == (ids[::-1], {"cursor": None})
    for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": 0}, {"cursor": "x"}):
        problem(await http.get("/v1/files", params=wrong), 400, "invalid_request")


async def test_forms_are_taken_with_what_is_around_the_file(http: httpx.AsyncClient) -> None:
    data = bytes(range(256)) * 4096 + b"\r\n--b\r\n--bx"
    made = await http.post("/v1/files", files={"note": (None, "first"), "file": ("ä b.bin", data, "image/png")}, data={"more": "x"})
    assert made.status_code == 201, made.text
    assert (made.json()["filename"], made.json()["media_type"], made.json()["size_bytes"]) == ("ä b.bin", "image/png", len(data))
    assert (await http.get(f"/v1/files/{made.json()['id']}/content")).content == data
    headers, body = form(part(b'name="file"; filename="x"', b""))
    for step in (1, 7, len(body)):  # however it is cut into pieces
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        made = await http.post("/v1/files", headers=headers, content=_slowly(pieces))
        assert (made.status_code, made.json()["size_bytes"]) == (201, 0)


NO_FORMS = {
    "no file": form(part(b'name="other"; filename="x"')),
    "no filename": form(part(b'name="file"')),
    "a path": form(part(b'name="file"; filename="../x"')),
    "an empty name": form(part(b'name="file"; filename=""')),
    "no UTF-8": form(part(b'name="file"; filename="\xff"')),
    "cut": form(part(b'name="file"; filename="x"'), end=b""),
    "cut in its end": form(part(b'name="file"; filename="x"'), end=b"--b"),
    "a long header": form(part(b'name="file"; filename="x"\r\nX: ' + b"y" * 5000)),
    "many parts": form(*[part(b'name="other"')] * 101),
    "no boundary": ({"Content-Type": "multipart/form-data"}, b"x"),
    "a long boundary": ({"Content-Type": "multipart/form-data; boundary=" + "b" * 300}, b"x"),
    "no form": ({"Content-Type": "multipart/form-data; boundary=b"}, b"nothing like a form"),
}


async def test_what_is_no_form_with_a_file_is_refused(http: httpx.AsyncClient) -> None:
    for name, (headers, body) in NO_FORMS.items():
        answer = await http.post("/v1/files", headers=headers, content=body)
        assert (name, answer.status_code) == (name, 400), answer.text
        problem(answer, 400, "invalid_request")
    assert (await http.get("/v1/files")).json()["files"] == []


async def test_a_body_needs_a_name_that_goes_nowhere(http: httpx.AsyncClient) -> None:
    for query in (
        {},
        {"filename": ""},
        {"filename": "a/b"},
        {"filename": ".."},
        {"filename": "a\r\nX-Evil: 1"},
        {"filename": "a", "media_type": "x\r\ny"},
    ):
        problem(await http.post("/v1/files", params=query, content=b"x"), 400, "invalid_request")


async def test_file_over_the_upload_limit_is_refused_to_the_byte(folder: Path) -> None:
    async with bench(folder, replace(Settings(), upload_max_bytes=MIB)) as at, client(at.service) as http:
        for size, status in ((MIB, 201), (MIB + 1, 413)):
            assert (await http.post("/v1/files", params={"filename": "x"}, content=b"x" * size)).status_code == status
            assert (await http.post("/v1/files", files={"file": ("x", b"x" * size)})).status_code == status
        assert len((await http.get("/v1/files")).json()["files"]) == 2


async def test_into_a_sandbox_and_out_of_it_and_at_its_making(http: httpx.AsyncClient, url: str) -> None:
    ids = [(await http.post("/v1/files", params={"filename": name}, content=name.encode())).json()["id"] for name in ("a.txt", "b.txt")]
    done = await http.post(f"{url}/files/import", json={"file_ids": ids, "path": "/workspace/in"})
    assert [entry["path"] for entry in done.json()["entries"]] == ["/workspace/in/a.txt", "/workspace/in/b.txt"]
    kept = await http.post(f"{url}/files/export", json={"path": "/workspace/in/b.txt", "filename": "c.txt"})
    assert (kept.status_code, kept.json()["filename"], kept.json()["sandbox"]) == (201, "c.txt", url.rpartition("/")[2])
    assert (await http.get(f"/v1/files/{kept.json()['id']}/content")).content == b"b.txt"
    problem(await http.post(f"{url}/files/import", json={"file_ids": [ids[0], "file-aaaaaaaaaaaaaaaa"]}), 404, "file_not_found")
    refused: list[dict[str, object]] = [{"file_ids": []}, {"file_ids": [ids[0], ids[0]]}, {"file_ids": ids, "path": ""}]
    for body in refused:
        answer = await http.post(f"{url}/files/import", json=body)
        assert answer.status_code == 400, body
    problem(await http.post(f"{url}/files/export", json={"path": "/none"}), 404, "path_not_found")
    limits = {"pids": 32768}
    made = await http.post("/v1/sandboxes", json={"template": "base", "limits": limits, "file_ids": [ids[1]]})
    assert made.status_code == 201, made.text
    assert (await http.get(f"/v1/sandboxes/{made.json()['id']}/files/content", params={"path": "/workspace/b.txt"})).content == b"b.txt"
    before = (await http.get("/v1/sandboxes")).json()["sandboxes"]
    problem(
        await http.post("/v1/sandboxes", json={"template": "base", "limits": limits, "file_ids": ["file-aaaaaaaaaaaaaaaa"]}), 404, "file_not_found"
    )
    assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == before


@pytest.mark.parametrize(
    "filename, header",
    [
        ("a.txt", "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt"),
        ('a"b;c%d\\.txt', "attachment; filename=\"a_b_c_d_.txt\"; filename*=UTF-8''a%22b%3Bc%25d%5C.txt"),
        ("日本.txt", "attachment; filename=\"__.txt\"; filename*=UTF-8''%E6%97%A5%E6%9C%AC.txt"),
        ("a\r\nX: y", "attachment; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"),
    ],
)
def test_filename_cannot_break_the_header(filename: str, header: str) -> None:
    assert disposition(filename) == header


async def _slowly(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece

"""Contexts over HTTP: made, listed, begun anew, interrupted, removed."""

from __future__ import annotations

import re

import httpx

from tests.support.cases import cases
from tests.support.http import post, problem

FIELDS = {"id", "language", "cwd", "state", "execution_count", "pid"}


async def run(http: httpx.AsyncClient, url: str, code: str, **more: object) -> str:
    """What code prints."""
    done = (await http.post(url + "/code", json={"code": code, **more})).json()
    assert done["status"] == "ok", done
    return str(done["stdout"])


async def test_context_is_made_used_listed_restarted_and_removed(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.post(url + "/contexts", json={"cwd": "/tmp", "env": {"WHERE": "here"}})
    assert answer.status_code == 201
    made = answer.json()
    assert set(made) == FIELDS
    assert re.fullmatch(r"ctx-[0-9a-f]{16}", made["id"])
    assert (made["language"], made["cwd"], made["execution_count"]) == ("python", "/tmp", 0)
    await run(http, url, "x = 1")
    assert await run(http, url, "x = 2; import os; print(os.getcwd(), os.environ['WHERE'])", context=made["id"]) == "/tmp here\n"
    assert await run(http, url, "print(x)") == "1\n"
    assert await run(http, url, "print(x)", context=made["id"]) == "2\n"
    listed = (await http.get(url + "/contexts")).json()["contexts"]
    assert {each["id"]: each["execution_count"] for each in listed} == {"default": 2, made["id"]: 2}
    again = (await http.get(f"{url}/contexts/{made['id']}")).json()
    assert (again["id"], again["state"]) == (made["id"], "idle")
    assert again["pid"]
    assert (await http.post(f"{url}/contexts/{made['id']}/restart")).status_code == 204
    assert await run(http, url, "print('x' in globals())", context=made["id"]) == "False\n"
    for removed in (made["id"], "default"):
        assert (await http.delete(f"{url}/contexts/{removed}")).status_code == 204
    problem(await http.get(f"{url}/contexts/{made['id']}"), 404, "context_not_found")
    problem(await http.post(url + "/code", json={"code": "1", "context": made["id"]}), 404, "context_not_found")
    assert await run(http, url, "print('x' in globals())") == "False\n", "the default context begins anew"


async def test_what_runs_is_interrupted(http: httpx.AsyncClient, url: str) -> None:
    body = {"code": "x = 3\nwhile True: pass", "background": True, "timeout": None}
    execution = (await http.post(url + "/code", json=body)).json()["id"]
    while (await http.get(f"{url}/code/{execution}")).json()["next"]["events_from"] == 0:
        pass  # its turn has not come yet
    assert (await http.post(f"{url}/contexts/default/interrupt")).json() == {"running": True}
    assert (await http.get(f"{url}/code/{execution}", params={"wait": 60})).json()["error"]["name"] == "KeyboardInterrupt"
    assert await run(http, url, "print(x)") == "3\n"
    assert (await http.post(f"{url}/contexts/default/interrupt")).json() == {"running": False}


@cases(
    "body,status,code",
    [
        ({"language": "cobol"}, 400, "invalid_request"),
        ({"language": None}, 400, "invalid_request"),
        ({"cwd": ""}, 400, "path_invalid"),
        ({"cwd": "/there/is/none"}, 404, "working_directory_not_found"),
        ({"env": {"A=B": "c"}}, 400, "invalid_request"),
        ({"name": "x"}, 400, "invalid_request"),
    ],
)
async def test_what_makes_no_sense_is_told(http: httpx.AsyncClient, url: str, body: object, status: int, code: str) -> None:
    problem(await post(http, url + "/contexts", body), status, code)


@cases("id_", ["ctx-0123456789abcdef", "nope", "ctx-..%2F.."])
async def test_one_that_there_is_not(http: httpx.AsyncClient, url: str, id_: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/restart"), ("POST", "/interrupt")):
        answer = await http.request(method, f"{url}/contexts/{id_}{path}")
        assert answer.status_code == 404, answer.text
        assert answer.json()["code"] in {"context_not_found", "not_found"}


async def test_repeated_create_under_one_key_makes_one_context(http: httpx.AsyncClient, url: str) -> None:
    made = [await http.post(url + "/contexts", json={"cwd": "/tmp"}, headers={"Idempotency-Key": "mine"}) for _ in range(2)]
    assert [each.status_code for each in made] == [201, 201]
    assert re.fullmatch(r"ctx-[0-9a-f]{16}", made[0].json()["id"])
    others = [
        await http.post(url + "/contexts", json={"cwd": "/tmp"}, headers={"Idempotency-Key": "other"}),
        await http.post(url + "/contexts", json={}, headers={"Idempotency-Key": "mine"}),
    ]
    ids = {each.json()["id"] for each in (*made, *others)}
    assert len(ids) == 3
    assert {each["id"] for each in (await http.get(url + "/contexts")).json()["contexts"]} - {"default"} == ids
    problem(await http.post(url + "/contexts", json={}, headers={"Idempotency-Key": "a b"}), 400, "invalid_request")

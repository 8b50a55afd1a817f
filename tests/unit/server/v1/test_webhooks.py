"""Webhooks over HTTP: made, told once with their secret, listed and removed."""

from __future__ import annotations

import httpx

from tests.support.service import Bench, tcp_client

URL = "https://example.com/hooks"
FIELDS = {
    *("id", "name", "owner", "url", "events", "enabled", "created_at"),
    *("cursor", "delivered", "given_up", "tries", "next_at", "last_at", "last_error"),
}


async def test_a_webhook_is_made_and_its_secret_told_once(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/webhooks", json={"url": URL, "events": ["sandbox.ended"], "name": "monitor"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert set(made) == FIELDS | {"secret"}
    assert made.pop("secret").startswith("whsec_")
    assert (made["url"], made["events"], made["name"], made["delivered"], made["last_error"]) == (URL, ["sandbox.ended"], "monitor", 0, "")
    assert (await http.get(f"/v1/webhooks/{made['id']}")).json() == made
    assert (await http.get("/v1/webhooks")).json() == {"webhooks": [made]}
    assert (await http.delete(f"/v1/webhooks/{made['id']}")).status_code == 204
    for gone in (await http.get(f"/v1/webhooks/{made['id']}"), await http.delete(f"/v1/webhooks/{made['id']}")):
        assert (gone.status_code, gone.json()["code"]) == (404, "webhook_not_found")


async def test_a_webhook_is_changed_in_what_is_said(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/webhooks", json={"url": URL, "events": ["sandbox.ended"], "enabled": False})).json()
    secret = made.pop("secret")
    assert made["enabled"] is False
    where = f"/v1/webhooks/{made['id']}"
    assert (await http.patch(where, json={})).json() == made
    asked = {"url": f"{URL}/2", "events": ["sandbox.created"], "name": "two", "enabled": True}
    changed = await http.patch(where, json={**asked, "secret": f"{secret}2"})
    assert (changed.status_code, changed.json()) == (200, {**made, **asked})
    assert (await http.get(where)).json() == {**made, **asked}
    for body in ({"url": "http://127.0.0.1:8080/"}, {"events": ["x"]}, {"secret": "short"}, {"enabled": "no"}, {"surplus": 1}, {"shape": "sandbase"}):
        refused = await http.patch(where, json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), body
    assert (await http.patch("/v1/webhooks/x", json={})).status_code == 404
    assert (await http.get(where)).json() == {**made, **asked}


async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient) -> None:
    for body in (
        {},
        {"url": 1},
        {"url": "http://127.0.0.1:8080/"},
        {"url": "http://[fd00::1]/"},
        {"url": URL, "events": ["sandbox.exploded"]},
        {"url": URL, "events": "sandbox.ended"},
        {"url": URL, "secret": "short"},
        {"url": URL, "secret": "x" * 257},
        {"url": URL, "name": ""},
        {"url": URL, "name": "x" * 129},
        {"url": URL, "surplus": 1},
    ):
        answer = await http.post("/v1/webhooks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body
    assert (await http.get("/v1/webhooks")).json() == {"webhooks": []}


async def test_a_key_has_its_own_and_so_many(at: Bench) -> None:
    secrets = [(await at.service.api_keys.create(name))[1] for name in ("one", "other")]
    async with tcp_client(at.service, secrets[0]) as mine, tcp_client(at.service, secrets[1]) as theirs:
        made = [(await mine.post("/v1/webhooks", json={"url": URL})).json()["id"] for _ in range(10)]
        assert (await mine.post("/v1/webhooks", json={"url": URL})).status_code == 429
        assert (await theirs.get("/v1/webhooks")).json() == {"webhooks": []}
        where = f"/v1/webhooks/{made[0]}"
        for refused in (await theirs.get(where), await theirs.patch(where, json={"enabled": False}), await theirs.delete(where)):
            assert refused.status_code == 404
        assert [each["id"] for each in (await mine.get("/v1/webhooks")).json()["webhooks"]] == made

"""Lists of directories with many entries."""

from __future__ import annotations

import itertools
from urllib.parse import parse_qs

from sandlot.sdk import Sandbox
from tests.unit.sdk.scripted import Reply, Script, Seen

PAGE = 1000


def page(seen: Seen) -> Reply:
    """A page of a directory without an end."""
    first = int(parse_qs(seen.query).get("offset", ["0"])[0])
    names = (f"{number:09}" for number in itertools.count(first))
    entries = [{"name": name, "path": f"/d/{name}", "kind": "file"} for name in itertools.islice(names, PAGE)]
    return Reply(200, {"entries": entries, "more": True})


def test_no_more_pages_are_read_than_the_limit_needs(service: Script, sandbox: Sandbox) -> None:
    service.say(page)
    found = sandbox.files.list("/d", limit=PAGE + 1)
    assert (len(found), found[-1].name, len(service.seen)) == (PAGE + 1, "000001000", 2)
    service.seen.clear()
    assert len(sandbox.files.list("/d", limit=5)) == 5
    assert len(service.seen) == 1

"""Promise: the keys of models and MCP servers never enter the sandbox of a session: no environment, process, memory, file and snapshot has one.

The code of the agent leaves marks in the same places, and each search must find its mark.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.inside import run_inside
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.support.tcpservice import TcpService, tcp_service
from tests.support.tool_server import tool_server

pytestmark = pytest.mark.slow

KEYS = {owner: f"key-of-the-{owner}-{secrets.token_hex(8)}" for owner in ("model", "server")}
MARKS = {place: f"mark-in-the-{place}-{secrets.token_hex(8)}" for place in ("memory", "environment", "command", "file")}
"""Place in the sandbox -> text that the code of the agent keeps there."""
CODES = {place: list(text.encode()) for place, text in MARKS.items()}
CODE = f"""
import subprocess
marks = {{place: bytes(codes).decode() for place, codes in {CODES}.items()}}
kept = marks["memory"]
open("/home/user/kept", "w").write(marks["file"])
subprocess.Popen(["sleep", "infinity"], env={{"KEPT": marks["environment"]}})
subprocess.Popen(["python3", "-c", "import time; time.sleep(100_000)", marks["command"]])
"""
SEARCH = """
import time
needles = {name: text.encode() for name, text in given.items()}
for name in needles:
    told[name] = []

def note(place, content):
    for name, needle in needles.items():
        if needle in content:
            told[name].append(place)

def note_memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if "r" in line.split()[1] and not line.rstrip().endswith(("[vvar]", "[vdso]", "[vsyscall]")):
                try:
                    memory.seek(start)
                    note(f"/proc/{pid}/mem", memory.read(end - start))
                except OSError:
                    continue  # pages without content

def note_process(pid):
    for name in os.listdir(f"/proc/{pid}"):
        path = f"/proc/{pid}/{name}"
        if os.path.isfile(path) and name != "mem":
            got = attempt(read, path)
            if "got" in got:
                note(path, got["got"].encode("latin-1"))
    note_memory(pid)

for pid in processes():
    if pid != os.getpid():
        attempt(note_process, pid)  # the process may have ended
with open("/proc/uptime") as file:
    started_at = time.time() - float(file.read().split()[0]) - 1
for folder, folders, names in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
    for path in (os.path.join(folder, name) for name in names):
        about = os.lstat(path)
        if stat.S_ISREG(about.st_mode) and about.st_ctime >= started_at:  # other files are those of the template
            with open(path, "rb") as file:
                note(path, file.read())
"""


def think(conversation: Conversation) -> Step:
    """Leave the marks, call the server, and say so."""
    calls = (Call("run_code", {"code": CODE}), Call("calculator__headers", {}))
    return calls[len(conversation.results)] if len(conversation.results) < len(calls) else Say("Kept.")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpService]:
    folder = tmp_path_factory.mktemp("agents")
    with scripted_model(think) as endpoint, tool_server(KEYS["server"]) as server:
        models, servers = folder / "models.toml", folder / "servers.toml"
        models.write_text(f'[models.large]\nkind = "anthropic"\nbase_url = "{endpoint.address}"\napi_key = "{KEYS["model"]}"\n', encoding="utf-8")
        servers.write_text(f'[servers.calculator]\nurl = "{server.url}"\nheaders = {{Authorization = "Bearer {server.token}"}}\n', encoding="utf-8")
        files = {"SANDLOT_AGENT_MODELS": str(models), "SANDLOT_AGENT_MCP_SERVERS": str(servers)}
        with tcp_service({**files, "SANDLOT_POOLS": "none"}) as running:
            yield running
        assert endpoint.keys == {KEYS["model"]}


def test_keys_of_models_and_servers_are_in_no_place_of_a_sandbox_and_its_snapshots(service: TcpService) -> None:
    sessions = service.client.agent_sessions
    agent = service.client.agents.create("Analyst", "large", tools=[{"type": "mcp", "server": name} for name in ("code-exec", "calculator")])
    session = sessions.create(agent.id, template="base", timeout=600)
    sessions.send(session.id, "Keep the marks.")
    events = list(sessions.follow(session.id))
    assert [event.text for event in events][-3:-1] == ["You sent [redacted].", "Kept."]
    assert not any(key in str(event.data) for event in events for key in KEYS.values())
    found = sessions.get(session.id).sandbox
    assert found is not None
    sandbox = Sandbox.connect(found, client=service.client)
    # Before the search inside, which brings the keys into the sandbox.
    snapshots = {kind: sandbox.snapshot(kind=kind) for kind in ("memory", "files")}
    try:
        on_disk = {kind: search_files(service.data_dir / "saved" / taken.id) for kind, taken in snapshots.items()}
        assert set(MARKS) <= on_disk["memory"].keys()
        assert "file" in on_disk["files"]
        assert [kind for kind, found in on_disk.items() if found.keys() & KEYS.keys()] == []
    finally:
        for taken in snapshots.values():
            service.client.snapshots.delete(taken.id)
    inside = run_inside(sandbox, SEARCH, user="root", given={**MARKS, **KEYS})
    assert any(place.endswith("/mem") for place in inside["memory"])
    assert any(place.endswith("/environ") for place in inside["environment"])
    assert any(place.endswith("/cmdline") for place in inside["command"])
    assert "/home/user/kept" in inside["file"]
    assert [inside[name] for name in KEYS] == [[], []]


def search_files(folder: Path) -> dict[str, list[Path]]:
    """Search the marks and the keys in all files of a folder. Returns name of a text -> files that have it."""
    found: dict[str, list[Path]] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
                for name, text in {**MARKS, **KEYS}.items():
                    if content.find(text.encode()) >= 0:
                        found.setdefault(name, []).append(path)
    return found

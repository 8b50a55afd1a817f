"""What the clients of an ordeal do, each with the few things that may have happened when it is cut in the middle."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import unix_connect
from websockets.sync.connection import Connection

from tests.support.doomed import COUNTER
from tests.support.ordeal import PATIENCE_S, Client, Cut, Ordeal, Wrong, expect, pages

MIB = 1 << 20
PIECE_BYTES = 1 << 16
SMALL_BYTES = 2 * MIB
LARGE_BYTES = 20 * MIB
BEHIND_S = 3.0
"""The log is written at most 1 s behind, and an answer may be read a while after its service was killed; the rest is for a busy machine."""
LINE_BYTES = 10
"""Of the counter's output: line n stands at byte 10 n."""


class Tenant(Client):
    """A client that has one sandbox all the time, with a variable and a process in the background."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int, **asked: Any) -> None:  # noqa: ANN401 - a sandbox's fields
        super().__init__(ordeal, name, seed)
        self._asked = asked
        self.sandbox = ""
        self.told: list[tuple[str, float]] = []
        """Every command and cell that ended, and when that was told."""
        self._sleeper = ""

    @property
    def url(self) -> str:
        """Of its sandbox."""
        return f"/v1/sandboxes/{self.sandbox}"

    def begin(self) -> None:
        limits = {"memory_bytes": 384 * MIB, "disk_bytes": 512 * MIB, "pids": 64}
        asked = {"template": "base", "timeout": 3600, "limits": limits, "name": self.name.replace(" ", "-"), **self._asked}
        self.sandbox = self.ask("POST", "/v1/sandboxes", ok={201}, json=asked).json()["id"]
        self.sleeps()
        self.cell(f"kept = {self.name!r}; n = 0")
        self.prepare()

    def prepare(self) -> None:
        """What else it needs."""

    def sleeps(self) -> None:
        """Leave a process behind that must live as long as the sandbox."""
        body = {"argv": ["sleep", "100000"], "background": True}
        self._sleeper = self.ask("POST", f"{self.url}/processes", ok={201}, json=body).json()["id"]

    def cell(self, code: str, timeout: float = 60) -> dict[str, Any]:
        """Run code that ends well; what was told."""
        done: dict[str, Any] = self.ask("POST", f"{self.url}/code", json={"code": code, "timeout": timeout}).json()
        expect(done["status"], "ok")
        self.told.append((done["id"], time.monotonic()))
        return done

    def shown(self, code: str) -> str:
        """Run code; the text of its value."""
        result: str = self.cell(code)["results"][-1]["data"]["text/plain"]
        return result

    def shell(self, command: str) -> str:
        """Run a command that ends well; its output."""
        done = self.ask("POST", f"{self.url}/processes", json={"command": command}).json()
        expect((done["exit_code"], done["reason"], done["stdout_omitted_bytes"]), (0, "exited", 0))
        self.told.append((done["id"], time.monotonic()))
        output: str = done["stdout"]
        return output

    def recover(self) -> None:
        """It lives, with its variables and what runs in it."""
        expect(self.ask("GET", self.url).json()["state"], "running")
        running = {each["id"] for each in self.ask("GET", f"{self.url}/processes").json()["processes"] if each["running"]}
        expect(self._sleeper in running, True)
        expect(self.shown("kept"), repr(self.name))

    def finish(self) -> None:
        """The log of its runs has all that ended long enough before a kill, and none that is not its own."""
        self.recover()
        ends_s = time.monotonic() + 10
        while missing := self._missing():
            if time.monotonic() > ends_s:
                raise Wrong(f"of {len(self.told)} runs the log lacks {missing}: id -> seconds until the next kill")
            time.sleep(0.2)

    def _missing(self) -> dict[str, float]:
        listed = pages(self, "/v1/executions", "executions", sandbox=self.sandbox, limit=200)
        logged = {each["id"] for each in listed if each["status"] in {"ok", "exited"}}
        kills = [*self.ordeal.killed_at_s, math.inf]
        missing = {id_: next(killed_s - at_s for killed_s in kills if killed_s > at_s - BEHIND_S) for id_, at_s in self.told if id_ not in logged}
        return {id_: lived_s for id_, lived_s in missing.items() if lived_s > BEHIND_S}


class Cells(Tenant):
    """Counts in its kernel. A cell that was cut has counted or not, and never twice."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int, **asked: Any) -> None:  # noqa: ANN401 - a sandbox's fields
        super().__init__(ordeal, name, seed, **asked)
        self._count = 0

    def step(self) -> None:
        self.doing = f"runs a cell that makes {self._count + 1} of {self._count}"
        code = f"import time\ntime.sleep({0.3 if self.ordeal.aimed('cell') else 0})\nn += 1\nn"
        self.ordeal.at("cell")
        expect(self.shown(code), str(self._count + 1))
        self._count += 1
        self.doing = "runs a command"
        word = f"{self.random.getrandbits(60):x}"
        self.ordeal.at("command")
        expect(self.shell(f"echo {word}"), f"{word}\n")

    def recover(self) -> None:
        super().recover()
        found = int(self.shown("n"))
        expect(found, self._count, self._count + 1)
        self._count = found


class Flood(Tenant):
    """Follows an endless output, and goes on at its offset: every byte is right, and what is gone is said to be."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int, **asked: Any) -> None:  # noqa: ANN401 - a sandbox's fields
        super().__init__(ordeal, name, seed, **asked)
        self._process = ""
        self._offset = 0
        self.lost_bytes = 0

    def prepare(self) -> None:
        body = {"argv": ["python3", "-c", COUNTER], "background": True}
        self._process = self.ask("POST", f"{self.url}/processes", ok={201}, json=body).json()["id"]

    def step(self) -> None:
        self.doing = f"follows a flood from byte {self._offset}"
        url, query = f"{self.url}/processes/{self._process}/output", {"stdout_from": self._offset}
        try:
            with self.http.stream("GET", url, params=query, headers={"Accept": "text/event-stream"}) as answer:
                if answer.status_code != 200:
                    answer.read()
                self.checked(answer, {200})
                for name, data in _events(answer):
                    self._take(name, data)
                    self.ordeal.at("flood", self.random.randrange(100))
                    if self.ordeal.stopped.is_set() or self.random.random() < 0.002:
                        return
        except httpx.TransportError as error:
            raise Cut(repr(error)) from error
        raise Cut("the stream ended without a last event")

    def _take(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "lost":
            self.lost_bytes += data["lost_bytes"]
            self._offset += data["lost_bytes"]
        elif name == "output":
            expect((data["stream"], data["encoding"], data["offset"]), ("stdout", "utf-8", self._offset))
            text = data["data"].encode()
            first = self._offset // LINE_BYTES
            whole = b"".join(b"%09d\n" % n for n in range(first, first + len(text) // LINE_BYTES + 2))
            begin = self._offset - first * LINE_BYTES
            expect(text == whole[begin : begin + len(text)], True)
            self._offset += len(text)
        elif name != "started":
            raise Wrong(f"{name}: {data}")


class Terminal(Tenant):
    """Types lines on a terminal and reads them there: each comes once and whole, or was cut off before it came; what was shown stays."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int, **asked: Any) -> None:  # noqa: ANN401 - a sandbox's fields
        super().__init__(ordeal, name, seed, **asked)
        self._process = ""
        self._typed = 0
        self._shown = b""

    def prepare(self) -> None:
        body = {"command": "stty raw -echo; echo ready; exec cat", "pty": {}, "background": True}
        self._process = self.ask("POST", f"{self.url}/processes", ok={201}, json=body).json()["id"]
        self._screen(b"ready\n")

    def step(self) -> None:
        self._screen()

    def recover(self) -> None:
        super().recover()
        self._screen()

    def _screen(self, until: bytes = b"") -> None:
        """Connect, go on where the screen stood, and type a while."""
        address = f"ws://sandlot{self.url}/processes/{self._process}/terminal?stdout_from={len(self._shown)}"
        try:
            with unix_connect(str(self.ordeal.socket), address, open_timeout=PATIENCE_S, close_timeout=1) as screen:
                self._until(screen, until)
                for _ in range(50 if self.ordeal.aimed("terminal") else 5):
                    self._typed += 1
                    self.doing = f"types line {self._typed}"
                    line = b"line %d\n" % self._typed
                    screen.send(line)
                    self.ordeal.at("terminal")
                    self._until(screen, line)
        except InvalidStatus as error:
            if error.response.status_code != 503:
                raise
            raise Cut(repr(error)) from error
        except (OSError, EOFError, ConnectionClosed, InvalidMessage) as error:
            raise Cut(repr(error)) from error

    def _until(self, screen: Connection, line: bytes) -> None:
        while not self._shown.endswith(line):
            message = screen.recv(PATIENCE_S)
            if isinstance(message, bytes):
                self._shown += message
            else:
                expect(json.loads(message)["event"], "started")
        numbers = [int(each.removeprefix(b"line ")) for each in self._shown.split(b"\n")[1:-1]]
        expect(numbers == sorted(set(numbers)), True)


class Upload(Tenant):
    """Writes one file again and again. It is the old one or the new one, never half of either, and nothing lies beside it."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int, **asked: Any) -> None:  # noqa: ANN401 - a sandbox's fields
        super().__init__(ordeal, name, seed, **asked)
        self._version = 0
        self._now = hashlib.sha256().hexdigest()
        self._then = self._now

    def prepare(self) -> None:
        self.shell("mkdir /workspace/only; : >/workspace/only/file")

    def step(self) -> None:
        large = self.ordeal.aimed("upload")
        size, version = LARGE_BYTES if large else SMALL_BYTES, self._version + 1
        piece = f"{version:016d}".encode() * (PIECE_BYTES // 16)
        digest = hashlib.sha256()
        for _ in range(size // PIECE_BYTES):
            digest.update(piece)
        self._then = digest.hexdigest()
        self.doing = f"uploads version {version} of {size >> 20} MB"

        def content() -> Iterator[bytes]:
            for sent in range(0, size, PIECE_BYTES):
                self.ordeal.at("upload" if large else "small upload", sent)
                yield piece

        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        told = self.ask("PUT", f"{self.url}/files/content", params={"path": "/workspace/only/file"}, content=content(), headers=headers).json()
        expect(told["size_bytes"], size)
        self._version, self._now = version, self._then
        self.doing = "looks at its upload"
        self._look()

    def recover(self) -> None:
        super().recover()
        self._look()
        self._version += 1

    def _look(self) -> None:
        found = self.shell("sha256sum </workspace/only/file").split()[0]
        expect(found, self._now, self._then)
        self._now = found
        ends_s = time.monotonic() + 10
        while (names := self.shell("ls -A /workspace/only")) != "file\n":  # what was half is removed when the guest hears of the cut
            if time.monotonic() > ends_s:
                raise Wrong(f"beside the file lies {names!r}")


class Lives(Client):
    """Creates sandboxes and deletes them, with a key for each create: however often it is cut, there is one of each, and then none."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int) -> None:
        super().__init__(ordeal, name, seed)
        self.ids: list[str] = []
        self._mark = ""
        self._asked: dict[str, Any] = {}
        self._now = ""

    def step(self) -> None:
        self._mark, self._now = uuid.uuid4().hex, ""
        self._asked = {
            "template": "base",
            "timeout": 900,
            "isolation": self.random.choice(["gvisor", "container"]),
            "metadata": {"mark": self._mark},
            "limits": {"memory_bytes": 96 * MIB, "disk_bytes": 64 * MIB, "pids": 48},
        }
        self.doing = f"creates {self._mark} ({self._asked['isolation']})"
        self.ordeal.at("create")
        self._create()
        self.doing = f"deletes {self._now}"
        self.ordeal.at("delete")
        self._end_it()

    def recover(self) -> None:
        if not self._now:
            self._create()
        self._end_it()

    def _create(self) -> None:
        told = self.ask("POST", "/v1/sandboxes", ok={200, 201}, json=self._asked, headers={"Idempotency-Key": self._mark}).json()
        self._now = told["id"]
        self.ids.append(self._now)
        alive = [each["id"] for each in pages(self, "/v1/sandboxes", "sandboxes") if each["metadata"].get("mark") == self._mark]
        expect(alive, [self._now])
        done = self.ask("POST", f"/v1/sandboxes/{self._now}/processes", json={"command": "echo made"}).json()
        expect(done["stdout"], "made\n")

    def _end_it(self) -> None:
        self.ask("DELETE", f"/v1/sandboxes/{self._now}", ok={204})
        told = self.ask("GET", f"/v1/sandboxes/{self._now}", ok={200, 404}).json()
        expect(told.get("state", "stopped"), "stopped", "stopping")

    def finish(self) -> None:
        """None of them is left."""
        expect([each["id"] for each in pages(self, "/v1/sandboxes", "sandboxes") if each["id"] in set(self.ids)], [])


class Store(Client):
    """Keeps files in the file store. One whose upload was cut is there whole or not at all; what was told of stays, and nothing else is there."""

    def __init__(self, ordeal: Ordeal, name: str, seed: int) -> None:
        super().__init__(ordeal, name, seed)
        self._kept: dict[str, tuple[str, bytes]] = {}
        """What there must be: name -> id and content."""
        self._now = "", b""
        self._removed = ""

    def step(self) -> None:
        name, content = uuid.uuid4().hex, self.random.randbytes(self.random.randrange(2 * MIB)) * 2
        self._now = name, content
        self.doing = f"keeps a file of {len(content)} bytes"

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(content), PIECE_BYTES):
                self.ordeal.at("keep", at)
                yield content[at : at + PIECE_BYTES]

        headers = {"Content-Length": str(len(content)), "Content-Type": "application/octet-stream"}
        told = self.ask("POST", "/v1/files", ok={201}, params={"filename": name}, content=pieces(), headers=headers).json()
        self._kept[name], self._now = (told["id"], content), ("", b"")
        self._look()
        if len(self._kept) > 3:
            self._removed = min(self._kept)
            self.doing = "removes a file"
            self.ordeal.at("remove")
            self.ask("DELETE", f"/v1/files/{self._kept[self._removed][0]}", ok={204})
            del self._kept[self._removed]
            self._removed = ""

    def recover(self) -> None:
        listed = {each["filename"]: each["id"] for each in self._listed()}
        if self._removed and self._removed not in listed:
            del self._kept[self._removed]
        self._removed = ""
        name, content = self._now
        if name in listed:
            self._kept[name] = listed[name], content
        self._now = "", b""
        self._look()

    def finish(self) -> None:
        """All that is kept is what it was."""
        self._look()
        for id_, content in self._kept.values():
            expect(self.ask("GET", f"/v1/files/{id_}/content").content == content, True)
            self.ask("DELETE", f"/v1/files/{id_}", ok={204})
        expect(self._listed(), [])

    def _look(self) -> None:
        expect({each["filename"]: each["id"] for each in self._listed()}, {name: id_ for name, (id_, _) in self._kept.items()})
        if self._kept:
            id_, content = self.random.choice(list(self._kept.values()))
            expect(self.ask("GET", f"/v1/files/{id_}/content").content == content, True)

    def _listed(self) -> list[dict[str, Any]]:
        page = self.ask("GET", "/v1/files", params={"limit": 100}).json()
        expect(page["next_cursor"], None)
        files: list[dict[str, Any]] = page["files"]
        return files


def _events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))

"""Requests to a control socket, and responses of every kind. The conformance suite uses a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime
from sandlot.drivers.oci.snapshots import control_socket, image_files
from sandlot.drivers.oci.snapshots.control_socket import ControlEngine, call
from sandlot.host.launcher import Started
from sandlot.host.nat_table import nat_table
from sandlot.host.process_identity import Identity

REF = "ab27-aaaaaaaaaaaaaaaa"
NOBODY = Identity(1, 1)


class Far:
    """The runtime's side: keeps all requests and sends the given responses."""

    def __init__(self, listening: socket.socket) -> None:
        self.heard: list[Any] = []
        self.contents: list[bytes] = []
        self.answers: list[bytes] = [b'{"success":true,"err":"","result":{"seen":1}}']
        self._listening = listening

    def serve(self) -> None:
        client, _ = self._listening.accept()
        with client:
            message, files, _, _ = socket.recv_fds(client, 1 << 16, 8)
            self.heard.append(json.loads(message))
            for file in files:
                self.contents.append(os.read(file, 100) if os.get_blocking(file) and _is_readable(file) else b"")
                os.close(file)
            for answer in self.answers:
                client.sendall(answer)


def _is_readable(file: int) -> bool:
    return os.lseek(file, 0, os.SEEK_END) > 0 and os.lseek(file, 0, os.SEEK_SET) == 0


@pytest.fixture
def live(tmp_path: Path) -> RunningOciRuntime:
    """In a folder whose socket's path is longer than an address can be."""
    folder = SandboxFolder(tmp_path / ("x" * 120) / REF)
    folder.runtime.mkdir(parents=True)
    return RunningOciRuntime(folder, Started(NOBODY, NOBODY), Program("runsc", Path("/usr/bin/runsc"), "00", "x"))


@pytest.fixture
def far(live: RunningOciRuntime) -> Iterator[Far]:
    handle = os.open(live.folder.runtime, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{handle}/{live.folder.control.name}")
        os.close(handle)
        listening.listen()
        listening.settimeout(10)
        yield Far(listening)


async def told(far: Far, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it gives
    serving = asyncio.create_task(asyncio.to_thread(far.serve))
    try:
        return await work()
    finally:
        await serving


@pytest.mark.parametrize(
    "answers, words",
    [
        ([b'{"success":false,"err":"no space left on device"}'], "no space left on device"),
        ([b'{"success":false}'], "without a reason"),
        ([b"[1]"], "the runtime's response is not a JSON object"),
        ([b'{"success":'], "the runtime closed its control socket"),
        ([], "the runtime closed its control socket"),
        ([json.dumps({"success": False, "err": "x" * 5000}).encode()], "x" * 400),
    ],
)
async def test_refusal_raises_the_message_of_the_runtime(live: RunningOciRuntime, far: Far, answers: list[bytes], words: str) -> None:
    far.answers = answers
    with pytest.raises(EngineError) as refused:
        await told(far, lambda: call(live, "some.Method", None))
    assert words in str(refused.value)
    assert len(str(refused.value)) <= 400


async def test_snapshot_of_another_processor_is_recognized(live: RunningOciRuntime, far: Far) -> None:
    far.answers = [b'{"success":false,"err":"incompatible FeatureSet: missing features: avx512f"}']
    with pytest.raises(EngineError) as refused:
        await told(far, lambda: call(live, "some.Method", None))
    assert refused.value.needs_other_cpu
    assert not EngineError("no space left on device").needs_other_cpu


async def test_endless_response_is_refused(live: RunningOciRuntime, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_MAX_RESPONSE_BYTES", 1000)
    far.answers = [b"[" + b"1," * 2000]
    with pytest.raises(EngineError, match="longer than 1000 bytes"):
        await told(far, lambda: call(live, "some.Method", None))


async def test_missing_response_times_out(live: RunningOciRuntime, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    del far  # it listens, and accepts nobody
    monkeypatch.setattr(control_socket, "RESPONSE_TIMEOUT_S", 0.05)
    with pytest.raises(EngineError, match="sent no response"):
        await call(live, "some.Method", None)


async def test_missing_socket_is_reported(live: RunningOciRuntime) -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        await call(live, "some.Method", None)
    live.folder.runtime.rmdir()
    with pytest.raises(EngineError, match="cannot be reached"):
        await call(live, "some.Method", None)


async def test_missing_image_is_named_before_a_request_is_sent(live: RunningOciRuntime, tmp_path: Path) -> None:
    (tmp_path / image_files.STATE).touch()
    with pytest.raises(EngineError, match=r"pages_meta\.img cannot be opened: No such file"):
        await ControlEngine().restore(live, tmp_path)


async def test_card_is_a_second_loopback_device_with_a_nat_table(live: RunningOciRuntime, far: Far) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names, not paths
    await told(far, lambda: ControlEngine().set_up(live))

    (request,) = far.heard
    assert request["method"] == "Network.CreateLinksAndRoutes"
    links = {link["Name"]: link for link in request["arg"]["LoopbackLinks"]}
    assert request["arg"]["NATBlob"] is True
    assert list(links) == ["lo", "eth0"]
    assert far.contents == [nat_table()[:100]]
    assert links["eth0"]["Addresses"] == [{"Address": "192.0.2.2", "PrefixLen": 32}]
    assert links["eth0"]["Routes"] == [{"Destination": {"IP": "0.0.0.0", "Mask": "AAAAAA=="}}]  # noqa: S104 - the default route
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208

"""What the service says about processes, parsed."""

from __future__ import annotations

from sandlot.sdk.inside.processes import ProcessInfo


def test_a_process() -> None:
    info = ProcessInfo.parse({"process": "p", "pid": 3, "argv": ["sleep", "1"], "running": True, "stdout_bytes": 5})
    assert info == ProcessInfo("p", 3, ("sleep", "1"), running=True, stdout_bytes=5)
    assert ProcessInfo.parse({"process": "p", "running": False, "tag": "job", "cwd": "/tmp", "env": {"A": "b"}}) == ProcessInfo(
        "p", None, (), running=False, tag="job", cwd="/tmp", env={"A": "b"}
    )

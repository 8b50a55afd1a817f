"""Tests that try to see the host's files, environment, processes and network from inside a sandbox.

The tests are few and short. If a driver fails one of these tests, its sandboxes are not isolated.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

from sandlot.model.specs import User
from sandlot.testing.drivers.harness import DriverHarness

_FIND = """
import os, sys
token = sys.argv[1]
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys")]
    for name in files:
        if token in name:
            print(os.path.join(folder, name))
print("complete")
"""
_CONNECT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    for host in ("127.0.0.1", "localhost", sys.argv[1], "10.0.2.2", "169.254.169.254"):
        try:
            with socket.create_connection((host, port), timeout=60) as client:
                client.recv(1)
            print("reached", host, port)
        except TimeoutError:
            print("not refused", host, port)
        except OSError:
            pass
try:
    socket.socket(socket.AF_UNIX).connect("\\0sandlot-suite-" + sys.argv[2])
    print("reached the abstract socket")
except OSError:
    pass
print("tried")
"""


class IsolationSuite:
    """Tests that try to see the host from inside a sandbox. Needs a fixture ``harness``."""

    async def test_files_of_the_host_are_not_visible(self, harness: DriverHarness, tmp_path: Path) -> None:
        token = f"planted-{secrets.token_hex(8)}"
        (tmp_path / token).touch(mode=0o666)
        async with harness.sandbox() as sandbox:
            (harness.data_dir / token).touch(mode=0o666)
            for folder in (harness.data_dir / "sandboxes").glob("*/"):
                (folder / token).touch(mode=0o666)
            # A file of the same name inside the sandbox proves that the search finds files.
            inside = f"/home/user/{token}"
            assert (await sandbox.run("touch", inside)).exit_code == 0
            for user in (User.USER, User.ROOT):
                assert (await sandbox.python(_FIND, token, user=user)).stdout == f"{inside}\ncomplete\n"

    async def test_environment_of_the_service_is_not_visible(self, harness: DriverHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        token = secrets.token_hex(8)
        monkeypatch.setenv("SANDLOT_SUITE_SECRET", token)
        async with harness.sandbox() as sandbox:
            done = await sandbox.run("sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", user=User.ROOT)
        assert "PATH=" in done.stdout
        assert token not in done.stdout

    async def test_processes_of_the_host_are_not_visible(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            seen = await sandbox.run(
                "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; kill -0 $1 && echo signal''led", "-", str(os.getpid()), user=User.ROOT
            )
        assert "pytest" not in seen.stdout
        assert "signalled" not in seen.stdout

    async def test_network_of_the_host_is_not_reachable(self, harness: DriverHarness) -> None:
        with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:  # noqa: S104 - every address of the host would reach it
            port = str(server.getsockname()[1])
            abstract.bind(f"\0sandlot-suite-{port}")
            abstract.listen()
            own = socket.gethostbyname(socket.gethostname())
            async with harness.sandbox() as sandbox:
                for user in (User.USER, User.ROOT):
                    assert (await sandbox.python(_CONNECT, own, port, user=user)).stdout == "tried\n"
                interfaces = await sandbox.run("sh", "-c", "cat /proc/net/dev")
            names = [line.split(":")[0].strip() for line in interfaces.stdout.splitlines() if ":" in line]
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert set(names) <= {"lo", "eth0"}

"""The program ``sandlot`` against a real service: bytes, exit statuses, signals, files, keys and the demo.

What a shell sees (standard streams, statuses, signals) is tested on processes. All other commands run in this process, which saves the half
second that a new interpreter takes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import pytest

from sandlot import Sandbox
from sandlot.cli.demo.scripted_agent import png_size
from sandlot.cli.main import dispatch
from sandlot.model.ids import SANDBOX_ID
from tests.support.environ import clean_environ
from tests.support.localservice import ISOLATIONS, LocalService, local_service
from tests.support.traces import settle

SANDLOT = (sys.executable, "-m", "sandlot.cli")


class Shell:
    """Runs ``sandlot`` as a process, with the environment of a service."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self.env = {**clean_environ(), **env}
        self.cwd = cwd

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*SANDLOT, *arguments], input=stdin, capture_output=True, env=self.env, cwd=self.cwd, check=False)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*SANDLOT, *arguments], stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self.env, cwd=self.cwd)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a command that ran in this process."""

    status: int
    stdout: str
    stderr: str


class Commands:
    """Runs ``sandlot`` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._environment = environment

    def aim(self, **settings: str) -> None:
        """Replace the settings in the environment that tell the commands which service they use."""
        for name in ("SANDLOT_URL", "SANDLOT_API_KEY", "SANDLOT_DATA_DIR"):
            self._environment.delenv(name, raising=False)
        for name, value in settings.items():
            self._environment.setenv(name, value)

    def run(self, *arguments: str, stdin: bytes = b"") -> Result:
        self._capture.readouterr()
        with standard_input(stdin):
            status = dispatch(list(arguments))
        return Result(status, *self._capture.readouterr())

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.status == 0, result
        return result.stdout


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Put a file with this content in place of this process's standard input."""
    kept = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


CONTAINERS = {"SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS), "SANDLOT_ISOLATION_DEFAULT": "container"}
"""Settings of a service whose sandboxes start fast. The commands do not depend on the isolation."""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(CONTAINERS) as running:
        yield running


@pytest.fixture
def shell(service: LocalService, tmp_path: Path) -> Shell:
    return Shell({"SANDLOT_DATA_DIR": str(service.data_dir)}, tmp_path)


@pytest.fixture
def sandlot(service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(tmp_path)
    commands = Commands(capfd, monkeypatch)
    commands.aim(SANDLOT_DATA_DIR=str(service.data_dir))
    return commands


def alive(service: LocalService) -> set[str]:
    return {info.id for info in Sandbox.list(client=service.client)}


BASE = ("--template", "base")


def test_capacity_is_that_of_the_service(sandlot: Commands, sandbox: Sandbox) -> None:
    told = json.loads(sandlot.ok("service", "capacity", "--json"))
    assert told["reserved"]["memory_bytes"] >= sandbox.info().limits.memory_bytes
    rows = {words[0]: words[1:] for words in (line.split() for line in sandlot.ok("service", "capacity").splitlines()[1:])}
    assert set(rows) == {"memory", "disk", "tasks", "sandboxes"}
    assert rows["tasks"] == [str(told[column]["pids"]) for column in ("allocatable", "reserved", "available")]
    assert rows["sandboxes"] == [str(told["max_sandboxes"]), str(told["sandboxes"]), str(told["max_sandboxes"] - told["sandboxes"])]


# ------------------------------------------------------------------------------------------------------------------- sandlot run


def test_run_passes_arguments_bytes_and_files_to_the_program(shell: Shell) -> None:
    (shell.cwd / "data").mkdir()
    (shell.cwd / "data" / "in.csv").write_text("1,2\n")
    (shell.cwd / "helper.py").write_text("VALUE = 'helped'")
    (shell.cwd / "back.py").write_text(
        "import os, sys, helper\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])\n"
        "print(sys.argv, open('data/in.csv').read(), helper.VALUE, open('/tmp/x').read(), os.environ['WHO'], file=sys.stderr)\nsys.exit(7)\n"
    )
    data = os.urandom(200_000) + b"\r\n\x00\xff"
    files = ("--file", "data", "--file", "helper.py:helper.py", "--file", "data/in.csv:/tmp/x", "--env", "WHO=me=you")
    done = shell.run("run", "back.py", *BASE, *files, "one", "--", "--two", stdin=data)
    assert done.stdout == data[::-1]
    assert done.stderr == b"['/workspace/back.py', 'one', '--two'] 1,2\n helped 1,2\n me=you\n"
    assert done.returncode == 7


def test_run_exits_with_the_status_of_the_program_and_removes_its_sandbox(shell: Shell, sandlot: Commands, service: LocalService) -> None:
    before = alive(service)
    statuses = {"import sys; sys.exit(255)": 255, "import os; os.abort()": 134}
    for code, status in statuses.items():
        done = sandlot.run("run", *BASE, "-c", code)
        assert (done.status, "sandlot:" in done.stderr) == (status, False), code
    command = f"exec {sys.executable} -m sandlot.cli run --template base -c 'import sys; print(sys.stdin.read()); sys.exit(5)' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=shell.env, cwd=shell.cwd, check=False).returncode == 5, "without standard streams"
    assert alive(service) == before


@pytest.mark.slow
def test_run_reports_exceeded_time_and_memory(sandlot: Commands) -> None:
    # A loaded machine takes seconds to start the program, and one that sleeps takes no processor from it.
    done = sandlot.run("run", *BASE, "--timeout", "5", "-c", "import time; print('begun', flush=True); time.sleep(600)")
    assert (done.status, done.stdout) == (124, "begun\n")
    assert done.stderr.startswith("sandlot: ")
    sandbox = sandlot.ok("create", *BASE, "--isolation", "gvisor", "--memory", "256M").strip()
    done = sandlot.run("run", "--sandbox", sandbox, "-c", "x = bytearray(b'x') * (1 << 30); print('it fits')")
    assert (done.status, done.stdout) == (137, "")
    assert "memory" in done.stderr


def test_run_exits_with_125_where_sandlot_itself_fails(sandlot: Commands) -> None:
    for arguments in (("nothing.py",), ("-c", "1", "--template", "nope"), ("-c", "1", "--memory", "1K"), ("-c", "1", "--file", "nothing:x")):
        done = sandlot.run("run", *arguments)
        assert (done.status, done.stdout, done.stderr[:9]) == (125, "", "sandlot: "), arguments


def test_interrupted_run_removes_its_sandbox(shell: Shell, service: LocalService) -> None:
    before = alive(service)
    with shell.start("run", *BASE, "-c", "import time; print('begun', flush=True); time.sleep(100)") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        assert alive(service) != before
        running.send_signal(signal.SIGINT)
        assert running.wait() == 128 + signal.SIGINT
    assert alive(service) == before


# ---------------------------------------------------------------------------------------------- create, ls, exec, cp, rm


def test_sandbox_is_created_listed_inspected_used_and_removed(sandlot: Commands, service: LocalService) -> None:
    settings = ("--name", "mine", "--timeout", "100", "--env", "A=b", "--metadata", "k=v", "--memory", "256M")
    done = sandlot.run("create", *BASE, "--isolation", "gvisor", *settings)
    id_ = done.stdout.strip()
    assert SANDBOX_ID.fullmatch(id_)
    assert done.stderr == "sandlot: isolated by gvisor\n"
    (row,) = [line.split() for line in sandlot.ok("ls").splitlines() if line.startswith(id_)]
    assert row[1:5] == ["mine", "base", "gvisor", "running"]
    (told,) = [each for each in json.loads(sandlot.ok("ls", "--json")) if each["id"] == id_]
    assert (told["metadata"], told["timeout"]) == ({"k": "v"}, 100)
    assert id_ in sandlot.ok("ls", "--quiet").split()
    facts = dict(line.split(maxsplit=1) for line in sandlot.ok("info", id_).splitlines() if not line.startswith(("ends in", "metadata")))
    assert (facts["isolation"], facts["state"], facts["memory"], facts["disk"], facts["pids"]) == ("gvisor", "running", "256M", "5G", "512")
    assert json.loads(sandlot.ok("info", id_, "--json"))["isolation"] == "gvisor"
    assert sandlot.ok("exec", "--no-stdin", id_, "--", "sh", "-c", "echo $A; id -un; pwd") == "b\nuser\n/workspace\n"
    unknown = sandlot.run("rm", "sb-aaaa-aaaaaaaaaaaaaaaa", id_)
    assert (unknown.status, unknown.stdout) == (1, f"{id_}\n"), "it goes on after one that is unknown"
    assert "sb-aaaa-aaaaaaaaaaaaaaaa" in unknown.stderr
    assert id_ not in alive(service)
    assert sandlot.ok("rm", id_) == f"{id_}\n"
    assert "killed" in sandlot.ok("info", id_)
    gone = sandlot.run("exec", "--no-stdin", id_, "true")
    assert (gone.status, "ended" in gone.stderr) == (125, True)
    assert sandlot.run("info", "sb-aaaa-aaaaaaaaaaaaaaaa").status == 1


def test_cli_changes_limits_and_reports_usage(sandlot: Commands) -> None:
    id_ = sandlot.ok("create", *BASE, "--memory", "256M", "--disk", "64M", "--pids", "100").strip()
    lines = [line.split() for line in sandlot.ok("update", id_, "--memory", "1.5G", "--cpus", "0.5").splitlines()]
    assert [line for line in lines if line[0] in {"cpus", "memory", "disk", "pids"}] == [
        ["cpus", "0.5"],
        ["memory", "1.5G"],
        ["disk", "64M"],
        ["pids", "100"],
    ]
    limits = {"cpus": 0.5, "memory_bytes": 3 << 29, "disk_bytes": 64 << 20, "pids": 64}
    assert json.loads(sandlot.ok("update", id_, "--pids", "64", "--json"))["limits"] == limits
    assert sandlot.ok("exec", "--no-stdin", id_, "--", "bash", "-c", "ulimit -u") == "64\n"
    told = json.loads(sandlot.ok("usage", id_, "--json"))
    assert told["limits"] == limits
    assert 0 < told["memory_bytes"] <= told["memory_peak_bytes"]
    assert 0 <= told["pids"] < told["host_tasks"]
    rows = {line.split("  ")[0]: line.split() for line in sandlot.ok("usage", id_).splitlines()}
    assert set(rows) == {"RESOURCE", "cpu", "memory", "memory peak", "disk", "pids", "host tasks", "network sent", "network received"}
    assert (rows["memory"][-1], rows["disk"][-1], rows["pids"][-1], rows["cpu"][-2:]) == ("1.5G", "64M", "64", ["0.5", "cores"])
    for wrong, status in ((("update", id_), 2), (("update", id_, "--disk", "1G"), 1)):
        refused = sandlot.run(*wrong)
        assert (refused.status, refused.stdout) == (status, "")
        assert refused.stderr.startswith("sandlot: ")
    assert json.loads(sandlot.ok("info", id_, "--json"))["limits"]["pids"] == 64
    sandlot.ok("rm", id_)
    assert "ended" in sandlot.run("usage", id_).stderr


def test_exec_passes_bytes_user_folder_and_environment(shell: Shell, sandlot: Commands, sandbox: Sandbox) -> None:
    data = os.urandom(100_000)
    done = shell.run("exec", sandbox.id, "--", "sh", "-c", "cat; echo oops >&2; exit 9", stdin=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"oops\n", 9)
    assert sandlot.ok("exec", "--user", "root", "--cwd", "/etc", "--env", "X=1", sandbox.id, "sh", "-c", "id -un; pwd; echo $X") == "root\n/etc\n1\n"
    assert sandlot.ok("exec", "--no-stdin", sandbox.id, "cat", stdin=b"unread") == ""


def test_ps_filters_by_tag(sandlot: Commands, sandbox: Sandbox) -> None:
    sandlot.ok("exec", "--no-stdin", "--tag", "mine", sandbox.id, "true")
    (told,) = json.loads(sandlot.ok("ps", "--json", "--tag", "mine", sandbox.id))
    assert (told["tag"], told["argv"]) == ("mine", ["true"])
    assert sandlot.ok("ps", "--tag", "other", sandbox.id) == ""
    head, *shown = sandlot.ok("ps", sandbox.id).splitlines()
    assert "TAG" in head
    assert [line for line in shown if " mine " in line]


def test_cp_copies_files_and_folders_in_and_out(sandlot: Commands, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "data").write_bytes(b"\x00\xff")
    (tmp_path / "one").write_text("1")
    sandlot.ok("cp", "tree", f"{sandbox.id}:cp-tree")
    sandlot.ok("cp", "tree", f"{sandbox.id}:cp-tree")  # it is there now, and takes it in
    sandlot.ok("cp", "one", f"{sandbox.id}:/workspace/cp-tree/sub/")
    assert sandbox.commands.run("cd cp-tree && find . -type f | sort").stdout == "./sub/data\n./sub/one\n./tree/sub/data\n"
    sandlot.ok("cp", f"{sandbox.id}:/workspace/cp-tree", "back")
    assert (tmp_path / "back" / "tree" / "sub" / "data").read_bytes() == b"\x00\xff"
    sandlot.ok("cp", f"{sandbox.id}:cp-tree/sub/one", "two")
    sandlot.ok("cp", f"{sandbox.id}:cp-tree/sub/one", ".")
    assert (tmp_path / "two").read_text() == (tmp_path / "one").read_text() == "1"
    for wrong in ((f"{sandbox.id}:nothing", "x"), ("nothing", f"{sandbox.id}:x"), ("sb-aaaa-aaaaaaaaaaaaaaaa:x", "y")):
        done = sandlot.run("cp", *wrong)
        assert done.status != 0
        assert done.stderr.startswith("sandlot: ")
    assert not (tmp_path / "x").exists()


# ----------------------------------------------------------------------------------------------------------------- service


def test_commands_that_only_look_start_no_service(sandlot: Commands, tmp_path: Path) -> None:
    sandlot.aim(SANDLOT_DATA_DIR=str(tmp_path / "none"))
    assert sandlot.ok("ls") == ""
    assert json.loads(sandlot.ok("ls", "--json")) == []
    assert sandlot.ok("rm", "--all") == ""
    assert sandlot.ok("service", "stop") == ""
    assert not (tmp_path / "none").exists()


@contextmanager
def serving(shell: Shell) -> Iterator[str]:
    """A service on TCP; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with shell.start("serve", "--host", "127.0.0.1", "--port", str(port)) as process:
        try:
            settle(lambda: _listens(port) or process.poll() is not None, expected=True)
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.stderr is not None
            process.stderr.read()
            assert process.wait() == 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_serve_accepts_keys_until_they_are_revoked_and_rm_all_removes_the_sandboxes_of_one(sandlot: Commands, tmp_path: Path) -> None:
    local = {**CONTAINERS, "SANDLOT_DATA_DIR": str(tmp_path / "served")}
    sandlot.aim(**local)
    early = sandlot.ok("key", "create", "early").splitlines()[-1]
    assert sandlot.run("key", "create", "early").status == 1, "a name is used once"
    with serving(Shell(local, tmp_path)) as url:
        late = sandlot.ok("key", "create", "late").splitlines()[-1]
        listed = sandlot.ok("key", "ls")
        assert early not in listed
        assert [line.split()[1] for line in listed.splitlines()[1:]] == ["early", "late"]
        with Sandbox.create("base", url=url, api_key=late) as others:
            assert others.commands.run("echo works").stdout == "works\n"
            sandlot.aim(SANDLOT_URL=url, SANDLOT_API_KEY=early)
            assert sandlot.ok("run", *BASE, "-c", "print(6 * 7)") == "42\n"
            mine = {sandlot.ok("create", *BASE).strip() for _ in range(2)}
            assert set(sandlot.ok("rm", "--all").split()) == mine
            assert sandlot.ok("ls", "--quiet") == ""
            assert others.info().state == "running"
            # The doctor handles signals for good, so it has a process of its own.
            healthy = Shell({"SANDLOT_URL": url, "SANDLOT_API_KEY": early}, tmp_path).run("doctor")
            assert (healthy.returncode, healthy.stdout.decode().splitlines()[-1]) == (0, "Sandboxes can run.")
        assert sandlot.run("service", "stop").status == 2
        sandlot.aim(**local)
        sandlot.ok("key", "rm", "early")
        for key in (early, ""):
            sandlot.aim(SANDLOT_URL=url, SANDLOT_API_KEY=key)
            refused = sandlot.run("ls")
            assert refused.status == 1
            assert refused.stderr.startswith("sandlot: ")
    sandlot.aim(**local)
    assert sandlot.run("key", "rm", "early").status == 1


# -------------------------------------------------------------------------------------------------------------------- demo


@pytest.mark.slow
def test_demo_draws_the_chart_of_the_same_computation_on_the_host(sandlot: Commands, service: LocalService, tmp_path: Path) -> None:
    before = alive(service)
    lines = sandlot.ok("demo", "--output", "new/chart.png").splitlines()
    chart = tmp_path / "new" / "chart.png"
    assert lines[-1] == str(chart)
    assert png_size(chart.read_bytes()) == (1200, 504)
    text = "\n".join(lines)
    assert "KeyError: 'class'" in text
    assert "flavanoids" in text
    assert "DIFFERENT" not in text
    assert alive(service) == before
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


# --------------------------------------------------------------------------------------- sandlot pause, hibernate, snapshot, fork


def test_sandbox_is_paused_hibernated_snapshotted_and_forked(service: LocalService, sandlot: Commands) -> None:
    id_ = sandlot.ok("create", *BASE, "--isolation", "gvisor", "--on-timeout", "hibernate", "--name", "first").strip()
    sandlot.ok("run", "--sandbox", id_, "-c", "n = 41")
    assert sandlot.ok("pause", id_) == sandlot.ok("hibernate", id_) == f"{id_}\n"
    assert "hibernated" in sandlot.ok("ls").split()
    assert sandlot.ok("run", "--sandbox", id_, "-c", "print(n + 1)") == "42\n"
    snapshot = sandlot.ok("snapshot", "create", id_, "--name", "kept").strip()
    assert snapshot.startswith("snap-")
    forks = sandlot.ok("fork", id_, "--count", "2", "--name", "child").split()
    drawn = [line.split() for line in sandlot.ok("fork-tree", forks[0]).splitlines()[1:]]
    assert [words[0] for words in drawn] in ([id_, *forks], [id_, *reversed(forks)])
    assert sandlot.ok("promote", forks[0]) == f"{forks[1]}\n"
    sandlot.ok("rm", id_)
    other = sandlot.ok("create", "--snapshot", "kept").strip()
    assert sandlot.ok("run", "--sandbox", other, "-c", "print(n + 1)") == "42\n"
    assert sandlot.ok("snapshot", "rm", "kept") == "kept\n"
    refused = sandlot.run("create", "--snapshot", "kept")
    assert (refused.status, refused.stdout) == (1, "")
    assert refused.stderr.startswith("sandlot: There is no snapshot")
    sandlot.ok("rm", forks[0], other)
    assert not alive(service) & {id_, *forks, other}

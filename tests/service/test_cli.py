"""The program `sandlot` against a real service: bytes, statuses, files, keys, and the demo, as a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from sandlot import Sandbox
from sandlot.cli.demo.analyst import png_size
from sandlot.model.ids import SANDBOX_ID
from tests.support.localservice import LocalService, local_service
from tests.support.traces import settle

SANDLOT = (sys.executable, "-m", "sandlot.cli")


class Shell:
    """Runs `sandlot` with a service's environment."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self.env = {**{name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}, **env}
        self.cwd = cwd

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*SANDLOT, *arguments], input=stdin, capture_output=True, env=self.env, cwd=self.cwd, check=False)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*SANDLOT, *arguments], stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self.env, cwd=self.cwd)


@pytest.fixture
def shell(service: LocalService, tmp_path: Path) -> Shell:
    return Shell({"SANDLOT_DATA_DIR": str(service.data_dir)}, tmp_path)


def alive(service: LocalService) -> set[str]:
    return {info.id for info in Sandbox.list(client=service.client)}


BASE = ("--template", "base")


def test_capacity_is_what_the_service_says(shell: Shell, sandbox: Sandbox) -> None:
    told = json.loads(shell.ok("capacity", "--json"))
    assert told["promised"]["memory_bytes"] >= sandbox.info().limits.memory_bytes
    rows = {words[0]: words[1:] for words in (line.split() for line in shell.ok("capacity").splitlines()[1:])}
    assert set(rows) == {"memory", "disk", "tasks", "sandboxes"}
    assert rows["tasks"] == [str(told[column]["pids"]) for column in ("total", "promised", "free")]
    assert rows["sandboxes"] == [str(told["max_sandboxes"]), str(told["sandboxes"]), str(told["max_sandboxes"] - told["sandboxes"])]


# ------------------------------------------------------------------------------------------------------------------- sandlot run


def test_a_program_runs_as_if_it_ran_here(shell: Shell) -> None:
    (shell.cwd / "back.py").write_text(
        "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])\nprint(sys.argv, file=sys.stderr)\nsys.exit(7)\n"
    )
    data = os.urandom(200_000) + b"\r\n\x00\xff"
    done = shell.run("run", "back.py", *BASE, "one", "--", "--two", stdin=data)
    assert done.stdout == data[::-1]
    assert done.stderr == b"['/workspace/back.py', 'one', '--two']\n"
    assert done.returncode == 7


def test_code_comes_from_the_command_line_or_from_standard_input(shell: Shell) -> None:
    assert shell.ok("run", *BASE, "-c", "import sys; print(sys.argv[1:], input())", "a", "b", stdin=b"in\n") == "['a', 'b'] in\n"
    assert shell.ok("run", *BASE, "-", "x", stdin=b"import sys\nprint(sys.argv)") == "['-', 'x']\n"


@pytest.mark.parametrize(
    "code, status",
    [
        ("import sys; sys.exit(255)", 255),
        ("1/0", 1),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.abort()", 134),
    ],
    ids=["exit", "exception", "SIGTERM", "SIGKILL", "SIGABRT"],
)
def test_the_status_is_the_programs(shell: Shell, code: str, status: int) -> None:
    done = shell.run("run", *BASE, "-c", code)
    assert done.returncode == status
    assert b"sandlot:" not in done.stderr


def test_a_program_that_runs_too_long_is_ended_with_124(shell: Shell) -> None:
    done = shell.run("run", *BASE, "--timeout", "1", "-c", "print('begun', flush=True)\nwhile True: pass")
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert done.stderr.startswith(b"sandlot: ")


def test_a_program_that_needs_too_much_memory_is_ended_with_137(shell: Shell) -> None:
    done = shell.run("run", *BASE, "--memory", "256M", "-c", "x = bytearray(b'x') * (1 << 30); print('it fits')")
    assert done.returncode == 137
    assert b"memory" in done.stderr
    assert done.stdout == b""


def test_files_and_environment_are_brought_along(shell: Shell) -> None:
    (shell.cwd / "data").mkdir()
    (shell.cwd / "data" / "in.csv").write_text("1,2\n")
    (shell.cwd / "helper.py").write_text("VALUE = 'helped'")
    code = "import os, helper; print(open('data/in.csv').read().strip(), helper.VALUE, open('/tmp/x').read(), os.environ['WHO'])"
    (shell.cwd / "main.py").write_text(code)
    files = ("--file", "data", "--file", "helper.py:helper.py", "--file", "data/in.csv:/tmp/x")
    assert shell.ok("run", "main.py", *BASE, *files, "--env", "WHO=me=you") == "1,2 helped 1,2\n me=you\n"


def test_a_shell_script_is_one(shell: Shell) -> None:
    (shell.cwd / "hello.sh").write_text('[[ a == a ]] && echo "$BASH_VERSION $1" | cut -c1')
    assert shell.ok("run", "hello.sh", *BASE, "x").strip().isdecimal()


@pytest.mark.parametrize(
    "arguments", [("nothing.py",), ("-c", "1", "--template", "nope"), ("-c", "1", "--memory", "1K"), ("-c", "1", "--file", "nothing:x")], ids=" ".join
)
def test_a_failure_of_ours_is_125_and_says_so(shell: Shell, arguments: Sequence[str]) -> None:
    done = shell.run("run", *arguments)
    assert done.returncode == 125
    assert done.stderr.startswith(b"sandlot: ")
    assert done.stdout == b""


def test_closed_descriptors_are_nothing_to_a_program(shell: Shell) -> None:
    command = f"exec {sys.executable} -m sandlot.cli run --template base -c 'import sys; print(sys.stdin.read()); sys.exit(5)' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=shell.env, cwd=shell.cwd, check=False).returncode == 5


def test_nothing_of_a_run_is_left(shell: Shell, service: LocalService) -> None:
    before = alive(service)
    shell.run("run", *BASE, "-c", "1/0")
    assert alive(service) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(shell: Shell, service: LocalService, number: signal.Signals) -> None:
    before = alive(service)
    with shell.start("run", *BASE, "-c", "import time; print('begun', flush=True); time.sleep(100)") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        assert alive(service) != before
        running.send_signal(number)
        assert running.wait() == 128 + number
    assert alive(service) == before


def test_a_run_that_is_interrupted_while_its_sandbox_is_made_leaves_nothing(shell: Shell, service: LocalService) -> None:
    before = alive(service)
    requests = sum(record.get("path") == "/v1/templates" for record in service.records())
    with shell.start("run", *BASE, "-c", "print(1)") as running:
        settle(lambda: sum(record.get("path") == "/v1/templates" for record in service.records()) > requests, expected=True)
        running.send_signal(signal.SIGINT)
        assert running.wait() in {130, 0}
    settle(lambda: alive(service), before)


def test_a_reader_that_goes_away_ends_the_run(shell: Shell, service: LocalService) -> None:
    before = alive(service)
    with shell.start("run", *BASE, "-c", "while True: print('x' * 1000)") as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.wait() == 128 + signal.SIGPIPE
    assert alive(service) == before


# ---------------------------------------------------------------------------------------------- create, ls, exec, cp, rm


def test_a_sandbox_from_its_making_to_its_end(shell: Shell, service: LocalService) -> None:
    id_ = shell.ok("create", *BASE, "--name", "mine", "--timeout", "100", "--env", "A=b", "--metadata", "k=v").strip()
    assert SANDBOX_ID.fullmatch(id_)
    (row,) = [line.split() for line in shell.ok("ls").splitlines() if line.startswith(id_)]
    assert row[1:5] == ["mine", "base", "gvisor", "running"]
    (told,) = [each for each in json.loads(shell.ok("ls", "--json")) if each["id"] == id_]
    assert (told["metadata"], told["timeout_s"]) == ({"k": "v"}, 100)
    assert id_ in shell.ok("ls", "--quiet").split()
    assert shell.ok("exec", id_, "--", "sh", "-c", "echo $A; id -un; pwd") == "b\nuser\n/workspace\n"
    assert shell.ok("rm", id_) == f"{id_}\n"
    assert id_ not in alive(service)
    assert shell.ok("rm", id_) == f"{id_}\n"
    gone = shell.run("exec", id_, "true")
    assert gone.returncode == 125
    assert b"ended" in gone.stderr


def test_what_isolates_a_sandbox_is_told_wherever_it_is_shown(shell: Shell) -> None:
    done = shell.run("create", *BASE, "--metadata", "job=7", "--memory", "256M")
    id_ = done.stdout.decode().strip()
    assert done.stderr == b"sandlot: isolated by gvisor\n"
    facts = dict(line.split(maxsplit=1) for line in shell.ok("info", id_).splitlines() if not line.startswith(("ends in", "metadata")))
    assert (facts["isolation"], facts["state"], facts["memory"], facts["disk"], facts["pids"]) == ("gvisor", "running", "256M", "5G", "512")
    assert json.loads(shell.ok("info", id_, "--json"))["isolation"] == "gvisor"
    shell.ok("rm", id_)
    assert "killed" in shell.ok("info", id_)
    made = json.loads(shell.ok("create", *BASE, "--isolation", "gvisor", "--json"))
    assert (made["isolation"], made["limits"]["pids"]) == ("gvisor", 512)
    shell.ok("rm", made["id"])
    assert shell.run("info", "sb-aaaa-aaaaaaaaaaaaaaaa").returncode == 1


def test_limits_are_changed_and_usage_is_told(shell: Shell) -> None:
    id_ = shell.ok("create", *BASE, "--memory", "256M", "--disk", "64M", "--pids", "100").strip()
    assert [line.split() for line in shell.ok("limit", id_, "--memory", "1.5G", "--cpus", "0.5").splitlines()] == [
        ["CPUS", "MEMORY", "DISK", "PIDS"],
        ["0.5", "1.5G", "64M", "100"],
    ]
    limits = {"cpus": 0.5, "memory_bytes": 3 << 29, "disk_bytes": 64 << 20, "pids": 64}
    assert json.loads(shell.ok("limit", id_, "--pids", "64", "--json")) == limits
    assert shell.ok("exec", id_, "--", "bash", "-c", "ulimit -u") == "64\n"
    told = json.loads(shell.ok("usage", id_, "--json"))
    assert told["limits"] == limits
    assert 0 < told["memory_bytes"] <= told["memory_peak_bytes"]
    assert 0 <= told["pids"] < told["host_tasks"]
    rows = {line.split("  ")[0]: line.split() for line in shell.ok("usage", id_).splitlines()}
    assert set(rows) == {"WHAT", "cpu", "memory", "memory peak", "disk", "pids", "host tasks"}
    assert (rows["memory"][-1], rows["disk"][-1], rows["pids"][-1], rows["cpu"][-2:]) == ("1.5G", "64M", "64", ["0.5", "cores"])
    for wrong, status in (
        (("limit", id_), 2),
        (("limit", id_, "--disk", "1G"), 1),
        (("limit", id_, "--memory", "lots"), 1),
        (("limit", id_, "--pids", "1"), 1),
    ):
        refused = shell.run(*wrong)
        assert (refused.returncode, refused.stdout) == (status, b"")
        assert refused.stderr.startswith(b"sandlot: ")
    assert json.loads(shell.ok("info", id_, "--json"))["limits"]["pids"] == 64
    shell.ok("rm", id_)
    for gone in ("usage", "limit"):
        refused = shell.run(gone, id_, *(["--pids", "20"] if gone == "limit" else []))
        assert refused.returncode == 1
        assert b"ended" in refused.stderr


def test_exec_passes_everything_through(shell: Shell, sandbox: Sandbox) -> None:
    data = os.urandom(100_000)
    done = shell.run("exec", sandbox.id, "--", "sh", "-c", "cat; echo oops >&2; exit 9", stdin=data)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"oops\n", 9)
    assert shell.ok("exec", "--user", "root", "--cwd", "/etc", "--env", "X=1", sandbox.id, "sh", "-c", "id -un; pwd; echo $X") == "root\n/etc\n1\n"
    assert shell.ok("exec", "--no-stdin", sandbox.id, "cat", stdin=b"unread") == ""


def test_what_is_started_with_a_tag_is_listed_by_it(shell: Shell, sandbox: Sandbox) -> None:
    shell.ok("exec", "--tag", "mine", sandbox.id, "true")
    (told,) = json.loads(shell.ok("ps", "--json", "--tag", "mine", sandbox.id))
    assert (told["tag"], told["argv"]) == ("mine", ["true"])
    assert shell.ok("ps", "--tag", "other", sandbox.id) == ""
    head, *shown = shell.ok("ps", sandbox.id).splitlines()
    assert "TAG" in head
    assert [line for line in shown if " mine " in line]


@pytest.mark.parametrize("command, status", [(["nonexistent"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -KILL $$"], 137)], ids=str)
def test_exec_has_the_statuses_of_a_shell(shell: Shell, sandbox: Sandbox, command: list[str], status: int) -> None:
    assert shell.run("exec", sandbox.id, *command).returncode == status


def test_an_interrupted_exec_ends_its_command(shell: Shell, sandbox: Sandbox) -> None:
    with shell.start("exec", sandbox.id, "sh", "-c", "echo begun; exec sleep 987") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130
    settle(lambda: sandbox.commands.run("pgrep -c sleep").stdout, "0\n")


def test_copying_there_and_back(shell: Shell, sandbox: Sandbox) -> None:
    (shell.cwd / "tree" / "sub").mkdir(parents=True)
    (shell.cwd / "tree" / "sub" / "data").write_bytes(b"\x00\xff")
    (shell.cwd / "one").write_text("1")
    shell.ok("cp", "tree", f"{sandbox.id}:cp-tree")
    shell.ok("cp", "tree", f"{sandbox.id}:cp-tree")  # it is there now, and takes it in
    shell.ok("cp", "one", f"{sandbox.id}:/workspace/cp-tree/sub/")
    assert sandbox.commands.run("cd cp-tree && find . -type f | sort").stdout == "./sub/data\n./sub/one\n./tree/sub/data\n"
    shell.ok("cp", f"{sandbox.id}:/workspace/cp-tree", "back")
    assert (shell.cwd / "back" / "tree" / "sub" / "data").read_bytes() == b"\x00\xff"
    shell.ok("cp", f"{sandbox.id}:cp-tree/sub/one", "two")
    shell.ok("cp", f"{sandbox.id}:cp-tree/sub/one", ".")
    assert (shell.cwd / "two").read_text() == (shell.cwd / "one").read_text() == "1"
    for wrong in ((f"{sandbox.id}:nothing", "x"), ("nothing", f"{sandbox.id}:x"), ("sb-aaaa-aaaaaaaaaaaaaaaa:x", "y")):
        done = shell.run("cp", *wrong)
        assert done.returncode != 0
        assert done.stderr.startswith(b"sandlot: ")
    assert not (shell.cwd / "x").exists()


def test_rm_goes_on_after_one_that_it_does_not_know(shell: Shell, service: LocalService) -> None:
    one = service.create()
    done = shell.run("rm", "sb-aaaa-aaaaaaaaaaaaaaaa", one.id)
    assert done.returncode == 1
    assert done.stdout.decode() == f"{one.id}\n"
    assert b"sb-aaaa-aaaaaaaaaaaaaaaa" in done.stderr
    assert one.id not in alive(service)


# ----------------------------------------------------------------------------------------------------------------- service


def test_asking_starts_no_service(tmp_path: Path) -> None:
    shell = Shell({"SANDLOT_DATA_DIR": str(tmp_path / "none")}, tmp_path)
    assert shell.ok("ls") == ""
    assert json.loads(shell.ok("ls", "--json")) == []
    assert shell.ok("rm", "--all") == ""
    assert shell.run("stop").returncode == 0
    assert not (tmp_path / "none").exists()


def test_stopping_ends_the_service_and_its_sandboxes(tmp_path: Path) -> None:
    with local_service() as service:
        shell = Shell({"SANDLOT_DATA_DIR": str(service.data_dir)}, tmp_path)
        service.create()
        service.create()
        assert shell.ok("rm", "--all").count("sb-") == 2
        service.create()
        pid = service.pid
        assert shell.ok("stop") == ""
        settle(service.is_alive, expected=False)
        assert not Path(f"/proc/{pid}").exists()
        service.start()


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


def test_a_service_on_tcp_takes_keys(tmp_path: Path) -> None:
    shell = Shell({"SANDLOT_DATA_DIR": str(tmp_path / "served")}, tmp_path)
    early = shell.ok("keys", "create", "--name", "early").splitlines()[-1]
    with serving(shell) as url:
        late = shell.ok("keys", "create", "--name", "late").splitlines()[-1]
        assert early not in shell.ok("keys", "list")
        assert [line.split()[1] for line in shell.ok("keys", "list").splitlines()[1:]] == ["early", "late"]
        for key in (early, late):
            remote = Shell({"SANDLOT_URL": url, "SANDLOT_API_KEY": key}, tmp_path)
            assert remote.ok("run", *BASE, "-c", "print(6 * 7)") == "42\n"
            assert remote.ok("doctor").splitlines()[-1] == "Sandboxes can run."
        with Sandbox.create("base", url=url, api_key=late) as sandbox:
            assert sandbox.run_code("6 * 7").text == "42"
            assert sandbox.commands.run("echo out; exit 3").exit_code == 3
        shell.ok("keys", "revoke", "early")
        for key in (early, "wrong", ""):
            refused = Shell({"SANDLOT_URL": url, "SANDLOT_API_KEY": key}, tmp_path).run("ls")
            assert refused.returncode == 1
            assert refused.stderr.startswith(b"sandlot: ")
        assert Shell({"SANDLOT_URL": url, "SANDLOT_API_KEY": late}, tmp_path).run("stop").returncode == 2


def test_keys_are_named_once_and_revoked_once(tmp_path: Path) -> None:
    shell = Shell({"SANDLOT_DATA_DIR": str(tmp_path / "keys")}, tmp_path)
    shell.ok("keys", "create", "--name", "a")
    assert shell.run("keys", "create", "--name", "a").returncode == 1
    shell.ok("keys", "revoke", "a")
    assert shell.run("keys", "revoke", "a").returncode == 1


# -------------------------------------------------------------------------------------------------------------------- demo


def test_the_demo_ends_with_a_chart_and_its_path_alone(shell: Shell, service: LocalService) -> None:
    before = alive(service)
    lines = shell.ok("demo", "--output", "new/chart.png").splitlines()
    chart = shell.cwd / "new" / "chart.png"
    assert lines[-1] == str(chart)
    assert png_size(chart.read_bytes()) == (1200, 504)
    text = "\n".join(lines)
    assert "KeyError: 'class'" in text
    assert "flavanoids" in text
    assert "DIFFERENT" not in text
    assert alive(service) == before


def test_the_demo_leaves_the_current_folder_alone(shell: Shell, service: LocalService) -> None:
    assert shell.ok("demo").splitlines()[-1] == str(service.data_dir / "demo.png")
    assert list(shell.cwd.iterdir()) == []


# --------------------------------------------------------------------------------------- sandlot pause, hibernate, snapshot, fork


def test_a_sandbox_rests_and_is_kept_and_forked(service: LocalService, shell: Shell) -> None:
    id_ = shell.ok("create", *BASE, "--on-timeout", "hibernate", "--name", "first").strip()
    shell.ok("run", "--sandbox", id_, "-c", "n = 41")
    assert shell.ok("pause", id_) == shell.ok("hibernate", id_) == f"{id_}\n"
    assert "hibernated" in shell.ok("ls").split()
    assert shell.ok("run", "--sandbox", id_, "-c", "print(n + 1)") == "42\n"
    snapshot = shell.ok("snapshot", "create", id_, "--name", "kept").strip()
    assert snapshot.startswith("snap-")
    forks = shell.ok("fork", id_, "-n", "2", "--name", "child").split()
    drawn = [line.split() for line in shell.ok("tree", forks[0]).splitlines()[1:]]
    assert [words[0] for words in drawn] in ([id_, *forks], [id_, *reversed(forks)])
    assert shell.ok("promote", forks[0]) == f"{forks[1]}\n"
    shell.ok("rm", id_)
    other = shell.ok("create", "--snapshot", "kept").strip()
    assert shell.ok("run", "--sandbox", other, "-c", "print(n + 1)") == "42\n"
    assert shell.ok("snapshot", "rm", "kept") == "kept\n"
    refused = shell.run("create", "--snapshot", "kept")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.startswith(b"sandlot: There is no snapshot")
    shell.ok("rm", forks[0], other)
    assert not alive(service) & {id_, *forks, other}

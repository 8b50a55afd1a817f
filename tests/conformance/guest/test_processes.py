"""Processes in a real sandbox: who they are, how they end, and that nothing of their output is lost."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sandlot.model.errors import ConflictError
from sandlot.model.executions import Output
from sandlot.model.ports import Change
from sandlot.model.specs import ProcessSpec, User, shell_argv
from tests.support.driver_sandboxes import PIDS, GuestSession


@pytest.fixture(scope="module")
def isolation() -> str:
    """GVisor, where the guest alone counts processes. In a container the kernel of the host refuses them first."""
    return "gvisor"


async def test_a_program_runs_as_user_in_the_workspace_with_a_clean_environment(inside: GuestSession) -> None:
    assert await inside.sh("id -un; id -u; pwd; hostname") == "user\n1000\n/workspace\ninside\n"
    names = {line.split("=")[0] for line in (await inside.sh("env -0 | tr '\\0' '\\n'")).splitlines()}
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD"} | names_of_the_image(inside)


def names_of_the_image(_inside: GuestSession) -> set[str]:
    return {
        "MPLCONFIGDIR",
        "NODE_OPTIONS",
        "NODE_PATH",
        "DEBIAN_FRONTEND",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "PIP_ROOT_USER_ACTION",
        "LC_ALL",
        "PYTHONUNBUFFERED",
    }


async def test_root_is_root_and_sudo_works_without_setuid(inside: GuestSession) -> None:
    assert await inside.sh("id -u", user=User.ROOT) == "0\n"
    assert (
        await inside.sh("sudo id -u; cd /tmp && sudo pwd; echo in | sudo cat; sudo A=1 sh -c 'echo $A; exit 3' || echo $?") == "0\n/tmp\nin\n1\n3\n"
    )
    _, err, result = await inside.run("sudo", "no-such-program")
    assert result.exit_code == 1
    assert b"no program" in err


async def test_an_account_is_what_its_files_say_by_now(inside: GuestSession) -> None:
    assert await inside.sh("id -un; echo $HOME") == "user\n/home/user\n"
    await inside.sh("cp -p /etc/passwd /etc/passwd.before && sed -i 's|^user:|usar:|; s|/home/user|/tmp|' /etc/passwd", user=User.ROOT)
    assert await inside.sh("id -un; echo $HOME") == "usar\n/tmp\n"
    await inside.sh("cat /etc/passwd.before > /etc/passwd; rm /etc/passwd.before", user=User.ROOT)
    assert await inside.sh("id -un; echo $HOME") == "user\n/home/user\n"


async def test_what_sudo_started_ends_with_it(inside: GuestSession) -> None:
    call = await inside.link.processes.start(ProcessSpec(shell_argv("sudo sh -c 'echo up; exec sleep 4242'"), timeout_s=60))
    async for item in call:
        assert isinstance(item, Output)
        break
    assert "4242" in await inside.sh("ps -eo args")
    await inside.link.processes.signal(call.id, 9)
    await call.result()
    for _ in range(100):
        if "sleep 4242" not in await inside.sh("ps -eo args"):
            return
        await asyncio.sleep(0.02)
    pytest.fail("root's sleep outlived the sudo that started it")


async def test_stdout_and_stderr_stay_apart_and_binary_stays_binary(inside: GuestSession) -> None:
    every_byte = bytes(range(256))
    script = "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('e')"
    out, err, _ = await inside.run("python3", "-c", script)
    assert (out, err) == (every_byte, b"e")


async def test_megabytes_of_output_arrive_whole_and_in_order(inside: GuestSession) -> None:
    out, _, result = await inside.run(*shell_argv("seq 1 1000000"))
    assert result.exit_code == 0
    expected = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
    assert hashlib.sha256(out).digest() == hashlib.sha256(expected).digest()


async def test_timeout_kills_the_whole_process_tree(inside: GuestSession) -> None:
    command = "sleep 3141 & setsid sleep 3142 & (setsid sh -c 'trap \"\" TERM HUP; sleep 3143' &) ; echo up; sleep 3144"
    _, _, result = await inside.run(*shell_argv(command), timeout_s=1)
    assert (result.reason, result.signal) == ("timeout", 9)
    left = [line for line in (await inside.sh("ps -eo args")).splitlines() if "sleep 314" in line and "setsid sh" not in line]
    assert not [line for line in left if "3143" not in line], left


async def test_an_answer_does_not_wait_for_what_was_left_in_the_background(inside: GuestSession) -> None:
    out = await inside.sh("sleep 2718 & echo started")
    assert out == "started\n"
    await inside.sh("pkill -f 'sleep 2718'")


async def test_process_outlives_its_reader_and_output_is_read_from_an_offset(inside: GuestSession) -> None:
    call = await inside.link.processes.start(ProcessSpec(shell_argv("echo one; sleep 0.3; echo two; sleep 0.3; echo three")))
    async for item in call:
        assert isinstance(item, Output)
        assert item.data == b"one\n"
        break
    await call.aclose()
    again = await inside.link.processes.attach(call.id, stdout_from=4, stderr_from=0)
    output = b"".join([item.data async for item in again if isinstance(item, Output)])
    assert output == b"two\nthree\n"
    assert (await again.result()).exit_code == 0


async def test_fork_bomb_of_the_user_reaches_its_limit(inside: GuestSession) -> None:
    script = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 1000:\n"
        "        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "        made += 1\n"
        "except BlockingIOError:\n"
        "    print('refused after', made)\n"
        "os.killpg(0, 9)\n"
    )
    out, err, result = await inside.run("python3", "-uc", script)
    assert out.startswith(b"refused after "), (out, err, result)
    assert int(out.split()[2]) <= PIDS
    assert await inside.sh("echo fine") == "fine\n"


async def test_fork_bomb_of_root_is_ended_by_the_guest(inside: GuestSession) -> None:
    script = "import os, time\nfor _ in range(1000):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\ntime.sleep(60)"
    _, _, result = await inside.run("python3", "-c", script, user=User.ROOT)
    assert (result.reason, result.signal) == ("pids", 9)
    assert int(await inside.sh("ps -e --no-headers | wc -l")) < PIDS


async def test_user_who_raises_the_limit_is_counted_like_root(inside: GuestSession) -> None:
    script = (
        "import os, resource, time\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (4000, resource.getrlimit(resource.RLIMIT_NPROC)[1]))\n"
        "for _ in range(1000):\n"
        "    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n"
        "time.sleep(60)\n"
    )
    _, _, result = await inside.run("python3", "-c", script)
    assert (result.reason, result.signal) == ("pids", 9)
    assert int(await inside.sh("ps -e --no-headers | wc -l")) < PIDS


_FORKS = r"""
import os, sys, time
for _ in sys.stdin:  # so many for each line
    made = 0
    try:
        while made < 150:
            if os.fork() == 0:
                time.sleep(600)
            made += 1
    except BlockingIOError:
        pass
    os.write(1, b"%d\n" % made)
"""


async def test_the_limit_of_what_runs_already_moves_both_ways(inside: GuestSession) -> None:
    call = await inside.link.processes.start(ProcessSpec(("python3", "-uc", _FORKS), stdin=True, timeout_s=None))
    output = aiter(call)

    async def made() -> int:
        await call.write(b"\n")
        item = await anext(output)
        assert isinstance(item, Output)
        return int(item.data)

    await inside.cell("import resource, subprocess")
    first = await made()
    assert 0 < first < PIDS
    # The host's backstop, and room: each of them takes 3 MiB.
    await inside.instance.configure(Change(pids=2 * PIDS, memory_bytes=1 << 30))
    await inside.link.set_limits(pids=2 * PIDS)
    second = await made()
    assert PIDS - 5 <= second <= PIDS, "as many more as the limit has grown"
    told = await inside.link.info()
    assert first + second < told.tasks <= 2 * PIDS
    with pytest.raises(ConflictError, match="more than the new limit of 100"):
        await inside.link.set_limits(pids=100)
    assert await made() == 0
    # The kernel and whatever is started from now on have the same one.
    text, _, result = await inside.cell("print(resource.getrlimit(resource.RLIMIT_NPROC)[0])")
    assert (result.status, text.strip()) == ("ok", str(2 * PIDS))
    assert (await inside.sh("ulimit -u", user=User.ROOT)).strip() == str(2 * PIDS)
    await inside.link.processes.signal(call.id, 9)
    await call.aclose()
    await inside.link.set_limits(pids=PIDS)
    text, _, _ = await inside.cell("print(resource.getrlimit(resource.RLIMIT_NPROC)[0])")
    assert text.strip() == str(PIDS)


async def test_who_limits_itself_to_less_stays_there(inside: GuestSession) -> None:
    call = await inside.link.processes.start(ProcessSpec(shell_argv("ulimit -S -u 40; echo; read line; ulimit -u"), stdin=True))
    output = aiter(call)
    await anext(output)
    await inside.link.set_limits(pids=2 * PIDS)
    await inside.link.set_limits(pids=PIDS)
    await call.write(b"\n")
    assert [item.data async for item in output if isinstance(item, Output)] == [b"40\n"]

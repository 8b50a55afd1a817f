"""Processes on a terminal: input, output, size, sessions, and clients that come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.core.execution.processes import ProcessExecution
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import SandlotError
from sandlot.model.executions import Output, OutputGap
from sandlot.model.specs import MIB, ProcessSpec, User, shell_argv
from sandlot.protocol.schema import STDOUT
from tests.support.cases import cases
from tests.support.service import Bench
from tests.support.until import until

pytestmark = pytest.mark.real_guest  # terminals are the kernel's


@cases("user", [User.USER, User.ROOT])
async def test_program_leads_a_session_on_its_own_terminal(at: Bench, sandbox: Sandbox, user: User) -> None:
    look = "test -t 0 -a -t 1 -a -t 2 && stty size && echo $TERM && echo err >&2 && : < $(tty) && : < /dev/tty; ps -o sid= -p $$ | tr -d ' '; echo $$"
    run = await opened(at.node, sandbox, look, user=user)
    size, term, err, session, pid = (await rest(run)).decode().split("\r\n")[:-1]
    assert (size, term, err) == ("24 80", "xterm-256color", "err"), "standard error too is what is shown"
    assert session == pid, "it leads a session"
    assert (await run.outcome()).exit_code == 0
    info = await at.node.processes.get(OPERATOR, sandbox.id, run.id)
    assert (info.pty, info.running, info.stderr_bytes) == (True, False, 0)


@cases("typed", [b"", b"whole line\n", b"half a line"])
async def test_program_reads_the_end_of_its_input(at: Bench, sandbox: Sandbox, typed: bytes) -> None:
    run = await opened(at.node, sandbox, "stty -echo; echo ready; cat; echo end")
    shown = aiter(run)
    await until_shown(shown, b"ready\r\n")
    if typed:
        await run.call.write(typed)
    run.call.close_stdin()
    assert await until_shown(shown, b"end") == typed.replace(b"\n", b"\r\n") + b"end"
    assert (await run.outcome()).exit_code == 0


async def test_end_of_a_program_hangs_up_the_processes_on_its_terminal(at: Bench, sandbox: Sandbox) -> None:
    run = await opened(at.node, sandbox, "sleep 4342 & (trap '' HUP; touch /tmp/set; exec sleep 4343) & until test -e /tmp/set; do sleep 0.05; done")
    await rest(run)
    await run.outcome()
    await until(lambda: dead(at.node, sandbox, "4342"))
    assert not await dead(at.node, sandbox, "4343"), "who was told to live on does"
    await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("pkill", "-f", "sleep 4343"), user=User.ROOT))


async def test_program_that_closes_its_terminal_keeps_its_exit_code(at: Bench, sandbox: Sandbox) -> None:
    for _ in range(5):
        run = await opened(at.node, sandbox, "exec 0<&- 1<&- 2<&-; sleep 0.2; exit 3")
        assert (await run.outcome()).exit_code == 3
        assert (await run.outcome()).signal is None


async def test_output_of_a_reopened_terminal_is_read(at: Bench, sandbox: Sandbox) -> None:
    run = await opened(at.node, sandbox, "exec 0<&- 1<&- 2<&-; sleep 0.2; echo again > /dev/tty")

    assert await rest(run) == b"again\r\n"


@cases(
    "argv, cwd, code",
    [(("no-such",), None, "program_not_found"), (("/etc/passwd",), None, "permission_denied"), (("true",), "/no", "working_directory_not_found")],
)
async def test_program_that_cannot_start_on_a_terminal_is_refused_each_time(
    at: Bench, sandbox: Sandbox, argv: tuple[str, ...], cwd: str | None, code: str
) -> None:
    for _ in range(2):
        with pytest.raises(SandlotError) as refused:
            await at.node.processes.start(sandbox, ProcessSpec(argv, cwd=cwd, rows=24, cols=80))
        assert str(refused.value.code) == code


async def opened(node: Node, sandbox: Sandbox, command: str, *, user: User = User.USER, timeout_s: float | None = 60) -> ProcessExecution:
    return await node.processes.start(sandbox, ProcessSpec(shell_argv(command), user=user, timeout_s=timeout_s, rows=24, cols=80))


async def rest(run: ProcessExecution) -> bytes:
    return b"".join([event.data async for event in run if isinstance(event, Output)])


async def until_shown(shown: AsyncIterator[Output | OutputGap], wanted: bytes) -> bytes:
    """Return the output up to and including some text."""
    got = b""
    while wanted not in got:
        event = await anext(shown)
        assert isinstance(event, Output)
        assert event.channel == STDOUT
        got += event.data
        if wanted not in got:
            got = got[-MIB:]
    return got[: got.index(wanted) + len(wanted)]


async def dead(node: Node, sandbox: Sandbox, word: str) -> bool:
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv(f"pgrep -f 'sleep {word[0]}[{word[1]}]{word[2:]}'"), user=User.ROOT))
    return done.outcome.exit_code != 0

"""Users of the sandbox other than ``user`` and ``root``: their processes, terminals and files."""

from __future__ import annotations

import pytest

from sandlot.model.errors import ForbiddenError, InvalidRequestError
from sandlot.model.executions import Output
from sandlot.model.specs import ProcessSpec, User, shell_argv
from tests.support.driver_sandboxes import PIDS, GuestSession

ALICE = User("alice")
SHOW = "id; echo $HOME $SHELL $USER $LOGNAME; umask"


@pytest.fixture(scope="module")
async def with_alice(inside: GuestSession) -> GuestSession:
    """A sandbox in which a program has added the user ``alice``, a member of the group ``audio``."""
    await inside.sh("useradd --create-home --shell /bin/sh --uid 1500 --groups audio alice", user=User.ROOT)
    return inside


async def test_added_user_runs_programs_by_name_and_by_uid(with_alice: GuestSession) -> None:
    shown = "uid=1500(alice) gid=1500(alice) groups=1500(alice),29(audio)\n/home/alice /bin/sh alice alice\n0022\n"
    assert await with_alice.sh(SHOW, user=ALICE) == shown
    assert await with_alice.sh(SHOW, user=User("1500")) == shown
    assert (await with_alice.sh("grep -E '^(Uid|CapEff)' /proc/self/status", user=ALICE)).split() == ["Uid:", *["1500"] * 4, "CapEff:", "0" * 16]
    assert await with_alice.sh("sudo id -u", user=ALICE) == "0\n"


@pytest.mark.parametrize(
    "user, shown",
    [
        ("www-data", "33 33 www-data www-data"),
        ("33", "33 33 www-data www-data"),
        ("www-data:audio", "33 29 audio www-data"),
        ("4321", "4321 0 root 4321"),
        ("4321:4322", "4321 4322 4322 4321"),
        ("0:100", "0 100 users root"),
    ],
)
async def test_users_of_the_image_and_uids_run_programs(inside: GuestSession, user: str, shown: str) -> None:
    assert await inside.sh("echo $(id -u) $(id -g) $(id -Gn 2>/dev/null) $USER", user=User(user)) == f"{shown}\n"


@pytest.mark.parametrize("user", ["no-such-user", "user:no-such-group"])
async def test_unknown_user_is_named_in_the_error(inside: GuestSession, user: str) -> None:
    for call in (
        inside.link.processes.start(ProcessSpec(("id",), user=User(user))),
        inside.link.files.stat("/", user=User(user)),
        inside.link.files.write("/tmp/unknown", b"", user=User(user)),
        inside.link.files.find_home(User(user)),
    ):
        with pytest.raises(InvalidRequestError, match=user.rpartition(":")[2]):
            await call


async def test_terminal_belongs_to_its_user(with_alice: GuestSession) -> None:
    spec = ProcessSpec(shell_argv("stat -c %U $(tty); echo typed > $(tty)"), user=ALICE, rows=24, cols=80)
    process = await with_alice.link.processes.start(spec)
    assert b"".join([item.data async for item in process if isinstance(item, Output)]) == b"alice\r\ntyped\r\n"


async def test_files_have_the_rights_and_the_owner_of_the_user(with_alice: GuestSession) -> None:
    files = with_alice.link.files
    assert await files.find_home(ALICE) == "/home/alice"
    written = await files.write("/home/alice/notes/one", b"1", user=ALICE)
    assert (written.uid, written.gid) == (1500, 1500)
    given = await files.write("/srv/given/one", b"1", user=User.ROOT, owner=User("1500:29"))
    assert (given.uid, given.gid) == (1500, 29)
    await with_alice.sh("mkdir -m 750 /srv/audio && chgrp audio /srv/audio && echo sound > /srv/audio/file", user=User.ROOT)
    assert (await files.stat("/srv/audio/file", user=ALICE)).size == 6
    with pytest.raises(ForbiddenError):
        await files.stat("/srv/audio/file", user=User("4321"))


async def test_changed_limit_of_processes_reaches_all_users(with_alice: GuestSession) -> None:
    process = await with_alice.link.processes.start(ProcessSpec(shell_argv("read x; ulimit -u"), user=User("4321:4322"), stdin=True))
    await with_alice.link.set_limits(pids=2 * PIDS)
    async with await with_alice.link.processes.open_input(process.id) as pipe:
        await pipe.write(b"\n")
    shown = b"".join([item.data async for item in process if isinstance(item, Output)])
    await with_alice.link.set_limits(pids=PIDS)
    assert shown == f"{2 * PIDS}\n".encode()

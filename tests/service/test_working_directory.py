"""The working directory of a sandbox, by the SDK: relative paths, contexts and terminals, and copies of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError
from tests.support.localservice import LocalService

CWD = "/srv/app/data"

BOTH = pytest.mark.parametrize("service", ["gvisor", "container"], indirect=True)


@pytest.fixture(scope="module")
def placed(service: LocalService) -> Iterator[Sandbox]:
    with service.create(cwd=CWD) as made:
        yield made


@BOTH
def test_programs_cells_and_terminals_start_in_it(placed: Sandbox) -> None:
    assert placed.info().cwd == CWD
    assert placed.commands.run("stat -c '%n %U' . /srv/app $PWD").stdout == f". user\n/srv/app user\n{CWD} user\n"
    assert placed.commands.run(["pwd"], user="root").stdout == f"{CWD}\n"
    placed.files.make_dir("inner")
    assert placed.commands.run("pwd", cwd="inner").stdout == f"{CWD}/inner\n"
    assert placed.commands.run("pwd", cwd="..").stdout == "/srv/app\n"
    for language, code in (("python", "import os; print(os.getcwd())"), ("bash", "pwd"), ("javascript", "console.log(process.cwd())")):
        assert placed.run_code(code, language=language).stdout == f"{CWD}\n"
        context = placed.contexts.create(language, cwd="./inner")
        assert placed.run_code(code, context=context).stdout == f"{CWD}/inner\n"
    with placed.pty.create(["pwd"]) as terminal:
        assert b"".join(terminal) == f"{CWD}\r\n".encode()


@BOTH
def test_relative_paths_of_files_begin_in_it(placed: Sandbox, tmp_path: Path) -> None:
    files = placed.files
    files.write("notes/one", "1")
    assert files.read(f"{CWD}/notes/one") == files.read("./notes/one") == "1"
    assert (files.stat("notes/one").path, files.realpath("notes")) == (f"{CWD}/notes/one", f"{CWD}/notes")
    assert f"{CWD}/notes" in [entry.path for entry in files.list()]
    assert "path=%2Fsrv%2Fapp%2Fdata%2Fnotes%2Fone&" in files.sign_url("notes/one")
    with files.watch("notes") as events:
        files.move("notes/one", "notes/two")
        assert next(iter(events)).path.startswith(f"{CWD}/notes/")
    assert files.download("notes", tmp_path / "copy") == 1
    (tmp_path / "copy" / "three").write_text("3")
    assert files.upload(tmp_path / "copy", "uploaded") == 2
    assert files.upload(tmp_path / "copy" / "three", "single/three") == 1
    assert placed.commands.run("cat uploaded/two uploaded/three single/three").stdout == "133"
    changed = placed.commands.run("echo 4 > notes/four", track=["notes"]).files
    assert changed is not None
    assert [file.path for file in changed] == [f"{CWD}/notes/four"]
    files.remove("notes")
    with pytest.raises(SandlotError) as refused:
        files.read("")
    assert refused.value.code is ErrorCode.PATH_INVALID


@pytest.mark.parametrize("service", ["gvisor"], indirect=True)
def test_it_stays_the_same_in_copies_and_after_hibernation(service: LocalService) -> None:
    with service.create(cwd=CWD) as source:
        source.files.write("file", "1")
        source.hibernate()
        assert source.commands.run("pwd; cat file").stdout == f"{CWD}\n1"
        (fork,) = source.fork()
        snapshot = source.snapshot()
        with (
            fork,
            Sandbox.create(snapshot=snapshot.id, client=service.client) as copy,
            Sandbox.create(snapshot=snapshot.id, cwd="/srv/other", client=service.client) as other,
        ):
            for each in (fork, copy):
                assert (each.commands.run("pwd").stdout, each.files.read("file")) == (f"{CWD}\n", "1")
            assert other.commands.run("pwd; stat -c %U .").stdout == "/srv/other\nuser\n"


@BOTH
def test_a_file_in_its_place_fails_the_create(service: LocalService) -> None:
    with pytest.raises(SandlotError, match="/etc/passwd") as refused:
        service.create(cwd="/etc/passwd")
    assert refused.value.code is ErrorCode.PATH_NOT_DIRECTORY

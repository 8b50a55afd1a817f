"""bash, JavaScript and TypeScript contexts in real sandboxes. The programs themselves are tested in ``tests/unit/guest``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from sandlot.link.kernels import CellCall
from sandlot.link.types import CellResult
from sandlot.model.errors import UnsupportedError
from sandlot.model.executions import CellError, CellStarted, Display, Output
from sandlot.model.specs import CellSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.localservice import EVERY_DAY


class Told:
    """What came of a cell."""

    def __init__(self) -> None:
        self.texts = {1: "", 2: ""}
        self.errors: list[tuple[str, str]] = []
        self.plain: list[str] = []
        self.result: CellResult | None = None


@pytest.fixture(scope="module", params=EVERY_DAY)
async def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox that the tests of a module share."""
    limits = replace(SMALL, pids=256, memory_bytes=512 * 1024 * 1024)
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=request.param, limits=limits) as sandbox:
        yield sandbox


async def listen(call: CellCall, told: Told, until: str | None = None) -> Told:
    async for item in call:
        if isinstance(item, Output):
            told.texts[item.channel] += item.data.decode("utf-8", "replace")
            if until is not None and until in told.texts[1]:
                return told
        elif isinstance(item, CellError):
            told.errors.append((item.name, item.value))
        elif isinstance(item, Display):
            told.plain.append(str(item.data["text/plain"]))
        else:
            assert isinstance(item, CellStarted)
    told.result = await call.result()
    return told


async def run(inside: GuestSession, language: str, code: str, **options: float) -> Told:
    return await listen(await inside.link.kernels.execute(CellSpec(code, language=None, context=language, **options)), Told())  # type: ignore[arg-type]


async def test_bash_keeps_its_state_and_reports_exit_statuses(inside: GuestSession) -> None:
    told = await run(inside, "bash", "x=5; cd /tmp; f() { echo f$x; }; echo out; echo err >&2")
    assert told.result is not None
    assert (told.result.status, told.texts) == ("ok", {1: "out\n", 2: "err\n"})
    assert (await run(inside, "bash", "f; pwd; id -un; cat")).texts == {1: "f5\n/tmp\nuser\n", 2: ""}
    told = await run(inside, "bash", "set -e; false; echo never")
    assert told.result is not None
    assert (told.result.status, told.errors, told.texts) == ("error", [("ExitStatus", "1")], {1: "", 2: ""})
    assert (await run(inside, "bash", "set +e; echo $x")).texts[1] == "5\n"
    assert (await run(inside, "bash", "exit 3")).errors == [("ExitStatus", "3")]
    assert (await run(inside, "bash", "echo [$x]")).texts[1] == "[]\n"


async def test_settings_of_bash_keep_its_variables(inside: GuestSession) -> None:
    for code in (
        "TMOUT=1; sleep 2",
        "PROMPT_COMMAND='exit 3'; printf() { :; }",
        "set -eu; echo $nosuch",
        "trap 'echo failed' ERR; set -e; false",
        "set -r",
    ):
        await run(inside, "bash", f"kept=yes; f() {{ echo $kept; }}; {code}")
        told = await run(inside, "bash", "f", timeout_s=30)
        assert (told.texts, told.errors) == ({1: "yes\n", 2: ""}, []), code
        await run(inside, "bash", "trap - ERR; set +eu; exit")


async def test_javascript_keeps_its_state_and_shows_values(inside: GuestSession) -> None:
    told = await run(inside, "javascript", "const x = 5; console.log('out'); console.error('err'); [x]")
    assert told.result is not None
    assert (told.result.status, told.texts, told.plain) == ("ok", {1: "out\n", 2: "err\n"}, ["[ 5 ]"])
    assert (await run(inside, "javascript", "const x = (await import('node:fs')).readFileSync('/etc/hostname', 'utf8'); x")).plain == ["'sandbox\\n'"]
    assert (await run(inside, "javascript", "null.y")).errors == [("TypeError", "Cannot read properties of null (reading 'y')")]
    assert (await run(inside, "javascript", "process.exit(3)")).errors == [("ExitStatus", "3")]
    assert (await run(inside, "javascript", "x.length")).plain == ["8"]


async def test_typescript_keeps_its_state_apart_from_javascript(inside: GuestSession) -> None:
    told = await run(inside, "typescript", "enum Size { S, L }\nconst size: Size = Size.L; console.log('out'); console.error('err'); [size]")
    assert told.result is not None
    assert (told.result.status, told.texts, told.plain) == ("ok", {1: "out\n", 2: "err\n"}, ["[ 1 ]"])
    assert (await run(inside, "typescript", "Size[size as number]")).plain == ["'L'"]
    assert (await run(inside, "typescript", "let a: number 5")).errors == [("SyntaxError", "Expected a semicolon")]
    assert (await run(inside, "typescript", "(null as any).y")).errors == [("TypeError", "Cannot read properties of null (reading 'y')")]
    assert (await run(inside, "javascript", "typeof size")).plain == ["'undefined'"]
    assert (await run(inside, "typescript", "size")).plain == ["1"]


async def test_language_that_the_image_lacks_is_refused_before_a_process_is_started(inside: GuestSession) -> None:
    before = {context.kernel for context in await inside.link.kernels.list()}
    with pytest.raises(UnsupportedError, match="no R") as refused:
        await inside.link.kernels.create("ctx-0123456789abcdef", "r")
    assert "`languages`" in (refused.value.hint or "")
    assert {context.kernel for context in await inside.link.kernels.list()} == before


async def test_javascript_finds_packages_that_npm_installed_after_its_start(inside: GuestSession) -> None:
    assert (await run(inside, "javascript", "require('probe')")).errors != []
    script = (
        "mkdir -p /tmp/probe && cd /tmp/probe && echo 'exports.word = 7' > index.js && npm init -y >/dev/null"
        " && npm install --silent --offline -g $(npm pack --silent)"
    )
    assert (await run(inside, "bash", f"({script})")).errors == []
    assert (await run(inside, "javascript", "[require('probe').word, (await import('probe')).word]")).plain == ["[ 7, 7 ]"]
    assert (await run(inside, "bash", "echo \"export {word} from 'probe'\" >/tmp/importing.mjs")).errors == []
    assert (await run(inside, "javascript", "(await import('/tmp/importing.mjs')).word")).plain == ["7"]


async def test_interrupt_ends_a_cell_and_keeps_the_state(inside: GuestSession) -> None:
    for language, code, kept in (
        ("bash", "kept=yes; echo on; sleep 300; echo never", "echo $kept"),
        ("bash", "kept=yes; echo on; while :; do :; done", "echo $kept"),
        ("javascript", "var kept = 'yes'; console.log('on'); for (;;) {}", "console.log(kept)"),
        ("javascript", "var kept = 'yes'; console.log('on'); await new Promise(() => {})", "console.log(kept)"),
        ("typescript", "var kept: string = 'yes'; console.log('on'); for (;;) {}", "console.log(kept as string)"),
    ):
        call = await inside.link.kernels.execute(CellSpec(code, language=None, context=language))
        told = await listen(call, Told(), until="on\n")
        await inside.link.kernels.interrupt(language)
        await listen(call, told)
        assert (told.errors, told.texts[1]) == ([("KeyboardInterrupt", "")], "on\n"), code
        assert (await run(inside, language, kept)).texts[1] == "yes\n", code


async def test_a_cell_that_ignores_interrupts_loses_the_state_and_says_so(inside: GuestSession) -> None:
    for language, keep, code, look in (
        ("bash", "kept=yes", "trap '' INT; while :; do :; done", "echo [$kept]"),
        ("javascript", "var kept = 'yes'", "setTimeout(() => { for (;;) {} }); await 1; await new Promise(() => {})", "console.log(typeof kept)"),
    ):
        await run(inside, language, keep)
        told = await run(inside, language, code, timeout_s=0.5)
        assert told.result is not None
        assert (told.result.status, told.errors[-1][0]) == ("timeout", "KernelDied"), language
        assert (await run(inside, language, look)).texts[1] in {"[]\n", "undefined\n"}, language


async def test_what_sudo_installs_is_users_to_replace(inside: GuestSession) -> None:
    made = "/usr/local/lib/python3.11/dist-packages/probe"
    told = await run(inside, "bash", f"sudo sh -c 'mkdir -p {made}/deep; touch {made}/deep/x'; stat -c %U {made}/deep/x; rm -r {made}")
    assert (told.texts, told.errors) == ({1: "user\n", 2: ""}, [])

"""The JavaScript kernel, run on the version of node that the images have."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.guest.kernels.kernel_events import parse_event
from sandlot.images.store import ImageStore
from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.schema import LIMITS
from tests.support.cache import CACHE_DIR
from tests.support.kernels import Piped, ship


@pytest.fixture(scope="module")
def node() -> Path:
    return ImageStore(CACHE_DIR).ensure("base").path / "usr/local/bin/node"


@pytest.fixture
def js(node: Path, tmp_path: Path) -> Generator[Piped]:
    (tmp_path / "work").mkdir()
    ship(tmp_path / "programs")
    kernel = Piped(
        [str(node), "--no-force-async-hooks-checks", str(tmp_path / "programs/kernel_programs/javascript/kernel.mjs")],
        tmp_path / "work",
        {"NODE_PATH": str(tmp_path / "global/node_modules")},
    )
    yield kernel
    assert kernel.close() == -signal.SIGKILL


def package(folder: Path, name: str, text: str, *, esm: bool = False) -> None:
    (folder / name).mkdir(parents=True)
    kind = ', "type": "module", "exports": "./index.js"' if esm else ""
    (folder / name / "package.json").write_text(f'{{"name": "{name}", "version": "1.0.0", "main": "index.js"{kind}}}', encoding="utf-8")
    (folder / name / "index.js").write_text(text, encoding="utf-8")


def test_declarations_persist_and_may_be_repeated(js: Piped) -> None:
    outcome = js.run("const x = 1; let y = 2; var z = 3; class A { v() { return x } }\nfunction f() { return x + y + z }")
    assert (outcome.is_ok, outcome.count, outcome.stdout, outcome.stderr, outcome.order) == (True, 1, "", "", ["started", "done"])
    assert js.run("f() + new A().v()").plain == ["7"]
    assert js.run("const x = 'again'; let y; class A {}; x").plain == ["'again'"]
    assert js.run("x = 5").error["name"] == "TypeError"
    assert js.run("x").plain == ["'again'"]


def test_value_of_the_last_expression_is_the_result(js: Piped, subtests: pytest.Subtests) -> None:
    for code, plain, json in [
        ("1 + 1", "2", None),
        ("'text'", "'text'", None),
        ("null", "null", None),
        ("10n ** 20n", "100000000000000000000n", None),
        ("-0", "-0", None),
        ("NaN", "NaN", None),
        ("Symbol('s')", "Symbol(s)", None),
        ("[Promise.resolve(1)]", "[ Promise { 1 } ]", None),
        ("[1, {a: 'b'}]", "[ 1, { a: 'b' } ]", '[1,{"a":"b"}]'),
        ("{a: 1, b: [2]}", "{ a: 1, b: [ 2 ] }", '{"a":1,"b":[2]}'),
        ("new Map([[1, 2]])", "Map(1) { 1 => 2 }", None),
        ("await Promise.resolve(4)", "4", None),
        ("for await (const x of [1, 2]) x", "2", None),
        ("const o = {}; o.self = o; o", "<ref *1> { self: [Circular *1] }", None),
        ("new Proxy({}, { get() { throw 1 } })", "{}", None),
        ("({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') } })", "(cannot be printed: Error)", None),
    ]:
        with subtests.test(code=code, plain=plain, json=json):
            (display,) = js.run(code).displays
            assert display["data"]["text/plain"] == plain
            assert display["main"]
            if json is not None:
                assert display["data"]["application/json"] == json


def test_cell_without_a_value_has_no_result(js: Piped, subtests: pytest.Subtests) -> None:
    for code in ["", "undefined", "let a = 1", "// a comment", "console.log(1)", "{ let b = 1 }", "function g() {}"]:
        with subtests.test(code=code):
            outcome = js.run(code)
            assert (outcome.is_ok, outcome.displays) == (True, [])


def test_output_of_both_streams_keeps_its_order(js: Piped) -> None:
    outcome = js.run(
        "console.log('a', {b: 1}); console.error('c'); process.stdout.write('d'); console.table([[1]]); display('x'); console.log('e'); 5"
    )
    assert outcome.order[:5] == ["started", "1:a { b: 1 }\n", "2:c\n", "1:d", outcome.order[4]]
    assert outcome.order[5:] == ["display", "1:e\n", "display", "done"]
    assert [display["main"] for display in outcome.displays] == [False, True]
    outcome = js.run("require('child_process').execSync('echo child; echo err >&2', {stdio: 'inherit'}); console.log('after')")
    assert (outcome.stdout, outcome.stderr) == ("child\nafter\n", "err\n")


def test_display_sends_all_representations(js: Piped) -> None:
    outcome = js.run(
        "({ [Symbol.for('sandlot.display')]: () => ({ 'text/html': '<b>', 'image/png': Buffer.from([137, 80]), 'application/json': {a: 1} }) })"
    )
    (display,) = outcome.displays
    assert {mime: item for mime, item in display["data"].items() if mime != "text/plain"} == {
        "text/html": "<b>",
        "image/png": b"\x89P",
        "application/json": '{"a":1}',
    }


def test_error_is_reported_with_its_line_and_the_kernel_continues(js: Piped) -> None:
    js.run("let x = 1")
    outcome = js.run("x = 2\nfunction f() {\n  null.y\n}\nf()\nx = 3")
    assert outcome.errors == [("TypeError", "Cannot read properties of null (reading 'y')")]
    assert outcome.error["traceback"][1:] == ["    at f (cell-2.js:3:8)", "    at cell-2.js:5:1"]
    assert not outcome.is_ok
    assert js.run("x").plain == ["2"]
    assert js.run("await Promise.reject(new RangeError('late'))").errors == [("RangeError", "late")]
    assert js.run("throw 5").errors == [("Uncaught", "5")]
    assert js.run("throw undefined").errors == [("Uncaught", "undefined")]
    outcome = js.run("let a = 1;\nlet 5")
    assert outcome.error["traceback"] == ["SyntaxError: Unexpected number", "    at cell-7.js:2:5"]
    assert js.run("class E extends Error { get message() { throw 1 } }; throw new E()").error["name"] in {"Error", "E"}
    assert js.run("function deep() { return deep() + 1 }; deep()").error["name"] == "RangeError"
    assert js.run("x").plain == ["2"]


def test_size_of_an_error_is_limited(js: Piped, subtests: pytest.Subtests) -> None:
    for code in ["throw new Error('é\\n'.repeat(2e5))", "throw 'é'.repeat(9e6)"]:
        with subtests.test(code=code):
            error = js.run(code).error
            assert len(error["value"]) <= 1 << 20
            assert len(error["traceback"]) <= 500
            assert sum(len(line.encode()) for line in [error["value"], *error["traceback"]]) < 6 << 20
            assert js.run("6 * 7").plain == ["42"]


RICH = "({{ [Symbol.for('sandlot.display')]: () => ({}) }})"


def test_representations_fit_into_one_message_and_omissions_are_noted(js: Piped, subtests: pytest.Subtests) -> None:
    for bundle, kept, left_out in [
        ("{'text/html': 'h'.repeat(2e6)}", {"text/html": 2_000_000}, {}),
        ("{'image/png': Buffer.alloc(6e6)}", {"image/png": 6_000_000}, {}),
        ("{'image/png': Buffer.alloc(7e6)}", {}, {"image/png": 7_000_000}),
        ("{'text/html': 'é'.repeat(4e6), 'text/markdown': 'm'}", {"text/markdown": 1}, {"text/html": 8_000_000}),
        (
            "Object.fromEntries([1, 2, 3, 4, 5, 6].map((n) => [`image/x-${n}`, Buffer.alloc(14e5)]))",
            {f"image/x-{n}": 1_400_000 for n in (1, 2, 3, 4, 5)},
            {"image/x-6": 1_400_000},
        ),
        ("{'application/json': (() => { const a = []; a.push(a); return a })(), 'text/html': 'h'}", {"text/html": 1}, {}),
        ("{['a/' + 'x'.repeat(9e6)]: 'long', 'text/html': 'h'}", {"text/html": 1}, {}),
    ]:
        with subtests.test(bundle=bundle, kept=kept, left_out=left_out):
            (display,) = js.run(RICH.format(bundle)).displays
            assert {mime: len(item) for mime, item in display["data"].items() if mime != "text/plain"} == kept
            assert display.get("metadata", {}) == {mime: {"left_out_bytes": size} for mime, size in left_out.items()}
            assert parse_event(display)
            assert js.run("6 * 7").plain == ["42"]


def test_long_text_is_cut_with_a_note(js: Piped) -> None:
    (plain,) = js.run(RICH.format("{'text/plain': 't'.repeat(3e6)}")).plain
    assert plain.endswith("\n[... cut after 1048576 of 3000000 characters]")
    (display,) = js.run(RICH.format("Object.fromEntries(Array.from({length: 2e4}, (_, n) => [`a/${n}`, 'many']))")).displays
    assert len(display["data"]) == LIMITS["mime_types"]


def test_no_message_exceeds_the_limits_even_if_cells_replace_functions(js: Piped, subtests: pytest.Subtests) -> None:
    """The cell replaces the functions that shorten errors, so only the last check is left."""
    for code in ["throw new Error('x'.repeat(9e6))", "throw new Error('a\\n'.repeat(2e5))"]:
        with subtests.test(code=code):
            js.run("Object.defineProperty(String.prototype, 'slice', { value() { return String(this) } }); Math.max = () => 0")
            message = js.run(code).error
            assert len(values.encode(message)) <= MESSAGE_MAX_BYTES
            assert message["name"] == "Error"
            assert js.run("6 * 7").plain == ["42"]


def test_cell_ends_after_its_microtasks_and_one_shot_timers(js: Piped, subtests: pytest.Subtests) -> None:
    js.run("const sleep = require('timers/promises').setTimeout; const { promisify } = require('util'); let timer")
    for code, stdout in [
        ("Promise.resolve(0).then(x => x + 1).then(console.log); 7", "1\n"),
        (
            "process.nextTick(console.log, 'tick'); queueMicrotask(() => console.log('micro')); setImmediate(console.log, 'soon'); 7",
            "tick\nmicro\nsoon\n",
        ),
        ("setTimeout(console.log, 50, 'late'); 7", "late\n"),
        ("setTimeout(() => setTimeout(() => setImmediate(console.log, 'nested'), 20), 20); 7", "nested\n"),
        ("import { setTimeout as later } from 'node:timers'; later(console.log, 30, 'imported'); 7", "imported\n"),
        ("sleep(30).then(() => console.log('slept')); 7", "slept\n"),
        ("promisify(setTimeout)(30).then(() => console.log('slept')); 7", "slept\n"),
        ("require('timers/promises').scheduler.wait(30).then(() => console.log('slept')); 7", "slept\n"),
        ("await sleep(20); setTimeout(console.log, 30, 'late'); 7", "late\n"),
        ("for (let n = 0; n < 3000; n += 1) setTimeout(() => {}, n % 9); setTimeout(console.log, 50, 'last'); 7", "last\n"),
    ]:
        with subtests.test(code=code, stdout=stdout):
            outcome = js.run(code)
            assert (outcome.stdout, outcome.stderr, outcome.plain, outcome.errors) == (stdout, "", ["7"], [])


def test_promise_as_the_value_of_a_cell_is_awaited(js: Piped, subtests: pytest.Subtests) -> None:
    js.run("const sleep = (value) => new Promise(resolve => setTimeout(resolve, 30, value)); Promise.prototype.then.call = null")
    js.run("async function main() { await sleep(); console.log('in main'); return [1] }")
    for code, stdout, plain in [
        ("main()", "in main\n", ["[ 1 ]"]),
        ("main().then(found => console.log(found.length))", "in main\n1\n", []),
        ("(async () => { await main(); return 'end' })()", "in main\n", ["'end'"]),
        ("Promise.all([1, sleep(2)])", "", ["[ 1, 2 ]"]),
        ("new (class Own extends Promise {})(resolve => setTimeout(resolve, 20, 3))", "", ["3"]),
        ("Promise.reject(new Error('handled')).catch(error => error.message)", "", ["'handled'"]),
        ("require('fs').promises.readFile('/dev/null', 'utf8')", "", ["''"]),
    ]:
        with subtests.test(code=code, stdout=stdout, plain=plain):
            outcome = js.run(code)
            assert (outcome.stdout, outcome.stderr, outcome.plain, outcome.errors) == (stdout, "", plain, [])
    assert js.run("(async () => { await sleep(); throw new RangeError('late') })()").errors == [("RangeError", "late")]


ABORTED = (
    "const stop = new AbortController(); setTimeout(() => stop.abort(), 20);"
    "require('timers/promises').setTimeout(300000, 1, { signal: stop.signal }).catch(() => {}); 7"
)


def test_intervals_servers_and_other_timers_do_not_hold_a_cell(js: Piped, subtests: pytest.Subtests) -> None:
    for code in [
        "let ticks = 0; const every = setInterval(() => { ticks += 1; setTimeout(() => {}, 300000) }, 5); setTimeout(() => {}, 60); 7",
        "const server = require('net').createServer().listen(0, '127.0.0.1'); 7",
        "setTimeout(() => {}, 300000).unref(); 7",
        "const long = setTimeout(() => {}, 300000); setTimeout(clearTimeout, 20, long); 7",
        ABORTED,
        "AbortSignal.timeout(300000); 7",
    ]:
        with subtests.test(code=code):
            outcome = js.run(code)
            assert (outcome.stderr, outcome.plain, outcome.errors) == ("", ["7"], [])
    before = int(js.run("ticks").plain[0])
    js.run("await new Promise(resolve => setTimeout(resolve, 50))")
    assert int(js.run("clearInterval(every); server.close(); ticks").plain[0]) > before > 0


def test_interrupt_ends_a_cell_that_waits_for_its_value_or_timers(js: Piped) -> None:
    js.run("let kept = 'yes'")
    for code in (
        "new Promise(() => {})",
        "setTimeout(() => {}, 300000); 7",
        "const again = () => setTimeout(again, 1); again(); 7",
        "require('timers/promises').setTimeout(300000); 7",
    ):
        cell = js.begin(f"console.log('on'); {code}")
        js.until(cell, lambda outcome: outcome.stdout == "on\n")
        assert js.stop(cell).errors == [("KeyboardInterrupt", "")], code
        assert js.run("kept").plain == ["'yes'"]


def test_unhandled_rejection_or_uncaught_error_is_the_error_of_its_cell(js: Piped, subtests: pytest.Subtests) -> None:
    for code, error, line in [
        ("Promise.reject(new Error('lost')); 7", ("Error", "lost"), "cell-{}.js:1:16"),
        ("(async () => { throw new TypeError('lost') })(); 7", ("TypeError", "lost"), "cell-{}.js:1:22"),
        ("Promise.resolve().then(() => null.x); 7", ("TypeError", "Cannot read properties of null (reading 'x')"), "cell-{}.js:1:35"),
        ("Promise.reject(new Error('lost')); await new Promise(() => {})", ("Error", "lost"), "cell-{}.js:1:16"),
        ("setTimeout(async () => { throw new Error('lost') }, 10); 7", ("Error", "lost"), "at Timeout._onTimeout (cell-{}.js:1:32)"),
        ("setTimeout(() => { throw new Error('timer') }, 10); 7", ("Error", "timer"), "at Timeout._onTimeout (cell-{}.js:1:26)"),
        ("process.nextTick(() => { throw new Error('tick') }); 7", ("Error", "tick"), "cell-{}.js:1:32"),
        ("new (require('events'))().emit('error', new Error('event')); 7", ("Error", "event"), "cell-{}.js:1:41"),
    ]:
        with subtests.test(code=code, error=error, line=line):
            outcome = js.run(code)
            assert (outcome.stderr, outcome.errors) == ("", [error])
            assert line.format(outcome.count) in outcome.error["traceback"][1]
    assert js.run("Promise.reject(5); 7").errors == [("Uncaught", "5")]
    assert js.run("1").plain == ["1"]


def test_error_after_the_end_of_a_cell_is_printed_for_that_cell(js: Piped) -> None:
    first = js.begin(
        "const late = setInterval(() => { clearInterval(late); Promise.reject(new Error('rejected')); throw new Error('thrown') }, 30); 7"
    )
    assert js.finish(first).is_ok
    second = js.begin("const waits = setInterval(() => {}, 1000); await new Promise(() => {})")
    stderr = js.until(first, lambda outcome: outcome.stderr.count("Uncaught") == 2).stderr
    assert "Uncaught Error: thrown\n    at Timeout.<anonymous> (cell-1.js:1:" in stderr
    assert "Uncaught Error: rejected\n    at Timeout.<anonymous> (cell-1.js:1:" in stderr
    outcome = js.stop(second)
    assert (outcome.stderr, outcome.errors) == ("", [("KeyboardInterrupt", "")])


def test_output_of_timers_and_servers_belongs_to_their_cell(js: Piped) -> None:
    first = js.begin(
        "const server = require('http').createServer((q, s) => { console.log('served'); s.end('hello') });\n"
        "await new Promise(r => server.listen(0, '127.0.0.1', r));\n"
        "const late = setInterval(() => { clearInterval(late); console.log('late') }, 100); console.log('first')"
    )
    js.finish(first)
    outcome = js.run("const answer = await fetch(`http://127.0.0.1:${server.address().port}`); console.log(await answer.text())")
    assert outcome.stdout == "hello\n"
    js.run("await new Promise(r => setTimeout(r, 200))")
    assert sorted(js.outcome(first).stdout.splitlines()) == ["first", "late", "served"]


def test_require_and_import_find_local_and_global_packages(js: Piped, tmp_path: Path) -> None:
    assert js.run("require('late')").error["value"].startswith("Cannot find module 'late'")
    assert "late" in js.run("await import('late')").error["value"]
    package(tmp_path / "work/node_modules", "late", "exports.word = 'here'")
    package(tmp_path / "work/node_modules", "modern", "export const word = 'esm'; export default 7", esm=True)
    package(tmp_path / "global/node_modules", "shared", "exports.word = 'everybody'")
    (tmp_path / "work/own.js").write_text("exports.word = 'own'", encoding="utf-8")
    (tmp_path / "work/own.mjs").write_text("export const word = 'own esm'", encoding="utf-8")
    assert js.run("[require('late').word, require('shared').word, require('./own').word, require('node:path').sep]").plain == [
        "[ 'here', 'everybody', 'own', '/' ]"
    ]
    assert js.run(
        "[(await import('late')).word, (await import('modern')).word, (await import('./own.mjs')).word, (await import('fs')).constants.R_OK]"
    ).plain == ["[ 'here', 'esm', 'own esm', 4 ]"]


def test_import_statements_work_as_in_a_module(js: Piped, tmp_path: Path) -> None:
    package(tmp_path / "work/node_modules", "modern", "export const word = 'esm', other = 1; export default 7", esm=True)
    (tmp_path / "work/data.json").write_text('{"a": 1}', encoding="utf-8")
    outcome = js.run(
        "import fs from 'node:fs'; import * as path from \"path\"\nimport seven, {\n  word,\n  other as one,\n} from 'modern';\n"
        "import 'modern'\nimport data from './data.json' with { type: 'json' };\n// import nothing from 'nowhere'\n"
        "const text = `import x from 'y'; import('z')`; text + \"import('q')\";\n[typeof fs.readFileSync, path.sep, seven, word, one, data, text]"
    )
    assert outcome.errors == []
    assert outcome.plain == ["[\n  'function',\n  '/',\n  7,\n  'esm',\n  1,\n  { a: 1 },\n  \"import x from 'y'; import('z')\"\n]"]
    assert js.run("import { nothing } from 'modern'\nnull.x").error["traceback"][1] == "    at cell-2.js:2:6"


def test_interrupt_ends_a_cell_that_loops_waits_or_sleeps(js: Piped) -> None:
    js.run("let kept = 'yes'")
    for code in (
        "while (true) {}",
        "await new Promise(() => {})",
        "for (;;) await null",
        "for (;;) console.log()",
        "await null; for (;;) {}",
    ):
        cell = js.begin(f"console.log('on'); {code}")
        js.until(cell, lambda outcome: outcome.stdout.startswith("on\n"))
        outcome = js.stop(cell)
        assert outcome.errors == [("KeyboardInterrupt", "")], code
    cell = js.begin("console.log('on'); require('child_process').execSync('sleep 300')")
    js.until(cell, lambda outcome: outcome.stdout.startswith("on\n"))
    assert js.stop(cell).errors in ([("Error", "Command failed: sleep 300")], [("KeyboardInterrupt", "")])
    assert js.run("kept").plain == ["'yes'"]
    js.interrupt()  # between cells
    assert js.run("kept").plain == ["'yes'"]


def test_exit_ends_the_cell_and_not_the_kernel(js: Piped) -> None:
    js.run("let kept = 'yes'")
    outcome = js.run("console.log('on'); process.exit(3); console.log('never')")
    assert (outcome.stdout, outcome.stderr, outcome.errors) == ("on\n", "", [("ExitStatus", "3")])
    outcome = js.run("process.exit()")
    assert (outcome.is_ok, outcome.displays) == (True, [])
    outcome = js.run("setTimeout(() => process.exit(4), 10); await new Promise(() => {})")
    assert (outcome.stderr, outcome.errors) == ("", [("ExitStatus", "4")])
    assert js.run("kept").plain == ["'yes'"]


def test_environment_of_a_cell_applies_to_that_cell_only(js: Piped) -> None:
    js.run("process.env.WAS = 'before'")
    assert js.run("[process.env.WAS, process.env.NEW]", {"WAS": "lent", "NEW": "it's"}).plain == ["[ 'lent', \"it's\" ]"]
    assert js.run("[process.env.WAS, process.env.NEW]").plain == ["[ 'before', undefined ]"]
    js.send({"op": "wake", "entropy": bytes(32), "env": {"LIFE": "2"}, "cwd": "/"})
    assert js.run("[process.env.LIFE, process.cwd() === '/']").plain == ["[ '2', false ]"]


def test_wake_changes_the_random_numbers(js: Piped) -> None:
    js.run("const native = Math.random; const shown = () => [Math.random(), Math.random()].join()")
    drawn = []
    for entropy in (b"a", b"b", b"a"):
        js.send({"op": "wake", "entropy": entropy * 64, "env": {}, "cwd": ""})
        drawn.append(js.run("shown()").plain[0])
    assert drawn[0] == drawn[2] != drawn[1]
    js.run("let sum = 0, low = 1, high = 0")
    js.run("for (let n = 0; n < 1e5; n += 1) { const x = Math.random(); sum += x; low = Math.min(low, x); high = Math.max(high, x) }")
    assert js.run("[Math.abs(sum / 1e5 - 0.5) < 0.01, low >= 0, low < 0.001, high < 1, high > 0.999].join()").plain == ["'true,true,true,true,true'"]
    assert js.run("[Math.random.name, Math.random.length, Object.keys(Math).length].join()").plain == ["'random,0,0'"]


def test_random_generator_that_a_cell_installed_is_kept(js: Piped) -> None:
    js.run("Math.random = () => 0.5")
    js.send({"op": "wake", "entropy": b"a" * 64, "env": {"NEW": "1"}, "gone": ["PATH", "NONE"], "cwd": ""})
    assert js.run("[Math.random(), process.env.PATH, process.env.NEW].join()").plain == ["'0.5,,1'"]


def test_numbers_generated_in_advance_are_discarded(js: Piped) -> None:
    js.run("const crypto = require('crypto'); const { randomUUID, randomInt } = crypto; randomUUID(); randomInt(5)")
    js.run("let uuids = 0, integers = 0; crypto.randomUUID = () => { uuids += 1 }; crypto.randomInt = () => { integers += 1 }")
    js.send({"op": "wake", "entropy": b"a" * 64, "env": {}, "cwd": ""})
    assert js.run("[uuids, integers].join()").plain == ["'128,1024'"]


def test_kernel_runs_with_random_numbers_of_the_processor(node: Path, tmp_path: Path) -> None:
    ship(tmp_path / "programs")
    argv = [str(node), "--no-force-async-hooks-checks", f"--openssl-config={tmp_path / 'programs/kernel_programs/javascript/openssl.cnf'}"]
    kernel = Piped([*argv, str(tmp_path / "programs/kernel_programs/javascript/kernel.mjs")], tmp_path)
    try:
        code = "const crypto = require('crypto'); new Set([crypto.randomUUID(), crypto.randomUUID(), crypto.randomBytes(16).toString('hex')]).size"
        outcome = kernel.run(code)
        assert (outcome.plain, outcome.stderr) == (["3"], "")
    finally:
        kernel.close()


def test_hostile_cell_does_not_affect_later_cells(js: Piped) -> None:
    for code in (
        "console.log = null; process.stdout.write = null",
        "Object.prototype.toString = null; Array.prototype.map = null",
        "globalThis.Buffer = null; delete globalThis.require",
        "'\\ud800'",
        "console.error('\\0\\ud800')",
        "new Array(1e6).fill('x')",
        "'x'.repeat(20_000_000)",
        "JSON.stringify = () => { throw 1 }",
    ):
        js.run(code)
    assert js.run("1 + 1").plain == ["2"]


def test_interrupt_soon_after_the_start_is_at_most_one_error(js: Piped) -> None:
    for number in range(12):
        cell = js.begin(("while (true);", "await new Promise(() => setTimeout(() => {}, 300000))", "throw new Error('x')", "1")[number % 4])
        js.until(cell, lambda outcome: "started" in outcome.order)
        time.sleep(number % 31 / 1000)
        outcome = js.stop(cell)
        assert len(outcome.errors) == (not outcome.is_ok), outcome

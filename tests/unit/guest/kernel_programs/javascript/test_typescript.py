"""TypeScript in the kernel of JavaScript and TypeScript, run on the version of node that the images have."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.images.store import ImageStore
from tests.support.cache import CACHE_DIR
from tests.support.kernels import Piped, ship


def start(folder: Path, *options: str) -> Piped:
    node = ImageStore(CACHE_DIR).ensure("base").path / "usr/local/bin/node"
    ship(folder)
    program = str(folder / "kernel_programs/javascript/kernel.mjs")
    return Piped([str(node), "--no-force-async-hooks-checks", *options, program, "typescript"], folder)


@pytest.fixture
def ts(tmp_path: Path) -> Generator[Piped]:
    kernel = start(tmp_path)
    yield kernel
    kernel.close()


def test_types_are_removed_and_declarations_persist(ts: Piped) -> None:
    outcome = ts.run("interface Point { x: number }\nconst p: Point = { x: 1 };\nfunction twice<T extends Point>(q: T): number { return q.x * 2 }")
    assert (outcome.is_ok, outcome.displays, outcome.stdout, outcome.stderr) == (True, [], "", "")
    assert ts.run("twice(p as Point) satisfies number").plain == ["2"]
    assert ts.run("const p: string = 'again'; p").plain == ["'again'"]
    assert ts.run("await Promise.resolve(p!.length)").plain == ["5"]


def test_code_that_is_more_than_types_is_run(ts: Piped) -> None:
    assert ts.run("enum Colour { Red, Green }\nColour.Green").plain == ["1"]
    assert ts.run("Colour[0]").plain == ["'Red'"]
    assert ts.run("class Pair { constructor(public a: number, readonly b: string) {} }\nnew Pair(1, 'x')").plain == ["Pair { a: 1, b: 'x' }"]
    assert ts.run("namespace Space { export const inside = 3 }\nSpace.inside").plain == ["3"]
    assert ts.run("Space.inside + <number>Colour.Green").plain == ["4"]


def test_imports_of_values_are_kept_and_imports_of_types_are_removed(ts: Piped) -> None:
    outcome = ts.run(
        "import path, { type ParsedPath, basename } from 'node:path'\nimport type { Nothing } from 'missing'\npath.dirname('/a/b') + basename('/c/d')"
    )
    assert (outcome.plain, outcome.errors) == (["'/ad'"], [])


def test_object_without_parentheses_is_a_value(ts: Piped) -> None:
    assert ts.run("{ a: 1, b: 'x' as string }").plain == ["{ a: 1, b: 'x' }"]
    assert ts.run("{ const a: number = 5; console.log(a) }").stdout == "5\n"


@pytest.mark.parametrize(
    "code, place",
    [
        ("\nlet b: number 5", "cell-1.ts:2:15"),
        ("let a = 1; let 5", "cell-1.ts:1:16"),
        ("enum A { X }\n\nlet b: number 5", "cell-1.ts:3:15"),
        ("function f(\n{", "cell-1.ts:2"),
        ("let a: number = 8\n  export { a }", "cell-1.ts:2:3"),  # found by V8
    ],
)
def test_syntax_error_has_its_place_and_keeps_the_state(ts: Piped, code: str, place: str) -> None:
    outcome = ts.run(code)
    assert (outcome.is_ok, outcome.error["name"]) == (False, "SyntaxError")
    assert outcome.error["traceback"] == [f"SyntaxError: {outcome.error['value']}", f"    at {place}"]
    assert ts.run("1 + 1").plain == ["2"]


def test_error_has_the_lines_of_the_cell(ts: Piped) -> None:
    outcome = ts.run("// a comment\n\nfunction fail(a: number,\n              b?: string): never {\n  throw new RangeError(`${a}`)\n}\nfail(1)")
    assert outcome.error["traceback"] == ["RangeError: 1", "    at fail (cell-1.ts:5:9)", "    at cell-1.ts:7:1"]


def test_kernel_on_an_older_node_reports_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "older.cjs").write_text(
        "const module_ = require('node:module'); delete module_.stripTypeScriptTypes; module_.syncBuiltinESMExports()", encoding="utf-8"
    )
    kernel = start(tmp_path, f"--require={tmp_path / 'older.cjs'}")
    assert "22.13" in kernel.run("1").errors[0][1]
    kernel.close()


def test_cell_that_replaces_the_parser_does_not_affect_later_cells(ts: Piped) -> None:
    ts.run("require('node:module').stripTypeScriptTypes = null; require('node:module').syncBuiltinESMExports(); process.emitWarning = null")
    assert ts.run("1 as number").plain == ["1"]


DEEP = {"brackets": "[" * 1500 + "]" * 1500, "sum": "+".join("1" * 10_000)}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP)
def test_code_that_is_nested_too_deeply_does_not_break_the_parser(ts: Piped, code: str) -> None:
    ts.run("const kept: number = 5")
    error = ts.run(code).error
    assert (error["name"], "nested too deeply" in error["value"]) == ("SyntaxError", True)
    for _ in range(11):  # the sum breaks the parser of node 24 at the tenth time; the stack of a thread is large enough for the sum
        assert all("nested too deeply" in value for _, value in ts.run(code).errors)
    assert ts.run("kept as number + 1").plain == ["6"]
    assert ts.run("enum Colour { Red }; Colour[0]").plain == ["'Red'"]
    error = ts.run("let wrong: number 5").error
    assert (error["name"], error["traceback"][-1]) == ("SyntaxError", "    at cell-16.ts:1:19")


NO_THREAD = """
class Refused { constructor() { throw Object.assign(new Error('Worker initialization failure: EAGAIN'), { code: 'ERR_WORKER_INIT_FAILED' }) } }
require('node:worker_threads').Worker = Refused
require('node:module').syncBuiltinESMExports()
"""


def test_parser_that_cannot_be_started_is_no_nested_code(ts: Piped) -> None:
    ts.run(NO_THREAD)
    ts.run(DEEP["brackets"])
    error = ts.run("1 as number").error
    assert (error["name"], error["value"].partition(".")[0]) == ("SyntaxError", "The TypeScript parser could not be started")

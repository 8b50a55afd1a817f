"""The languages of SandboxAPI through its wire: names, verdicts and versions. Compiled languages run in the template `languages`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from sandlot import InvalidRequestError
from sandlot.images.store import ImageStore
from sandlot.sdk.compat.sandboxapi import SandboxAPI
from tests.support.cache import CACHE_DIR
from tests.support.tcpservice import tcp_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

NAMES = {
    "python3": ("python", "py"),
    "javascript": ("js", "node"),
    "typescript": ("ts",),
    "bash": ("sh", "shell"),
    "java": ("jdk",),
    "cpp": ("c++",),
    "c": ("gcc",),
    "go": ("golang",),
}
"""Languages of the vendor -> their aliases."""


@dataclass(frozen=True)
class Programs:
    """Programs in one language.

    Args:
        double: Prints twice the number that it reads.
        exit: Exits with 3.
        endless: Never ends.
        broken: Has a syntax error, after code that would print.
    """

    double: str
    exit: str
    endless: str
    broken: str


JAVA = "import java.util.*;\nclass Main { public static void main(String[] args) { %s } }"
C = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { %s }"
CPP = "#include <iostream>\n#include <cstdlib>\nint main() { %s }"
GO = 'package main\nimport ("fmt"; "os")\nfunc main() { var n int; fmt.Sscan("0", &n); if n == 1 { os.Exit(1) }; %s }'
ENDLESS = "volatile int n = 0; for (;;) n = 1;"
READ = "import { readFileSync } from 'node:fs';\n"

PROGRAMS = {
    "python3": Programs("print(int(input()) * 2)", "raise SystemExit(3)", "while True: pass", "print('early')\nif ("),
    "javascript": Programs(
        READ + "console.log(Number(readFileSync(0, 'utf8')) * 2)", "process.exit(3)", "for (;;) {}", READ + "console.log('early'); if (;"
    ),
    "typescript": Programs(
        READ + "enum By { Two = 2 }\nconst n: number = Number(readFileSync(0, 'utf8'));\nconsole.log(n * By.Two)",
        "process.exit(3 as number)",
        "for (;;) {}",
        "console.log('early'); const n: number = (;",
    ),
    "bash": Programs("read n; echo $((n * 2))", "exit 3", "while :; do :; done", "echo early\nif ("),
    "java": Programs(
        "package org.example;\nimport java.util.*;\npublic class Number { int twice(int n) { return 2 * n; } }\n"
        "class Program { public static void main(String[] args) { System.out.println(new Number().twice(new Scanner(System.in).nextInt())); } }",
        JAVA % "System.exit(3);",
        JAVA % "while (true) {}",
        JAVA % 'System.out.println("early"); int n = (;',
    ),
    "cpp": Programs(CPP % "int n; std::cin >> n; std::cout << 2 * n;", CPP % "exit(3);", CPP % ENDLESS, CPP % "int n = (;"),
    "c": Programs(
        C % 'int n; if (scanf("%d", &n) != 1) return 1; printf("%d", 2 * n);',
        C % "exit(3);",
        C % ENDLESS,
        C % "int n = (;",
    ),
    "go": Programs(GO % "fmt.Scan(&n); fmt.Println(2 * n)", GO % "os.Exit(3)", GO % "for {}", GO % "n = ("),
}


@pytest.fixture(scope="module")
def sb() -> Iterator[SandboxAPI]:
    ImageStore(CACHE_DIR).root("languages")  # a client does not wait for a build
    with tcp_service() as service, httpx.Client(timeout=300) as http:
        yield SandboxAPI(service.key("languages"), f"{service.url}/sandboxapi", http_client=http)


def test_each_language_runs_by_each_of_its_names(sb: SandboxAPI) -> None:
    listed = {each["id"]: each for each in sb.languages()}
    asked = [(id_, name) for id_, aliases in NAMES.items() for name in (id_, *aliases)]
    programs = [{"language": name, "code": listed[id_]["example"], "expected_output": "Hello, World!", "timeout": 60} for id_, name in asked]
    for (id_, name), done in zip(asked, sb.execute_batch(programs, concurrency=2).results, strict=True):
        assert (done.status, done.language, done.exit_code) == ("completed", id_, 0), (name, done)
    assert all(listed[id_]["version"] for id_ in NAMES)


@pytest.mark.parametrize("language", PROGRAMS)
def test_verdicts_are_told_apart(sb: SandboxAPI, language: str) -> None:
    programs = PROGRAMS[language]
    right = sb.execute_with_expected(language, programs.double, "42", stdin="21", timeout=60)
    assert (right.status, right.compile_output) == ("completed", ""), right
    assert right.memory_used_kb > 0
    wrong = sb.execute_with_expected(language, programs.double, "42", stdin="20", timeout=60)
    assert (wrong.status, wrong.stdout.strip()) == ("wrong_answer", "40"), wrong
    failed = sb.execute(language, programs.exit, timeout=60)
    assert (failed.status, failed.exit_code) == ("runtime_error", 3), failed
    late = sb.execute(language, programs.endless, timeout=3)
    assert (late.status, late.exit_signal) == ("timeout", "SIGKILL"), late
    broken = sb.execute(language, programs.broken, timeout=60)
    assert (broken.status, broken.stdout) == ("compile_error", ""), broken
    assert broken.compile_output
    assert broken.exit_code


def test_sessions_refuse_languages_without_state(sb: SandboxAPI) -> None:
    with pytest.raises(InvalidRequestError, match="Sessions do not run Go"):
        sb.sessions.create(language="golang")

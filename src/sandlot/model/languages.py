"""Programming languages: one table, which programs, contexts, the command-line interface and the compatibility APIs read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sandlot.model.errors import InvalidRequestError
from sandlot.model.java_source import Source, find_java_source
from sandlot.model.paths import WORKSPACE

LANGUAGES_TEMPLATE: Final = "languages"
"""Built-in template that runs programs in all languages."""
_VERSION: Final = re.compile(r"\d+(?:\.\d+)*")
_NODE_OUT_OF_MEMORY: Final = r"JavaScript heap out of memory|Array buffer allocation failed"

_CHECK_JAVASCRIPT: Final = """
const { readFileSync } = require('node:fs');
const { compileFunction, SourceTextModule } = require('node:vm');
const filename = process.argv[1];
const code = readFileSync(filename, 'utf8');
Error.stackTraceLimit = 1;
try {
  compileFunction(code, ['exports', 'require', 'module', '__filename', '__dirname'], { filename });
} catch (error) {
  if (!/import|export|await|already been declared/.test(error.message)) throw error;
  new SourceTextModule(code, { identifier: filename });
}
""".replace("{", "{{").replace("}", "}}")
"""Program of Node.js that checks the syntax of a CommonJS module or, after an error of V8 about code that only modules may have, of an ES module.
``node --check`` does not check ES modules: Node.js 24.19 passes every file with ``import`` or ``export``. Braces are doubled for
:meth:`Language.expand`."""


@dataclass(frozen=True, slots=True)
class Language:
    """A programming language.

    In commands, ``{file}`` stands for the path of the code, ``{folder}`` for its folder,
    ``{name}`` for the file name without the extension, and ``{entry}`` for the name by which an interpreter starts the program.

    Args:
        name: Name in requests and results.
        title: Name to display.
        aliases: Other names that requests may use.
        extensions: Extensions of files with programs, with the dot; the usual one first.
        filename: File name of the code of a program.
        run_argv: Command that runs a program.
        example: A program that prints one line.
        version_argv: Command that prints the version (:meth:`parse_version`).
        compile_argv: Command that compiles a program before the run; empty if the language is interpreted.
        syntax_check_argv: Command that checks the syntax of an interpreted program without running it, except for the BEGIN blocks of Perl; empty if
            the language is compiled.
        type_check_argv: Command that checks the types of a program; empty if the language has no such check beside its compiler.
        out_of_memory: Regular expression for the text that a runtime writes to standard error if it cannot allocate memory; empty if there is none.
            Some runtimes have a limit of their own, so that the program ends before the memory of the sandbox is full.
        context: Id of the default context for code of the language; None if no context runs such code.
        find_source: Function that finds the names of the source file in the code; None if ``filename`` is the file name of each program.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    extensions: tuple[str, ...]
    filename: str
    run_argv: tuple[str, ...]
    example: str
    version_argv: tuple[str, ...]
    compile_argv: tuple[str, ...] = ()
    syntax_check_argv: tuple[str, ...] = ()
    type_check_argv: tuple[str, ...] = ()
    out_of_memory: str = ""
    context: str | None = None
    find_source: Callable[[str], Source] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Name and aliases."""
        return (self.name, *self.aliases)

    @property
    def interpreter(self) -> str:
        """Program that runs a file of an interpreted language."""
        return self.run_argv[0]

    def parse_version(self, text: str) -> str:
        """Return the version in the output of ``version_argv``: its first numbers with dots; empty if there are none."""
        found = _VERSION.search(text)
        return "" if found is None else found[0]

    def source_of(self, code: str) -> Source:
        """Return the names of the source file of a program."""
        return Source(self.filename, self.filename.rpartition(".")[0]) if self.find_source is None else self.find_source(code)

    def expand(self, argv: tuple[str, ...], source: Source) -> tuple[str, ...]:
        """Return one of the commands for a program.

        Args:
            argv: ``run_argv``, ``compile_argv``, ``syntax_check_argv`` or ``type_check_argv``.
            source: Source file of the program (:meth:`source_of`).
        """
        values = {"file": f"{WORKSPACE}/{source.filename}", "folder": WORKSPACE, "name": source.filename.rpartition(".")[0], "entry": source.entry}
        return tuple(part.format_map(values) for part in argv)


@dataclass(frozen=True, slots=True)
class AvailableLanguage:
    """A language, and the template in which its programs run if their request names none.

    Args:
        template: Name of the template; None if no template is known to have what the language needs.
        version: Version of the compiler or interpreter in the image of the template; None until the image is built, or if it is not known.
    """

    language: Language
    template: str | None
    version: str | None


LANGUAGES: Final = (
    Language(
        "python",
        "Python",
        aliases=("python3", "py"),
        extensions=(".py",),
        filename="main.py",
        run_argv=("python3", "{file}"),
        example="print('Hello, World!')",
        version_argv=("python3", "--version"),
        syntax_check_argv=("python3", "-I", "-c", "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')", "{file}"),
        out_of_memory=r"^(?:MemoryError|numpy\.[\w.]+MemoryError)\b",
        context="default",
    ),
    Language(
        "javascript",
        "JavaScript (Node.js)",
        aliases=("js", "node"),
        extensions=(".js", ".cjs", ".mjs"),
        filename="main.js",
        run_argv=("node", "{file}"),
        example="console.log('Hello, World!')",
        version_argv=("node", "--version"),
        syntax_check_argv=("node", "--experimental-vm-modules", "--no-warnings", "-e", _CHECK_JAVASCRIPT, "{file}"),
        out_of_memory=_NODE_OUT_OF_MEMORY,
        context="javascript",
    ),
    Language(
        "typescript",
        "TypeScript",
        aliases=("ts",),
        extensions=(".ts", ".mts", ".cts"),
        filename="main.ts",
        run_argv=("node", "{folder}/{name}.mjs"),
        example="const greeting: string = 'Hello, World!';\nconsole.log(greeting);",
        version_argv=("tsc", "--version"),
        compile_argv=(
            *("esbuild", "{file}", "--outfile={folder}/{name}.mjs", "--bundle", "--platform=node", "--packages=external", "--format=esm"),
            # Programs may use require(), which modules do not have.
            "--banner:js=import {{ createRequire as __createRequire }} from 'node:module'; const require = __createRequire(import.meta.url);",
            *("--log-level=warning", "--color=false"),
        ),
        type_check_argv=(
            *("tsc", "--noEmit", "--pretty", "false", "--strict", "--skipLibCheck", "--target", "esnext", "--module", "preserve"),
            *("--typeRoots", "/usr/local/lib/node_modules/@types", "--types", "node", "{file}"),
        ),
        out_of_memory=_NODE_OUT_OF_MEMORY,
        context="typescript",
    ),
    Language(
        "bash",
        "Bash",
        aliases=("sh", "shell"),
        extensions=(".sh", ".bash"),
        filename="main.sh",
        run_argv=("bash", "{file}"),
        example="echo 'Hello, World!'",
        version_argv=("bash", "--version"),
        syntax_check_argv=("bash", "-n", "{file}"),
        out_of_memory=r": cannot allocate \d+ bytes",
        context="bash",
    ),
    Language(
        "java",
        "Java",
        aliases=("jdk",),
        extensions=(".java",),
        filename="Main.java",
        run_argv=("java", "-XX:MaxRAMPercentage=50", "-cp", "{folder}", "{entry}"),  # for the heap; the default is 25
        example='public class Main {\n    public static void main(String[] args) {\n        System.out.println("Hello, World!");\n    }\n}',
        version_argv=("javac", "--version"),
        compile_argv=("javac", "-d", "{folder}", "{file}"),
        find_source=find_java_source,
        out_of_memory=r"java\.lang\.OutOfMemoryError: (?!unable to create native thread)[^\n]{0,80}|insufficient memory for the Java Runtime",
    ),
    Language(
        "cpp",
        "C++",
        aliases=("c++", "cxx"),
        extensions=(".cpp", ".cc", ".cxx", ".c++"),
        filename="main.cpp",
        run_argv=("{folder}/{name}",),
        example='#include <iostream>\nint main() { std::cout << "Hello, World!\\n"; }',
        version_argv=("g++", "-dumpfullversion"),
        compile_argv=("g++", "-O2", "-std=c++20", "-o", "{folder}/{name}", "{file}"),
        out_of_memory=r"'std::bad_alloc'",
    ),
    Language(
        "c",
        "C",
        aliases=("gcc",),
        extensions=(".c",),
        filename="main.c",
        run_argv=("{folder}/{name}",),
        example='#include <stdio.h>\nint main(void) { puts("Hello, World!"); }',
        version_argv=("gcc", "-dumpfullversion"),
        compile_argv=("gcc", "-O2", "-std=gnu17", "-o", "{folder}/{name}", "{file}", "-lm"),
    ),
    Language(
        "go",
        "Go",
        aliases=("golang",),
        extensions=(".go",),
        filename="main.go",
        run_argv=("{folder}/{name}",),
        example='package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("Hello, World!")\n}',
        version_argv=("go", "version"),
        compile_argv=("go", "build", "-o", "{folder}/{name}", "{file}"),
        out_of_memory=r"^fatal error: .*(?:out of memory|cannot allocate memory)",
    ),
    Language(
        "rust",
        "Rust",
        aliases=("rs",),
        extensions=(".rs",),
        filename="main.rs",
        run_argv=("{folder}/{name}",),
        example='fn main() {\n    println!("Hello, World!");\n}',
        version_argv=("rustc", "--version"),
        # Without the debug information of the standard library, a program has 0.5 MB instead of 11, and links in less time.
        compile_argv=("rustc", "-O", "-C", "strip=debuginfo", "--edition", "2021", "--color", "never", "-o", "{folder}/{name}", "{file}"),
        out_of_memory=r"^memory allocation of \d+ bytes failed",
    ),
    Language(
        "ruby",
        "Ruby",
        aliases=("rb",),
        extensions=(".rb",),
        filename="main.rb",
        run_argv=("ruby", "{file}"),
        example="puts 'Hello, World!'",
        version_argv=("ruby", "--version"),
        syntax_check_argv=("ruby", "-c", "{file}"),
        out_of_memory=r"\(NoMemoryError\)|^\[FATAL\] failed to allocate memory",
    ),
    Language(
        "php",
        "PHP",
        aliases=(),
        extensions=(".php",),
        filename="main.php",
        run_argv=("php", "-d", "display_errors=stderr", "{file}"),
        example='<?php\necho "Hello, World!\\n";',
        version_argv=("php", "--version"),
        syntax_check_argv=("php", "-d", "display_errors=stderr", "-l", "{file}"),
        out_of_memory=r"Fatal error: +(?:Allowed memory size of \d+ bytes exhausted|Out of memory)|^Out of memory$",
    ),
    Language(
        "r",
        "R",
        aliases=("rscript",),
        extensions=(".r",),
        filename="main.R",
        run_argv=("Rscript", "{file}"),
        example="cat('Hello, World!\\n')",
        version_argv=("R", "--version"),
        syntax_check_argv=("Rscript", "-e", "invisible(parse(commandArgs(TRUE)))", "{file}"),
        out_of_memory=r"cannot allocate (?:vector of size|memory block of size)|vector memory (?:exhausted|limit of)",
        context="r",
    ),
    Language(
        "perl",
        "Perl",
        aliases=("pl",),
        extensions=(".pl",),
        filename="main.pl",
        run_argv=("perl", "{file}"),
        example='print "Hello, World!\\n";',
        version_argv=("perl", "-e", "print $^V"),
        syntax_check_argv=("perl", "-c", "{file}"),
        out_of_memory=r"^(?:Out of memory|panic: string extend)",
    ),
)

_BY_NAME: Final[Mapping[str, Language]] = MappingProxyType({name: language for language in LANGUAGES for name in language.names})
_BY_EXTENSION: Final[Mapping[str, Language]] = MappingProxyType({extension: language for language in LANGUAGES for extension in language.extensions})

_BY_PROGRAM: Final[Mapping[str, Language]] = MappingProxyType(
    {argv[0]: language for language in reversed(LANGUAGES) for argv in (language.version_argv, language.compile_argv or language.run_argv)}
)
"""Compiler or interpreter -> first language that needs it."""

CONTEXT_LANGUAGES: Final[Mapping[str, str]] = MappingProxyType(
    {name: language.name for language in LANGUAGES if language.context for name in language.names}
)
"""Name of a language in a request -> language of the contexts that run its code."""

DEFAULT_CONTEXT_IDS: Final[Mapping[str, str]] = MappingProxyType({language.name: language.context for language in LANGUAGES if language.context})
"""Language -> id of the default context of the language."""


def language_of(name: str) -> Language:
    """Return the language with the given name or alias, in upper or lower case.

    Raises:
        InvalidRequestError: The language is not supported; the hint lists all languages.
    """
    known = _BY_NAME.get(name.lower())
    if known is None:
        raise InvalidRequestError(
            f"The language {name[:50]!r} is not supported.",
            hint=f"Use one of: {list_names(LANGUAGES)}.",
            fields={"field": "language", "languages": [each.name for each in LANGUAGES]},
        )
    return known


def language_of_file(filename: str) -> Language | None:
    """Return the language of a file by its extension, or None if the extension is unknown."""
    stem, dot, extension = filename.rpartition(".")
    return _BY_EXTENSION.get(f".{extension.lower()}") if stem and dot else None


def missing_program_hint(program: str) -> str | None:
    """Return the hint of an error for a missing compiler or interpreter, or None if no language needs the program.

    Args:
        program: Name of the program, such as ``Rscript``.
    """
    language = _BY_PROGRAM.get(program)
    return None if language is None else f"Use the template `{LANGUAGES_TEMPLATE}`, another template with {language.title}, or install the program."


def list_names(languages: Iterable[Language]) -> str:
    """Return the names and aliases of languages as text."""
    return "; ".join(f"{each.name} ({', '.join(each.aliases)})" if each.aliases else each.name for each in languages)

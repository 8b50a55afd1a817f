"""Programming languages: one table, which one-shot programs, contexts, the command line and the compatibility APIs read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sandlot.model.errors import InvalidRequestError

FOLDER: Final = "/workspace"
"""Folder with the code of a program, and with the files that its compiler writes."""
_JAVA_CLASS: Final = re.compile(r"^[ \t]*public\s+(?:(?:abstract|final|sealed|strictfp)\s+)*(?:class|enum|interface|record)\s+(\w+)", re.MULTILINE)
_JAVA_MAIN: Final = re.compile(r"\b(?:class|enum|interface|record)\s+(\w+)|\bstatic\s+void\s+main\s*\(")


@dataclass(frozen=True, slots=True)
class Language:
    """A programming language.

    In command lines, ``{file}`` stands for the path of the code, ``{folder}`` for its folder, and ``{name}`` for the file name without the ending.

    Args:
        name: Name in requests and results.
        title: Name to display.
        aliases: Other names that requests may use.
        extensions: Endings of the files with programs, with the dot; the usual ending first.
        filename: File name of the code of a program.
        run: Command line that runs a program.
        example: A program that prints one line.
        version: Command line that prints the version.
        compile: Command line that compiles a program before the run; empty if the language is interpreted.
        check: Command line that checks the syntax of an interpreted program without running it.
        check_types: Command line that checks the types of a program; empty if the language has no such check beside its compiler.
        context: Id of the default context for code of the language; None if no context runs such code.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    extensions: tuple[str, ...]
    filename: str
    run: tuple[str, ...]
    example: str
    version: tuple[str, ...]
    compile: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    check_types: tuple[str, ...] = ()
    context: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Name and aliases."""
        return (self.name, *self.aliases)

    @property
    def interpreter(self) -> str:
        """Program that runs a file of an interpreted language."""
        return self.run[0]

    def filename_of(self, code: str) -> str:
        """Return the file name for a program. The compiler of Java wants a file of the name of the public class."""
        if self.name != "java":
            return self.filename
        public = _JAVA_CLASS.search(code)
        if public is not None:
            return f"{public[1]}.java"
        name = "Main"
        for found in _JAVA_MAIN.finditer(code):
            if found[1] is None:
                break
            name = found[1]
        return f"{name}.java"

    def command(self, argv: tuple[str, ...], filename: str) -> tuple[str, ...]:
        """Return one of the command lines for a program.

        Args:
            argv: ``run``, ``compile``, ``check`` or ``check_types``.
            filename: File name of the program (:meth:`filename_of`).
        """
        values = {"file": f"{FOLDER}/{filename}", "folder": FOLDER, "name": filename.rpartition(".")[0]}
        return tuple(part.format_map(values) for part in argv)


LANGUAGES: Final = (
    Language(
        "python",
        "Python",
        ("python3", "py"),
        (".py",),
        "main.py",
        ("python3", "{file}"),
        "print('Hello, World!')",
        ("python3", "--version"),
        check=("python3", "-I", "-c", "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')", "{file}"),
        context="default",
    ),
    Language(
        "javascript",
        "JavaScript (Node.js)",
        ("js", "node"),
        (".js", ".cjs", ".mjs"),
        "main.js",
        ("node", "{file}"),
        "console.log('Hello, World!')",
        ("node", "--version"),
        check=("node", "--check", "{file}"),
        context="javascript",
    ),
    Language(
        "typescript",
        "TypeScript",
        ("ts",),
        (".ts", ".mts", ".cts"),
        "main.ts",
        ("node", "{folder}/{name}.mjs"),
        "const greeting: string = 'Hello, World!';\nconsole.log(greeting);",
        ("tsc", "--version"),
        compile=(
            *("esbuild", "{file}", "--outfile={folder}/{name}.mjs", "--bundle", "--platform=node", "--packages=external", "--format=esm"),
            # Programs may use require(), which modules do not have.
            "--banner:js=import {{ createRequire as __createRequire }} from 'node:module'; const require = __createRequire(import.meta.url);",
            *("--log-level=warning", "--color=false"),
        ),
        check_types=(
            *("tsc", "--noEmit", "--pretty", "false", "--strict", "--skipLibCheck", "--target", "esnext", "--module", "preserve"),
            *("--typeRoots", "/usr/local/lib/node_modules/@types", "--types", "node", "{file}"),
        ),
    ),
    Language(
        "bash",
        "Bash",
        ("sh", "shell"),
        (".sh", ".bash"),
        "main.sh",
        ("bash", "{file}"),
        "echo 'Hello, World!'",
        ("bash", "--version"),
        check=("bash", "-n", "{file}"),
        context="bash",
    ),
    Language(
        "java",
        "Java",
        ("jdk",),
        (".java",),
        "Main.java",
        ("java", "-cp", "{folder}", "{name}"),
        'public class Main {\n    public static void main(String[] args) {\n        System.out.println("Hello, World!");\n    }\n}',
        ("javac", "--version"),
        compile=("javac", "-d", "{folder}", "{file}"),
    ),
    Language(
        "cpp",
        "C++",
        ("c++", "cxx"),
        (".cpp", ".cc", ".cxx", ".c++"),
        "main.cpp",
        ("{folder}/{name}",),
        '#include <iostream>\nint main() { std::cout << "Hello, World!\\n"; }',
        ("g++", "-dumpfullversion"),
        compile=("g++", "-O2", "-std=c++20", "-o", "{folder}/{name}", "{file}"),
    ),
    Language(
        "c",
        "C",
        ("gcc",),
        (".c",),
        "main.c",
        ("{folder}/{name}",),
        '#include <stdio.h>\nint main(void) { puts("Hello, World!"); }',
        ("gcc", "-dumpfullversion"),
        compile=("gcc", "-O2", "-std=gnu17", "-o", "{folder}/{name}", "{file}", "-lm"),
    ),
    Language(
        "go",
        "Go",
        ("golang",),
        (".go",),
        "main.go",
        ("{folder}/{name}",),
        'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("Hello, World!")\n}',
        ("go", "version"),
        compile=("go", "build", "-o", "{folder}/{name}", "{file}"),
    ),
    Language(
        "rust",
        "Rust",
        ("rs",),
        (".rs",),
        "main.rs",
        ("{folder}/{name}",),
        'fn main() {\n    println!("Hello, World!");\n}',
        ("rustc", "--version"),
        compile=("rustc", "-O", "--edition", "2021", "--color", "never", "-o", "{folder}/{name}", "{file}"),
    ),
    Language(
        "ruby",
        "Ruby",
        ("rb",),
        (".rb",),
        "main.rb",
        ("ruby", "{file}"),
        "puts 'Hello, World!'",
        ("ruby", "--version"),
        check=("ruby", "-c", "{file}"),
    ),
    Language(
        "php",
        "PHP",
        (),
        (".php",),
        "main.php",
        ("php", "-d", "display_errors=stderr", "{file}"),
        '<?php\necho "Hello, World!\\n";',
        ("php", "--version"),
        check=("php", "-d", "display_errors=stderr", "-l", "{file}"),
    ),
    Language(
        "r",
        "R",
        ("rscript",),
        (".r",),
        "main.R",
        ("Rscript", "{file}"),
        "cat('Hello, World!\\n')",
        ("R", "--version"),
        check=("Rscript", "-e", "invisible(parse(commandArgs(TRUE)))", "{file}"),
    ),
    Language(
        "perl",
        "Perl",
        ("pl",),
        (".pl",),
        "main.pl",
        ("perl", "{file}"),
        'print "Hello, World!\\n";',
        ("perl", "-e", "print $^V"),
        check=("perl", "-c", "{file}"),
    ),
)

_BY_NAME: Final[Mapping[str, Language]] = MappingProxyType({name: language for language in LANGUAGES for name in language.names})
_BY_EXTENSION: Final[Mapping[str, Language]] = MappingProxyType({ending: language for language in LANGUAGES for ending in language.extensions})

CONTEXT_LANGUAGES: Final[Mapping[str, str]] = MappingProxyType(
    {name: language.name for language in LANGUAGES if language.context for name in language.names}
)
"""Name of a language in a request -> language of the contexts that run its code."""

DEFAULT_CONTEXTS: Final[Mapping[str, str]] = MappingProxyType({language.name: language.context for language in LANGUAGES if language.context})
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
    """Return the language of a file by its ending, or None if the ending is unknown."""
    stem, dot, ending = filename.rpartition(".")
    return _BY_EXTENSION.get(f".{ending.lower()}") if stem and dot else None


def list_names(languages: Iterable[Language]) -> str:
    """Return the names and aliases of languages as text."""
    return "; ".join(f"{each.name} ({', '.join(each.aliases)})" if each.aliases else each.name for each in languages)

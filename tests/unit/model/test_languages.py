"""The table of languages."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.model.java_source import Source
from sandlot.model.languages import CONTEXT_LANGUAGES, DEFAULT_CONTEXT_IDS, LANGUAGES, language_of, language_of_file, missing_program_hint
from sandlot.protocol import schema
from tests.support.cases import cases


def test_no_name_and_no_extension_means_two_languages() -> None:
    names = [name for language in LANGUAGES for name in language.names]
    extensions = [extension for language in LANGUAGES for extension in language.extensions]
    assert len(set(names)) == len(names)
    assert len(set(extensions)) == len(extensions)


def test_languages_are_found_by_name_alias_and_extension() -> None:
    for language in LANGUAGES:
        assert {language_of(name.upper()) for name in language.names} == {language}
        assert {language_of_file(f"a.b{extension.upper()}") for extension in language.extensions} == {language}
        assert language_of_file(language.filename) == language
    assert language_of_file("py") is language_of_file(".py") is language_of_file("a.unknown") is None


@cases(
    "name, printed, version",
    [
        ("python", "Python 3.13.5", "3.13.5"),
        ("javascript", "v24.19.0", "24.19.0"),
        ("typescript", "Version 7.0.2", "7.0.2"),
        ("bash", "GNU bash, version 5.2.37(1)-release (x86_64-pc-linux-gnu)\nCopyright (C) 2022", "5.2.37"),
        ("java", "javac 21.0.9", "21.0.9"),
        ("c", "14", "14"),
        ("go", "go version go1.24.4 linux/amd64", "1.24.4"),
        ("r", 'R version 4.5.0 (2025-04-11) -- "How About a Twenty-Six"', "4.5.0"),
        ("perl", "v5.40.1", "5.40.1"),
        ("php", "nothing", ""),
    ],
)
def test_version_is_found_in_what_a_compiler_prints(name: str, printed: str, version: str) -> None:
    assert language_of(name).parse_version(printed) == version


def test_unknown_language_is_refused_with_all_names() -> None:
    with pytest.raises(InvalidRequestError, match="brainfuck") as refused:
        language_of("brainfuck")
    assert all(name in str(refused.value.hint) for language in LANGUAGES for name in language.names)


@cases("program, title", [("Rscript", "R"), ("R", "R"), ("node", "JavaScript (Node.js)"), ("tsc", "TypeScript"), ("rustc", "Rust")])
def test_hint_for_a_missing_interpreter_or_compiler_names_a_template(program: str, title: str) -> None:
    assert missing_program_hint(program) == f"Use the template `languages`, another template with {title}, or install the program."


def test_hint_for_a_missing_program_names_no_template_without_a_language() -> None:
    assert missing_program_hint("ffmpeg") is None


def test_contexts_exist_for_the_languages_of_the_guest() -> None:
    assert set(DEFAULT_CONTEXT_IDS) == set(CONTEXT_LANGUAGES.values()) == set(schema.LANGUAGES)
    assert CONTEXT_LANGUAGES["py"] == "python"


def test_command_lines_name_the_file_and_the_entry_of_a_program() -> None:
    java, python = language_of("java"), language_of("python")
    source = java.source_of("package a.b; public class First {} class Second { static void main(String[] a) {} }")
    assert source == Source("First.java", "a.b.Second")
    assert java.expand(java.compile_argv, source) == ("javac", "-d", "/workspace", "/workspace/First.java")
    assert java.expand(java.run_argv, source) == ("java", "-XX:MaxRAMPercentage=50", "-cp", "/workspace", "a.b.Second")
    assert python.expand(python.run_argv, python.source_of("public class First {}")) == ("python3", "/workspace/main.py")

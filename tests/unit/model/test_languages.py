"""The table of languages."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.model.languages import CONTEXT_LANGUAGES, DEFAULT_CONTEXTS, LANGUAGES, language_of, language_of_file
from sandlot.protocol import schema


def test_no_name_and_no_ending_means_two_languages() -> None:
    names = [name for language in LANGUAGES for name in language.names]
    endings = [ending for language in LANGUAGES for ending in language.extensions]
    assert len(set(names)) == len(names)
    assert len(set(endings)) == len(endings)


def test_languages_are_found_by_name_alias_and_ending() -> None:
    for language in LANGUAGES:
        assert {language_of(name.upper()) for name in language.names} == {language}
        assert {language_of_file(f"a.b{ending.upper()}") for ending in language.extensions} == {language}
        assert language_of_file(language.filename) == language
    assert language_of_file("py") is language_of_file(".py") is language_of_file("a.unknown") is None


def test_unknown_language_is_refused_with_all_names() -> None:
    with pytest.raises(InvalidRequestError, match="brainfuck") as refused:
        language_of("brainfuck")
    assert all(name in str(refused.value.hint) for language in LANGUAGES for name in language.names)


def test_contexts_exist_for_the_languages_of_the_guest() -> None:
    assert set(DEFAULT_CONTEXTS) == set(CONTEXT_LANGUAGES.values()) == set(schema.LANGUAGES)
    assert CONTEXT_LANGUAGES["py"] == "python"


def test_file_name_of_java_is_found_in_any_text() -> None:
    java = language_of("java")
    assert java.filename_of("  public final class First {}\nclass Second {}") == "First.java"
    assert java.filename_of("class A {}\nclass B { static void main(String[] a) {} }") == "B.java"
    for piece in ("\n", " ", "public ", "public\n", "class  \n", "static "):
        assert java.filename_of(piece * 1_000_000 + ";").endswith(".java")  # a search that takes quadratic time would not end

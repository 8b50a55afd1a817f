"""Packages that are rewritten in plain English and with the usual terms stay that way; the others are listed until they are.

The test finds two kinds of offence: docstrings that begin with a question word or a pronoun or have the heading ``Laws:``, and names with a word of
the old vocabulary. Only names that a file defines count, so a package can be done before those that it uses. The same holds for the texts of the API
and the help of the commands; vendors' formats belong to the vendors and are not read.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.tree import PACKAGE, ROOT, modules, name

NOT_DONE = {
    "sdk",
}
"""Packages that still have offences. The list only shrinks. A package that is renamed before it is done stays listed under its new name."""

SPLIT = {"compat", "core"}
"""Packages whose subfolders are listed separately. Their own name stands for the files directly in them."""

VOCABULARY = configparser.ConfigParser()
VOCABULARY.read_string("[everywhere]\n" + (ROOT / "scripts" / "vocabulary.txt").read_text(encoding="utf-8"))
IN_TEXTS = dict(VOCABULARY["everywhere"])
INSTEAD = {**IN_TEXTS, **VOCABULARY["names"]}
"""Word of the old vocabulary -> what to use."""

GENERATED = {"docs/openapi.json": ("server",), "docs/reference/cli.md": ("cli",)}
"""Page that users read -> packages whose docstrings its texts are. The page is checked once these packages are done."""

ALLOWED_NAMES = {"_JOURNAL_BYTES", "_LARGE_JOURNAL_BYTES", "journal_bytes"}
"""The journal of an ext4 file system."""

_PRONOUN = r"(?:What|Whatever|Which|Whichever|Who|Whoever|Whom|Whose|Whether|How|Where|That|Those|It|They)\b"
_ONE = r"One(?=[.,:;]|'s\b|\s+(?:after|by|for|from|in|is|more|of|on|out|that|to|was|which|who|with)\b)"
OPENING = re.compile(rf"{_PRONOUN}|{_ONE}")
"""Start of a docstring to rewrite. "One connection to a guest." is a noun phrase and may stay, "One of them." is not."""
HEADING = re.compile(r"^\s*(Laws?):", re.MULTILINE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_WORDS = "|".join(sorted(INSTEAD))
CANDIDATE = re.compile(
    rf"(?<![A-Za-z])(?i:{_WORDS})(?![a-z])|(?<=[a-z])(?:{_WORDS.title()})(?![a-z])|[\"']\s*(?:{_PRONOUN}|{_ONE})",
)
"""Matches every file with an offence, and few others: parsing all files would take many seconds."""


def test_packages_are_done_or_listed() -> None:
    files: defaultdict[str, list[Path]] = defaultdict(list)
    for path in modules(PACKAGE):
        files[package_of(path)].append(path)
    problems = [f"{package}: there is no such package; remove it from NOT_DONE" for package in sorted(NOT_DONE - files.keys())]
    for package, paths in sorted(files.items()):
        found = (f"{name(path)}:{line}: {text}" for path in paths for line, text in offences(path.read_text(encoding="utf-8"), path))
        if package not in NOT_DONE:
            problems += found
        elif next(found, None) is None:
            problems.append(f"{package}: done; remove it from NOT_DONE")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize(
    "source, found",
    [
        ('"""What it is."""', [(1, "docstring begins with 'What'")]),
        ('"""A thing.\n\nLaws:\n- None.\n"""', [(1, "docstring has the heading 'Laws:'")]),
        ('def f():\n    """One of them."""', [(2, "docstring begins with 'One'")]),
        ('LIMIT = 1\n"""Whether this is checked."""', [(2, "docstring begins with 'Whether'")]),
        ("def f(box, *, told=None): ...", [(1, "'box' in 'box'; use sandbox"), (1, "'told' in 'told'; use response, notification")]),
        ("class LitterOwner: ...", [(1, "'litter' in 'LitterOwner'; use fork batch")]),
        ("self.asked_bytes = 1", [(1, "'asked' in 'asked_bytes'; use request")]),
        ("import a as who", [(1, "'who' in 'who'; use principal, owner")]),
        ("try: ...\nexcept E as told: ...", [(2, "'told' in 'told'; use response, notification")]),
        ("match a:\n    case {'b': box, **who}: ...", [(2, "'box' in 'box'; use sandbox"), (2, "'who' in 'who'; use principal, owner")]),
        ("_DOOR: int", [(1, "'door' in '_DOOR'; use compatibility API")]),
        ('"""One connection to a guest."""\nsandbox = whole = make_room(asleep=1).told', []),
        ('print("What is it?")\n# Who knows.', []),
        ("_JOURNAL_BYTES = 1", []),
    ],
)
def test_offences_are_found(source: str, found: list[tuple[int, str]]) -> None:
    assert offences(source, Path("example.py")) == found


@pytest.mark.parametrize("path, found", [("births.py", "births"), ("doors/__init__.py", "doors"), ("doors/common.py", None)])
def test_names_of_modules_and_packages_count(path: str, found: str | None) -> None:
    assert offences("", Path(path)) == ([] if found is None else [(1, f"'{found}' in '{found}'; use {INSTEAD[found]}")])


@pytest.mark.parametrize("page", GENERATED)
def test_texts_that_users_read_have_no_offence(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    texts = list(_texts(json.loads(text))) if page.endswith(".json") else text.splitlines()
    found = [found for text in texts for found in offences_of_text(text)]
    assert found == [] or not NOT_DONE.isdisjoint(GENERATED[page])


@pytest.mark.parametrize(
    "text, found",
    [
        ("Whether it is read-only.", ["'Whether it is read-only.' begins with 'Whether'"]),
        ("Where the boxes are.", ["'Where the boxes are.' begins with 'Where'", "'boxes' in 'Where the boxes are.'; use sandboxes"]),
        ("Which pool is full?", []),
        ("A user who is asked for a key. What it is.", []),
    ],
)
def test_offences_of_texts_are_found(text: str, found: list[str]) -> None:
    assert offences_of_text(text) == found


def offences_of_text(text: str) -> list[str]:
    """Return the offences of a sentence or paragraph that users read."""
    found = [f"{text!r} begins with {opening[0]!r}"] if (opening := OPENING.match(text)) and not text.endswith("?") else []
    return found + [f"{word!r} in {text!r}; use {IN_TEXTS[word]}" for word in WORD.findall(text) if word in IN_TEXTS]


def _texts(node: object) -> Iterator[str]:
    """Yield the summaries and descriptions of an OpenAPI document."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("summary", "description") if isinstance(node.get(key), str))
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _texts(part)


def package_of(path: Path) -> str:
    """Return the listed name of the package of a module, such as ``host`` or ``core/pools``."""
    folders = path.relative_to(PACKAGE).parent.parts
    return "/".join(folders[: 2 if folders[:1] and folders[0] in SPLIT else 1]) or "sandlot"


def offences(source: str, path: Path) -> list[tuple[int, str]]:
    """Return the offences of a module in the order of their lines.

    Args:
        source: Text of the module.
        path: File of the module; its name counts as well.
    """
    found = [(1, text) for text in _bad_words(path.parent.name if path.stem == "__init__" else path.stem)]
    if CANDIDATE.search(source):
        for node in ast.walk(ast.parse(source)):
            found += [(getattr(node, "lineno", 1), text) for text in _offences_of(node)]
    return sorted(found)


def _offences_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Constant(value=str(docstring))):
            if opening := OPENING.match(docstring.lstrip()):
                yield f"docstring begins with '{opening[0]}'"
            if heading := HEADING.search(docstring):
                yield f"docstring has the heading '{heading[1]}:'"
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
            yield from _bad_words(found)
        case ast.arg(arg=found) | ast.Name(id=found, ctx=ast.Store()) | ast.Attribute(attr=found, ctx=ast.Store()):
            yield from _bad_words(found)
        case ast.alias(asname=str(found)) | ast.ExceptHandler(name=str(found)):
            yield from _bad_words(found)
        case ast.MatchAs(name=str(found)) | ast.MatchStar(name=str(found)) | ast.MatchMapping(rest=str(found)):
            yield from _bad_words(found)
        case _:
            pass


def _bad_words(found: str) -> Iterator[str]:
    if found not in ALLOWED_NAMES:
        for word in WORD.findall(found):
            if instead := INSTEAD.get(word.lower()):
                yield f"'{word.lower()}' in '{found}'; use {instead}"

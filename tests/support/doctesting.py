"""The standard library's own examples, run through kernels and graded by Sandlot, beside what doctest says of them on this machine.

What a kernel tells is put together as a read-eval-print loop would show it: what the cell wrote, then the value of its last expression. What
doctest knows beyond comparing (``<BLANKLINE>``, ``...``, white space, True for 1, exceptions without their detail) is taken away from both
texts first; whether they are equal is for :mod:`sandlot.core.programs.comparison` to say.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandlot import Execution, Sandbox
from sandlot.core.programs.comparison import matches
from sandlot.model.programs import Comparison

PYTHON = "/usr/bin/python3"
EXPLAINED: Mapping[str, str] = {
    "http.cookies": "the template's build of the same version is newer by a security update, which refuses control characters in cookies",
    "telnetlib": "connections of a sandbox are accepted before its network refuses them, so the example that connects succeeds",
}
"""Docstrings of which a kernel may make something else than doctest does on this machine, and why."""

PATIENCE_S = 120

SETUP = """
vars(__import__('builtins')).update(__sandlot_module=__import__('importlib').import_module({module!r}))
try:
    get_ipython().display_formatter.formatters['text/plain'].pprint = False
except NameError:
    pass
globals().update(vars(__sandlot_module))
"""
"""Gives a context the names that doctest gives an example, and lets values be shown as ``repr`` writes them."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example.

    Args:
        source: The code.
        want: What it is to write.
        raises: The last line of the traceback that it is to end with.
        options: Doctest's, of this example.
        line: In its docstring.
        right: What doctest says of it on this machine.
    """

    source: str
    want: str
    raises: str | None
    options: frozenset[str]
    line: int
    right: bool


@dataclass(frozen=True, slots=True)
class Docstring:
    """Examples that follow each other."""

    module: str
    name: str
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What a kernel made of an example."""

    docstring: Docstring
    example: Example
    shown: str
    raised: str | None

    @property
    def id(self) -> str:
        """For people."""
        return f"{self.docstring.name}:{self.example.line}"


def corpus() -> tuple[str, list[Docstring]]:
    """The version of this machine's python, and all examples of its library; where nothing can be reached."""
    program = Path(__file__).with_name("doctests.py")
    done = subprocess.run(["unshare", "--net", PYTHON, str(program)], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    everything = json.loads(done.stdout)
    docstrings = [
        Docstring(
            found["module"],
            found["name"],
            tuple(Example(**{**each, "options": frozenset(each["options"])}) for each in found["examples"]),
        )
        for found in everything["docstrings"]
    ]
    return str(everything["version"]), docstrings


def run(sandbox: Sandbox, docstrings: Sequence[Docstring]) -> Iterator[Told]:
    """Run examples, those of one docstring in a context of their own."""
    for docstring in docstrings:
        context = sandbox.contexts.create("python")
        try:
            ready = sandbox.run_code(SETUP.format(module=docstring.module), context=context)
            assert ready.ok, (docstring.name, str(ready.error))
            for example in docstring.examples:
                done = sandbox.run_code(example.source, context=context, timeout=10)
                yield Told(docstring, example, shown(done), raised(done))
        finally:
            sandbox.contexts.delete(context)


def shown(done: Execution) -> str:
    """What a loop would have shown."""
    return done.stdout + (f"{done.text}\n" if done.text is not None else "")


def raised(done: Execution) -> str | None:
    """The last line of the traceback, and those that the message goes on for; None where nothing was raised."""
    if done.error is None:
        return None
    lines = list(done.error.traceback)
    last = max((number for number, line in enumerate(lines) if re.match(rf"[\w.]*\b{re.escape(done.error.name)}\b", line)), default=len(lines) - 1)
    return "\n".join(lines[last:]) + "\n"


def grade(told: Told, want: str | None = None) -> bool:
    """Whether an example did what it was to do.

    Args:
        told: What the kernel made of it.
        want: What it was to do, in the place of what its docstring says.
    """
    example = told.example
    if told.raised is None:
        return equal(told.shown, example.want if want is None else want, example.options)
    if example.raises is None:
        return False
    expected = example.raises if want is None else want
    if equal(told.raised, expected, example.options):
        return True
    return "IGNORE_EXCEPTION_DETAIL" in example.options and bare(told.raised) == bare(expected)


def equal(got: str, want: str, options: frozenset[str]) -> bool:
    """Whether two texts are the same to doctest, by our own comparison."""
    if "DONT_ACCEPT_BLANKLINE" not in options:
        want = re.sub(r"(?m)^<BLANKLINE>\s*?$", "", want)
        got = re.sub(r"(?m)^[^\S\n]+$", "", got)
    if "DONT_ACCEPT_TRUE_FOR_1" not in options:
        want = {("True\n", "1\n"): "True\n", ("False\n", "0\n"): "False\n"}.get((got, want), want)
    if "NORMALIZE_WHITESPACE" in options:
        got, want = (" ".join(text.split()) for text in (got, want))
    if "ELLIPSIS" in options:
        got = elided(got, want)
    return matches(got, want, Comparison.EXACT)


def elided(got: str, want: str) -> str:
    """A text in which stands ``...`` for whatever it has in the place of the dots of another; as it is, where it is another text."""
    pieces = want.split("...")
    if len(pieces) == 1 or not got.startswith(pieces[0]):
        return got
    at = len(pieces[0])
    for piece in pieces[1:-1]:
        found = got.find(piece, at)
        if found < 0:
            return got
        at = found + len(piece)
    return want if got.endswith(pieces[-1]) and len(got) - len(pieces[-1]) >= at else got


def bare(message: str) -> str:
    """An exception's class, without the module that it is of and what it says."""
    return message.partition("\n")[0].partition(":")[0].rpartition(".")[2]


def spoilt(told: Told) -> Iterator[str]:
    """Texts that an example was not to write, each near to the one that it was."""
    expected = told.example.want if told.raised is None else told.example.raises or ""
    yield f"not {expected}"
    if told.raised is None:
        yield f"{expected}and more\n"
        if expected.strip() not in {"", "..."} and "ELLIPSIS" not in told.example.options:
            at = max(index for index, character in enumerate(expected) if not character.isspace())
            yield expected[:at] + ("y" if expected[at] == "x" else "x") + expected[at + 1 :]
            yield expected[: expected.rstrip().rfind("\n") + 1] if "\n" in expected.rstrip() else ""


def check(sandbox: Sandbox, docstrings: Sequence[Docstring]) -> str:
    """Run and grade examples, and each again with texts that it was not to write; what came of it, in one line.

    Every verdict must be doctest's own, but for those that are explained, and no wrong text may be taken for right.
    """
    told = list(run(sandbox, docstrings))
    others = [each for each in told if grade(each) != each.example.right]
    assert [f"{each.id}: {each.shown!r} {each.raised!r}" for each in others if each.docstring.name not in EXPLAINED] == []
    wrong = [(each, text) for each in told if grade(each) for text in spoilt(each)]
    assert [(each.id, text) for each, text in wrong if grade(each, text)] == []
    return f"{len(told)} examples, {len(told) - len(others)} verdicts are doctest's, {len(wrong)} wrong texts are found wrong"

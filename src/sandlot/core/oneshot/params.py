"""A program to run once: what may be asked for. Frozen; refused at construction where it could not be run."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sandlot.core.admission import AUTO
from sandlot.core.oneshot.comparison import DEFAULT_TOLERANCE, Comparison, check_tolerance
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.model.specs import (
    DEFAULT_COMMAND_TIMEOUT_S,
    DEFAULT_TEMPLATE,
    MAX_CODE_BYTES,
    MIB,
    WORKSPACE,
    Limits,
    check_env,
    check_path,
    check_text,
)

MAX_TIMEOUT_S = 3600.0
"""A run is one answer: what takes longer is a command in a sandbox, and is followed."""
DEFAULT_OUTPUT_BYTES = 1 * MIB
MAX_OUTPUT_BYTES = 8 * MIB
MAX_FILES = 100


@dataclass(frozen=True, slots=True)
class Language:
    """Something that programs are written in.

    Args:
        name: Its.
        aliases: Other words for it.
        interpreter: What runs a program of it.
        filename: What a program of it is called.
    """

    name: str
    aliases: tuple[str, ...]
    interpreter: str
    filename: str


LANGUAGES = (
    Language("python", ("python3", "py"), "python3", "main.py"),
    Language("bash", ("sh", "shell"), "bash", "main.sh"),
    Language("javascript", ("js", "node"), "node", "main.js"),
)
_BY_WORD: Mapping[str, Language] = MappingProxyType({word: language for language in LANGUAGES for word in (language.name, *language.aliases)})


@dataclass(frozen=True, slots=True)
class OneShotParams:
    """A program to run.

    Args:
        language: A word of ``LANGUAGES``.
        code: At most 4 MiB.
        stdin: All of its standard input.
        timeout_s: Seconds until it is killed with all that it started, up to an hour.
        files: Path -> content; a path that is not absolute is below the working folder.
        env: Its environment, beside the template's.
        expected_output: What it is to write to its standard output; None grades nothing.
        comparison: How that is compared.
        tolerance: Of a numeric comparison.
        output_bytes: What it may write to either stream; beyond that it is killed.
        limits: Of its sandbox.
        template: What its sandbox starts from.
        isolation: ``auto`` or a kind that the operator allows.
        metadata: Words of whoever asks, for its sandbox.
        origin: Which API it came by.
    """

    language: str
    code: str
    stdin: bytes = b""
    timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S
    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    expected_output: str | None = None
    comparison: Comparison = Comparison.TRIMMED
    tolerance: float = DEFAULT_TOLERANCE
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    limits: Limits = field(default_factory=Limits)
    template: str = DEFAULT_TEMPLATE
    isolation: str = AUTO
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: str = "native"

    def __post_init__(self) -> None:
        """Refuse what could not be run."""
        language_of(self.language)
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"The code has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Pass what is data in it as a file.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        check_env(self.env)
        check_tolerance(self.tolerance)
        _bounded("timeout", self.timeout_s, 0.001, MAX_TIMEOUT_S)
        _bounded("output_bytes", self.output_bytes, 1, MAX_OUTPUT_BYTES)
        _check_files(self.files, self.program)

    @property
    def program(self) -> str:
        """Where its code goes."""
        return f"{WORKSPACE}/{language_of(self.language).filename}"


def language_of(word: str) -> Language:
    """The language that a word means.

    Raises:
        InvalidRequestError: None; says which there are.
    """
    known = _BY_WORD.get(word.lower())
    if known is None:
        there = "; ".join(f"{language.name} ({', '.join(language.aliases)})" for language in LANGUAGES)
        raise InvalidRequestError(
            f"There is no language {word[:50]!r}.",
            hint=f"There are: {there}.",
            fields={"field": "language", "languages": [each.name for each in LANGUAGES]},
        )
    return known


def _check_files(given: Mapping[str, bytes], program: str) -> None:
    if len(given) > MAX_FILES:
        raise InvalidRequestError(
            f"There are {len(given)} files; at most {MAX_FILES} are allowed.", hint="Pack them into one.", fields={"field": "files"}
        )
    for path in given:
        if posixpath.normpath(check_path(posixpath.join(WORKSPACE, path))) == program:
            raise InvalidRequestError(
                f"A file may not be called {posixpath.basename(program)}: the program is.", hint="Give it another name.", fields={"field": "files"}
            )


def _bounded(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # false for NaN as well
        raise InvalidRequestError(f"{name} is {value:g}; it must be from {least:g} to {most:g}.", fields={"field": name})

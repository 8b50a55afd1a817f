"""Dockerfiles: parsed into the stages of a plan. Pure.

The syntax and the expansion of variables are those of BuildKit, from ``e2b-dockerfile-utils``, a port of its parser. The values of this module hide
that package. A Dockerfile can be hostile: its size, the number of its stages and steps, and the work to expand its variables are limited.

================================================  ======================================================================
FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER,    work as in BuildKit, except for what the next rows say
SHELL, ENTRYPOINT, CMD
``RUN --mount``                                   type ``cache`` and ``tmpfs``: ignored with a warning; all others: refused
``RUN --network``                                 ``default`` and ``none``; ``host`` is refused
``ADD`` of a URL or a Git repository              refused: use ``RUN`` with a program that downloads
EXPOSE, LABEL, VOLUME, HEALTHCHECK, STOPSIGNAL,   ignored with a warning
MAINTAINER, ONBUILD
================================================  ======================================================================
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from e2b_dockerfile_utils import (
    DockerfileHeredoc,
    DockerfileInstruction,
    DockerfileSyntaxError,
    ShellLex,
    chomp_heredoc_content,
    parse_dockerfile_ast,
)

from sandlot.builds.plan import (
    MAX_INLINE_BYTES,
    MAX_STAGES,
    MAX_STEPS,
    Action,
    Base,
    Copy,
    EmptyBase,
    Env,
    ImageBase,
    InlineFile,
    Run,
    SetUser,
    Shell,
    Stage,
    StageBase,
    Start,
    Step,
    WorkingDirectory,
    parse_mode,
    shown,
)
from sandlot.model.errors import InvalidRequestError
from sandlot.model.images import ImageConfig
from sandlot.model.specs import KIB, MAX_ENV_BYTES, MIB

MAX_BYTES: Final = 256 * KIB
"""Maximum size in bytes of a Dockerfile."""
MAX_DIRECTIVE_CHARS: Final = 1024
"""Maximum number of characters of a comment in the first lines. The parser takes them for directives, in time that grows with the square."""
MAX_EXPANSION: Final = 2 * MIB
"""Maximum number of characters of all words together once their variables are expanded. Patterns count as characters of the same cost."""
IGNORED: Final = frozenset({"EXPOSE", "LABEL", "VOLUME", "HEALTHCHECK", "STOPSIGNAL", "MAINTAINER", "ONBUILD"})
PLATFORM: Final = "linux/amd64"
PREDEFINED: Final[Mapping[str, str]] = {
    "TARGETPLATFORM": PLATFORM,
    "TARGETOS": "linux",
    "TARGETARCH": "amd64",
    "TARGETVARIANT": "",
    "BUILDPLATFORM": PLATFORM,
    "BUILDOS": "linux",
    "BUILDARCH": "amd64",
    "BUILDVARIANT": "",
}
"""Arguments that exist before the first FROM. A stage gets those that it declares."""
_STAGE_NAME: Final = re.compile(r"[a-z][a-z0-9-_.]*")
_DIRECTIVE_LINES: Final = 4
"""Lines that can be directives: the parser knows three, each once."""
_OPERATOR: Final = re.compile(r"\$\{(\$|#|[^:}${#%/]*)([#%/])")
"""Name and operator of everything that can have a pattern, as in ``${NAME#PATTERN}``."""
_STEPS_PER_CHAR: Final = 32
"""Steps of a regular expression that cost as much as the expansion of one character."""
_REVERSED_PER_CHAR: Final = 8192
"""Characters that cost as much as one, each time when one of them is moved: the lexer reverses patterns in a list."""
_MAX_NESTED: Final = 1_000
"""Number of replacements in a word beyond which their cost is not computed."""
_NOT_SIMPLE: Final = frozenset("$\"'\\`")
_URL: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)
_SHEBANG: Final = re.compile(r"#!\s*(\S[^\n]*)")


@dataclass(slots=True)
class ExpansionBudget:
    """Characters that the words of one Dockerfile may still expand to."""

    left: int = MAX_EXPANSION


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a stage, whose variables are not expanded.

    Args:
        label: Number of the instruction in the plan.
        escape: Escape character of the Dockerfile.
        budget: Budget of the Dockerfile.
    """

    label: str
    parsed: DockerfileInstruction
    escape: str
    budget: ExpansionBudget

    @property
    def text(self) -> str:
        """The instruction for people."""
        return shown(self.parsed.original)

    def fail(self, message: str, hint: str = "Correct the Dockerfile.") -> InvalidRequestError:
        """Return the error of this instruction."""
        return _error(self.parsed.start_line, self.parsed.name, message, hint)


@dataclass(frozen=True, slots=True)
class DockerfileSteps:
    """Steps of one stage of a Dockerfile.

    Args:
        instructions: Instructions.
        args: Build arguments of the request.
        defaults: Values of the arguments before the first FROM.
        stages: Name -> index of the earlier stages.
        index: Index of the stage.
    """

    instructions: tuple[Instruction, ...]
    args: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    index: int = 0

    def steps(self, config: ImageConfig) -> Sequence[Step]:
        """Return the steps, with expanded variables. Takes up to some seconds, so call this in a thread."""
        return tuple(_Expansion(self, config).steps())

    def origins(self) -> Iterator[int | ImageBase]:
        """Yield the earlier stages and images from which the steps copy."""
        for each in self.instructions:
            if each.parsed.name in {"COPY", "ADD"}:
                name = _Flags(each, ("from", "chown", "chmod", "link", "exclude", "parents", "checksum", "keep-git-dir")).one("from")
                if name:
                    yield self.origin(each, name)

    def origin(self, instruction: Instruction, name: str) -> int | ImageBase:
        """Return what ``--from`` names: an earlier stage by its name or number, else an image."""
        if "$" in name:
            raise instruction.fail("Variables are not supported in `--from`.", "Name the image in a stage: `FROM image AS name`.")
        if name.isascii() and name.isdecimal():
            number = int(name[:9])
            if number >= self.index:
                raise instruction.fail(f"There is no earlier stage {name[:9]}.")
            return number
        found = self.stages.get(name.lower())
        return ImageBase(name) if found is None else found


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile.

    Args:
        stages: Stages up to the target.
        warnings: Warnings of the parser.
    """

    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]


def parse(text: str, *, args: Mapping[str, str] | None = None, target: str = "") -> Dockerfile:
    """Parse a Dockerfile. Takes up to some seconds, so call this in a thread.

    Args:
        text: The Dockerfile.
        args: Build arguments, which replace the defaults of ``ARG`` instructions.
        target: Name of the last stage to build; empty: the last stage of the Dockerfile.

    Raises:
        InvalidRequestError: The Dockerfile is invalid or exceeds a limit. The message names the line and the instruction.
    """
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidRequestError(f"The Dockerfile has more than {MAX_BYTES} bytes.", hint="Copy scripts into the sandbox and run them.")
    for line in text.split("\n", _DIRECTIVE_LINES)[:_DIRECTIVE_LINES]:
        if len(line) > MAX_DIRECTIVE_CHARS and line.lstrip().startswith("#"):
            raise InvalidRequestError(
                f"A comment at the beginning has {len(line)} characters; at most {MAX_DIRECTIVE_CHARS} are allowed.", hint="Correct the Dockerfile."
            )
    try:
        ast = parse_dockerfile_ast(text)
    except DockerfileSyntaxError as error:
        raise InvalidRequestError(str(error), hint="Correct the Dockerfile.", fields={"line": error.line or 0}) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"The Dockerfile is invalid: {error}", hint="Correct the Dockerfile.") from None
    if len(ast.instructions) > MAX_STEPS:
        raise InvalidRequestError(f"The Dockerfile has {len(ast.instructions)} instructions; at most {MAX_STEPS} are allowed.")
    stages = _Stages(dict(args or {}), ast.escape_token)
    for parsed in ast.instructions:
        stages.add(parsed)
    return Dockerfile(stages.finish(target), tuple(f"Line {each.line}: {each.message}" for each in ast.warnings))


class _Stages:
    """Collects the stages of a Dockerfile."""

    def __init__(self, args: dict[str, str], escape: str) -> None:
        self._args = args
        self._escape = escape
        self._globals = dict(PREDEFINED)
        self._defaults: dict[str, str] = dict(PREDEFINED)
        self._names: dict[str, int] = {}
        self._budget = ExpansionBudget()
        self._stages: list[tuple[Base, str, dict[str, int], list[Instruction]]] = []
        self._number = 0

    def add(self, parsed: DockerfileInstruction) -> None:
        self._number += 1
        instruction = Instruction(str(self._number), parsed, self._escape, self._budget)
        if parsed.name == "FROM":
            self._begin(instruction)
        elif self._stages:
            self._stages[-1][3].append(instruction)
        elif parsed.name == "ARG":
            for name, default in _declared(instruction, self._globals):
                value = self._args.get(name, default)
                if value is not None:
                    self._globals[name] = self._defaults[name] = value
        else:
            raise instruction.fail("The first instruction must be FROM.")

    def finish(self, target: str) -> tuple[Stage, ...]:
        if not self._stages:
            raise InvalidRequestError("The Dockerfile has no FROM instruction.", hint="Begin with FROM and an image or template.")
        last = len(self._stages) - 1
        if target:
            found = self._names.get(target.lower(), int(target) if target.isascii() and target.isdecimal() and len(target) < 4 else -1)  # noqa: PLR2004
            if not 0 <= found <= last:
                raise InvalidRequestError(f"The Dockerfile has no stage {target[:64]!r}.", fields={"field": "target"})
            last = found
        return tuple(
            Stage(base, DockerfileSteps(tuple(instructions), self._args, self._defaults, names, index), name)
            for index, (base, name, names, instructions) in enumerate(self._stages[: last + 1])
        )

    def _begin(self, instruction: Instruction) -> None:
        flags = _Flags(instruction, ("platform",))
        words = instruction.parsed.args
        if len(words) not in {1, 3} or (len(words) == 3 and words[1].lower() != "as"):  # noqa: PLR2004 - IMAGE AS NAME
            raise instruction.fail("FROM needs one image, and can have a name: `FROM image AS name`.")
        if len(self._stages) >= MAX_STAGES:
            raise instruction.fail(f"The Dockerfile has more than {MAX_STAGES} stages.")
        platform = _expand(instruction, flags.one("platform"), self._globals)
        if platform not in {"", PLATFORM, "linux", "linux/x86_64"}:
            raise instruction.fail(f"The platform {platform[:64]!r} is not supported.", f"Use {PLATFORM}.")
        image, name = _expand(instruction, words[0], self._globals), words[2].lower() if words[1:] else ""
        if not image:
            raise instruction.fail("The name of the image is empty.", "Give each ARG of the name a default value.")
        if name and not _STAGE_NAME.fullmatch(name):
            raise instruction.fail(f"{name[:64]!r} is not the name of a stage.")
        base: Base = ImageBase(image)
        if image == "scratch":
            base = EmptyBase()
        elif image.lower() in self._names:
            base = StageBase(self._names[image.lower()])
        self._stages.append((base, name, dict(self._names), []))
        if name:
            self._names[name] = len(self._stages) - 1


class _Expansion:
    """Expands the instructions of one stage."""

    def __init__(self, source: DockerfileSteps, config: ImageConfig) -> None:
        self._source = source
        self._env = dict(config.env)
        self._args: dict[str, str] = {}
        self._inline_bytes = 0

    def steps(self) -> Iterator[Step]:
        for each in self._source.instructions:
            name = each.parsed.name
            if name in IGNORED:
                yield Step(each.label, each.text, Env({}), warning=f"{name} is ignored.", line=each.parsed.start_line)
            elif name == "ARG":
                self._declare(each)
            else:
                convert = _CONVERTERS.get(name)
                if convert is None:
                    raise each.fail(f"There is no instruction {name[:32]!r}.")
                try:
                    action, warning = convert(self, each)
                except InvalidRequestError as error:
                    if "line" in error.fields:
                        raise
                    raise each.fail(error.message, error.hint or "Correct the Dockerfile.") from None
                yield Step(each.label, each.text, action, warning, each.parsed.start_line)

    @property
    def _scope(self) -> Mapping[str, str]:
        return {**self._args, **self._env}

    def _declare(self, each: Instruction) -> None:
        for name, default in _declared(each, self._scope):
            value = self._source.args.get(name, self._source.defaults.get(name) if default is None else default)
            if value is not None:
                self._args[name] = value
        _check_size(each, self._args)

    def _words(self, each: Instruction, words: Sequence[str]) -> list[str]:
        return [_expand(each, word, self._scope) for word in words]

    def _only(self, each: Instruction) -> str:
        text = _expand(each, " ".join(each.parsed.args), self._scope)
        if not text:
            raise each.fail(f"{each.parsed.name} needs a value.")
        return text

    def env(self, each: Instruction) -> tuple[Action, str]:
        words, scope, found = each.parsed.args, self._scope, {}
        if not words:
            raise each.fail("ENV needs a name and a value.")
        for at in range(0, len(words), 3):
            name = _expand(each, words[at], scope)
            if not name:
                raise each.fail("The name of a variable is empty.")
            found[name] = _expand(each, words[at + 1], scope)
        self._env.update(found)
        _check_size(each, self._env)
        return Env(found), ""

    def run(self, each: Instruction) -> tuple[Action, str]:
        flags = _Flags(each, ("mount", "network", "security", "device"))
        network, warning = flags.one("network") or "default", ""
        if network not in {"default", "none"}:
            raise each.fail(f"The network {network[:32]!r} is not supported.", "Use `default` or `none`.")
        for name in ("security", "device"):
            if flags.one(name):
                raise each.fail(f"`--{name}` is not supported.")
        for mount in flags.all("mount"):
            kind = next((part[5:] for part in mount.split(",") if part.startswith("type=")), "bind")
            if kind not in {"cache", "tmpfs"}:
                raise each.fail(f"A mount of type {kind[:32]!r} is not supported.", "Use COPY. Secrets are not available during builds.")
            warning = f"`--mount=type={kind}` is ignored: packages are cached by the service."
        env = {name: value for name, value in self._args.items() if name not in self._env}
        has_network = network != "none"
        if each.parsed.json:
            return Run(tuple(each.parsed.args), env, has_network=has_network), warning
        line, heredocs = " ".join(each.parsed.args), each.parsed.heredocs
        if len(heredocs) == 1 and line.strip().startswith("<<") and len(line.split()) == 1:
            return self._script(each, heredocs[0], env, has_network=has_network), warning
        for heredoc in heredocs:  # the shell reads them
            line += f"\n{heredoc.content}{heredoc.name}"
        return Run(line, env, has_network=has_network), warning

    def _script(self, each: Instruction, heredoc: DockerfileHeredoc, env: Mapping[str, str], *, has_network: bool) -> Run:
        content = _content(heredoc)
        shebang = _SHEBANG.match(content)
        if shebang is None:
            return Run(content, env, has_network=has_network)
        try:
            interpreter = shlex.split(shebang[1])
        except ValueError as error:  # a quote is not closed
            raise each.fail(f"The line {shebang[0][:64]!r} is invalid: {error}.") from None
        return Run((*interpreter, "/dev/stdin"), env, stdin=content.encode(), has_network=has_network)

    def copy(self, each: Instruction) -> tuple[Action, str]:
        flags = _Flags(each, ("from", "chown", "chmod", "link"))
        return self._copy(each, flags, origin=flags.one("from"), unpack=False), ""

    def add(self, each: Instruction) -> tuple[Action, str]:
        return self._copy(each, _Flags(each, ("chown", "chmod", "link", "unpack")), origin="", unpack=True), ""

    def _copy(self, each: Instruction, flags: _Flags, *, origin: str, unpack: bool) -> Action:
        heredocs = {f"<<{'-' if heredoc.chomp else ''}{heredoc.name}": heredoc for heredoc in each.parsed.heredocs}
        *given, destination = self._words(each, [word for word in each.parsed.args if word.replace('"', "").replace("'", "") not in heredocs]) or [""]
        files = []
        for heredoc in each.parsed.heredocs:
            content = _content(heredoc)
            if heredoc.expand:
                content = _expand(each, content, self._scope, is_content=True)
            files.append(InlineFile(heredoc.name, content.encode()))
            self._inline_bytes += len(files[-1].content)
        if self._inline_bytes > MAX_INLINE_BYTES:
            raise each.fail(f"The here-documents have more than {MAX_INLINE_BYTES} bytes.", "Copy files from the context.")
        for source in given:
            if unpack and _URL.match(source):
                raise each.fail("ADD of a URL is not supported.", "Use RUN with a program that downloads, such as curl.")
        mode = _expand(each, flags.one("chmod"), self._scope)
        return Copy(
            tuple(given),
            destination,
            origin=self._source.origin(each, origin) if origin else "",
            owner=_expand(each, flags.one("chown"), self._scope),
            mode=parse_mode(mode) if mode else None,
            files=tuple(files),
            unpack=unpack,
        )

    def workdir(self, each: Instruction) -> tuple[Action, str]:
        return WorkingDirectory(self._only(each)), ""

    def user(self, each: Instruction) -> tuple[Action, str]:
        return SetUser(self._only(each)), ""

    def shell(self, each: Instruction) -> tuple[Action, str]:
        if not each.parsed.json or not each.parsed.args:
            raise each.fail('SHELL needs a list, for example ["/bin/bash", "-c"].')
        return Shell(tuple(each.parsed.args)), ""

    def start(self, each: Instruction) -> tuple[Action, str]:
        words = tuple(each.parsed.args)
        if not each.parsed.json and words:
            words = ("/bin/sh", "-c", " ".join(words))
        return (Start(entrypoint=words) if each.parsed.name == "ENTRYPOINT" else Start(cmd=words)), ""


_CONVERTERS: Final[Mapping[str, Callable[[_Expansion, Instruction], tuple[Action, str]]]] = {
    "ENV": _Expansion.env,
    "RUN": _Expansion.run,
    "COPY": _Expansion.copy,
    "ADD": _Expansion.add,
    "WORKDIR": _Expansion.workdir,
    "USER": _Expansion.user,
    "SHELL": _Expansion.shell,
    "ENTRYPOINT": _Expansion.start,
    "CMD": _Expansion.start,
}


class _Flags:
    """Flags of one instruction, such as ``--from=build``."""

    def __init__(self, instruction: Instruction, known: Sequence[str]) -> None:
        self._found: dict[str, list[str]] = {}
        self._instruction = instruction
        for flag in instruction.parsed.flags:
            name, _, value = flag.removeprefix("--").partition("=")
            if name not in known:
                raise instruction.fail(f"The flag `--{name[:32]}` is not supported.")
            self._found.setdefault(name, []).append(value)

    def all(self, name: str) -> Sequence[str]:
        return self._found.get(name, ())

    def one(self, name: str) -> str:
        values = self.all(name)
        if len(values) > 1:
            raise self._instruction.fail(f"The flag `--{name}` is given twice.")
        return values[0] if values else ""


def _declared(each: Instruction, scope: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield name and default value of the arguments that an ``ARG`` declares."""
    known = dict(scope)
    if not each.parsed.args:
        raise each.fail("ARG needs a name.")
    for word in each.parsed.args:
        name, has_default, default = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise each.fail(f"{name[:64]!r} is not the name of an argument.")
        value = _expand(each, default, known) if has_default else None
        if value is not None:
            known[name] = value
        yield name, value


def _expand(each: Instruction, word: str, scope: Mapping[str, str], *, is_content: bool = False) -> str:
    """Expand the variables of a word, and remove its quotes. Names without a value are empty.

    Args:
        each: Instruction of the word.
        word: Word, or the content of a here-document.
        scope: Name -> value.
        is_content: True to keep quotes.
    """
    values = _Values(each, word, scope)
    lexer = ShellLex(each.escape, raw_quotes=is_content, skip_process_quotes=is_content, env=values, skip_unset_env=False)
    try:
        return lexer.process_word(word)
    except (ValueError, RecursionError) as error:
        raise each.fail(f"{error}"[:300]) from None


class _Values(Mapping[str, str]):
    """Values of variables for one word. A value is paid for before the lexer uses it.

    The lexer turns patterns into regular expressions, which take a time that grows with powers of the lengths of the values. It gets the value of a
    variable, and the values in its pattern, before it does so.

    Args:
        each: Instruction of the word.
        word: The word.
        scope: Name -> value.
    """

    def __init__(self, each: Instruction, word: str, scope: Mapping[str, str]) -> None:
        self._each = each
        self._scope = scope
        operators = _OPERATOR.findall(word)
        self._changed = {name for name, _ in operators}
        self._replacements = sum(operator == "/" for _, operator in operators)
        braces = [part.partition("}") for part in word.split("${")[1:]]
        self._is_nested = any(not end or not _NOT_SIMPLE.isdisjoint(text) for text, end, _ in braces)
        """True if the text in braces can have braces, or values of variables."""
        texts = [word] if self._is_nested else [text for text, _, _ in braces]
        self._chars = max(map(len, texts), default=0)
        self._stars = max((text.count("*") for text in texts), default=0)
        self._longest = 0
        self._pay(len(word))

    def __getitem__(self, name: str) -> str:
        value = self._scope.get(name, "")
        self._pay(len(value))
        if self._changed:
            self._longest = max(self._longest, len(value) if name in self._changed else 0)
            if self._is_nested:
                self._chars += len(value)
                self._stars += value.count("*")
            self._pay(self._pattern_cost())
        return self._scope[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)

    def _pattern_cost(self) -> int:
        """Return the largest cost of one pattern. In a nested word, it can have all ``*``, and each replacement can repeat another one."""
        longest, chars, stars = self._longest, self._chars, self._stars
        if self._is_nested and self._replacements > _MAX_NESTED:
            return MAX_EXPANSION
        repeated: int = longest ** (self._replacements if self._is_nested else min(1, self._replacements))
        if self._is_nested:
            chars, stars = chars * repeated, stars * repeated
        if min(longest, stars) > 1 and longest * stars > 64 * KIB:
            return MAX_EXPANSION
        steps = longest * (chars + math.comb(longest + stars, stars))
        return chars * repeated + chars**2 // _REVERSED_PER_CHAR + steps // _STEPS_PER_CHAR

    def _pay(self, cost: int) -> None:
        self._each.budget.left -= cost
        if self._each.budget.left < 0:
            raise self._each.fail(
                "The variables of the Dockerfile expand to too much text, or their patterns take too long.",
                "Use shorter values and simpler patterns.",
            )


def _content(heredoc: DockerfileHeredoc) -> str:
    return chomp_heredoc_content(heredoc.content) if heredoc.chomp else heredoc.content


def _check_size(each: Instruction, values: Mapping[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in values.items()) > MAX_ENV_BYTES:
        raise each.fail(f"The variables have more than {MAX_ENV_BYTES} bytes together.", "Use shorter values.")


def _error(line: int, name: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"Line {line} ({name}): {message}", hint=hint, fields={"line": line, "instruction": name})

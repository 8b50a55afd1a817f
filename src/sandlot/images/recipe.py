"""Recipes: what an image holds, as TOML.

A recipe either begins with Debian packages or with another recipe, and adds Python packages from a lock, files, an
environment and commands to run::

    description = "one line for people"
    from = "base"                        # or [debian], never both

    [debian]
    suite = "bookworm"
    variant = "apt"                      # mmdebstrap(1), VARIANTS
    packages = ["python3"]
    exclude = ["/usr/share/man/*"]       # dpkg(1), --path-exclude; include wins over it
    include = []

    [python]
    lock = "name.lock"                   # pip's requirements format, every line with hashes; a file beside the recipe

    [env]                                # of every process in the sandbox
    [files]                              # absolute path = text; mode 0644, or 0755 where it begins with "#!"

    [[run]]                              # inside, without network, in this order, after everything else
    user = "root"                        # or "user"
    argv = ["python3", "-c", "import this"]

Laws:
- A recipe names no host: where packages come from is the machine's own configuration.
- What a recipe does not know it refuses: a misspelt key is an error, not silence.
- Two recipes of one :func:`key` build the same image, whatever their names.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.specs import User, check_env

GENERATION = 3
"""Goes into every key. Raise it when the builder makes something else out of the same recipe."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SUITE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_KINDS: Mapping[type, str] = {str: "text", list: "list", dict: "table"}
_Value = TypeVar("_Value")
_VARIANTS = ("extract", "custom", "essential", "apt", "required", "minbase", "important", "standard")


@dataclass(frozen=True, slots=True)
class Debian:
    """What comes from Debian's archive; see the module's example."""

    suite: str
    variant: str = "apt"
    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the build: run inside, without network."""

    argv: tuple[str, ...]
    user: User = User.ROOT


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe. Exactly one of ``debian`` and ``parent`` is there.

    Args:
        name: Its name, which is the template's.
        description: One line for people.
        debian: What it begins with, from Debian's archive.
        parent: The recipe that it begins with (``from``).
        lock: Python packages, the lock's text.
        env: Environment of every process, added to the parent's.
        files: Absolute path inside -> text.
        run: Commands of the build, in order.
    """

    name: str
    description: str = ""
    debian: Debian | None = None
    parent: str | None = None
    lock: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    run: tuple[Step, ...] = ()


def parse(name: str, text: str, locks: Mapping[str, str]) -> Recipe:
    """A recipe from its text.

    Args:
        name: The recipe's name, 1 to 63 characters of ``a-z 0-9 -``.
        text: The TOML.
        locks: File name -> text of the locks beside it.

    Raises:
        InvalidRequestError: It is not TOML, has a key that is not known, or a value that cannot be used.
    """
    if not NAME.fullmatch(name):
        raise InvalidRequestError(f"{name!r} is not a name for a recipe.", hint="Names are 1 to 63 characters of a-z, 0-9 and '-'.")
    try:
        table = _Table(f"recipe {name}", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"The recipe {name} is not valid TOML: {error}.") from None
    debian = table.table("debian")
    python = table.table("python")
    recipe = Recipe(
        name=name,
        description=table.text("description"),
        debian=_debian(debian) if debian is not None else None,
        parent=table.text("from") or None,
        lock=_lock(python, locks) if python is not None else "",
        env=table.texts("env"),
        files=table.texts("files"),
        run=tuple(_step(step) for step in table.tables("run")),
    )
    table.done()
    if (recipe.debian is None) == (recipe.parent is None):
        raise InvalidRequestError(f"The recipe {name} needs either [debian] or from, and not both.")
    check_env(recipe.env)
    for path in recipe.files:
        if not path.startswith("/") or any(part in {"", ".", ".."} for part in path[1:].split("/")):
            raise InvalidRequestError(f"The recipe {name} has the file {path!r}.", hint="Paths of [files] are absolute and plain, without '..'.")
    return recipe


def builtin() -> Mapping[str, Recipe]:
    """The recipes that come with Sandlot, by name."""
    return _read(
        {
            entry.name: entry.read_text(encoding="utf-8")
            for entry in (resources.files("sandlot.images") / "recipes").iterdir()
            if entry.name.endswith((".toml", ".lock"))
        }
    )


def load_folder(folder: Path) -> Mapping[str, Recipe]:
    """The recipes of a folder: every ``NAME.toml``, with the locks beside it.

    Raises:
        InvalidRequestError: One of them cannot be used.
    """
    return _read({entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.suffix in {".toml", ".lock"}})


def line_of(recipes: Mapping[str, Recipe], name: str) -> tuple[Recipe, ...]:
    """The recipe and everything that it begins with, the first ancestor first.

    Raises:
        NotFoundError: There is no such recipe, or no such parent.
        InvalidRequestError: A recipe begins with itself.
    """
    line: list[Recipe] = []
    wanted: str | None = name
    while wanted is not None:
        recipe = recipes.get(wanted)
        if recipe is None:
            asked = f"There is no template {wanted!r}." if not line else f"The recipe {line[-1].name} begins with {wanted!r}, which does not exist."
            known = ", ".join(sorted(recipes)) or "none"
            raise NotFoundError(
                asked, code=ErrorCode.TEMPLATE_NOT_FOUND, hint=f"Known templates: {known}.", fields={"template": wanted, "known": sorted(recipes)}
            )
        if recipe in line:
            raise InvalidRequestError(f"The recipe {recipe.name} begins with itself: {' <- '.join(r.name for r in [*line, recipe])}.")
        line.append(recipe)
        wanted = recipe.parent
    return tuple(reversed(line))


def environment(line: Sequence[Recipe]) -> dict[str, str]:
    """The environment of a recipe's processes: its ancestors' words, its own last."""
    env: dict[str, str] = {}
    for recipe in line:
        env.update(recipe.env)
    return env


def key(line: Sequence[Recipe], architecture: str) -> str:
    """What an image is made from, as SHA-256 in hexadecimal.

    Names and descriptions do not count; the environment does not either, because it is not in the image.

    Args:
        line: The recipe and its ancestors, the first ancestor first.
        architecture: Debian's word for the machine, for example ``amd64``.
    """
    parts = []
    for recipe in line:
        words = asdict(recipe)
        for word in ("name", "description", "parent", "env"):
            del words[word]
        parts.append(words)
    return hashlib.sha256(json.dumps([GENERATION, architecture, parts], sort_keys=True).encode()).hexdigest()


def _read(files: Mapping[str, str]) -> Mapping[str, Recipe]:
    names = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return {name: parse(name, files[f"{name}.toml"], files) for name in names}


def _debian(table: _Table) -> Debian:
    debian = Debian(
        suite=table.text("suite"),
        variant=table.text("variant") or "apt",
        packages=table.words("packages"),
        exclude=table.words("exclude"),
        include=table.words("include"),
    )
    table.done()
    if not _SUITE.fullmatch(debian.suite):
        raise InvalidRequestError(f"The suite {debian.suite!r} of {table.where} is not a suite's name.", hint='For example "bookworm".')
    if debian.variant not in _VARIANTS:
        raise InvalidRequestError(f"The variant {debian.variant!r} of {table.where} is not known.", hint=f"One of: {', '.join(_VARIANTS)}.")
    for package in debian.packages:
        if not _PACKAGE.fullmatch(package):
            raise InvalidRequestError(f"{package!r} in {table.where} is not the name of a Debian package.")
    for pattern in (*debian.exclude, *debian.include):
        if not pattern.startswith("/") or "\n" in pattern:
            raise InvalidRequestError(f"{pattern!r} in {table.where} is not an absolute path pattern.")
    return debian


def _lock(table: _Table, locks: Mapping[str, str]) -> str:
    name = table.text("lock")
    table.done()
    if name not in locks or not name.endswith(".lock"):
        raise InvalidRequestError(f"The lock {name!r} of {table.where} is not there.", hint="Name a .lock file beside the recipe.")
    return locks[name]


def _step(table: _Table) -> Step:
    argv, user = table.words("argv"), table.text("user") or User.ROOT
    table.done()
    if not argv or user not in set(User):
        raise InvalidRequestError(f"A step of {table.where} needs argv, and user is root or user.")
    return Step(argv=argv, user=User(user))


class _Table:
    """A TOML table that is read key by key; what nobody asked for is an error."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self._values = dict(values)

    def text(self, name: str) -> str:
        return self._take(name, str, "")

    def words(self, name: str) -> tuple[str, ...]:
        values = self._take(name, list, [])
        return tuple(self._each(name, value, str) for value in values)

    def texts(self, name: str) -> dict[str, str]:
        values = self._take(name, dict, {})
        return {word: self._each(f"{name}.{word}", value, str) for word, value in values.items()}

    def table(self, name: str) -> _Table | None:
        return _Table(f"[{name}] in the {self.where}", self._take(name, dict, {})) if name in self._values else None

    def tables(self, name: str) -> list[_Table]:
        return [_Table(f"[[{name}]] in the {self.where}", self._each(name, value, dict)) for value in self._take(name, list, [])]

    def done(self) -> None:
        if self._values:
            raise InvalidRequestError(f"{', '.join(sorted(self._values))}: not known in the {self.where.removeprefix('the ')}.")

    def _take(self, name: str, kind: type[_Value], default: _Value) -> _Value:
        return self._each(name, self._values.pop(name, default), kind)

    def _each(self, name: str, value: object, kind: type[_Value]) -> _Value:
        if not isinstance(value, kind):
            raise InvalidRequestError(f"{name} in the {self.where.removeprefix('the ')} must be a {_KINDS[kind]}, not {value!r}.")
        return value

"""Recipe files: TOML files with one recipe each.

The file ``NAME.toml`` has the recipe NAME::

    description = "one line for people"
    languages = ["python"]               # languages (model/languages.py) whose compilers and interpreters the recipe adds
    memory = "2G"                        # memory limit of sandboxes whose request names none; by default that of the parent, or of the service
    internal = false                     # true: the service alone uses the image, and there is no template of this name
    from = "base"                        # another recipe; a recipe without it needs [debian]

    [debian]
    suite = "bookworm"                   # with `from`, suite and variant are those of the other recipe by default
    variant = "apt"                      # mmdebstrap(1), VARIANTS
    packages = ["python3"]
    exclude = ["/usr/share/man/*"]       # files that are not installed (dpkg(1), --path-exclude), except those in `include`
    include = []

    [python]
    lock = "name.lock"                   # a file in the folder of the recipe: pip's requirements format, with hashes on every line

    [npm]
    lock = "name.npm.lock"               # npm's package-lock.json, with a hash of every package and without addresses
    scripts = []                         # names of the packages whose install scripts run, inside the image and without network

    [env]                                # environment variables of every process in the sandbox
    [files]                              # absolute path = text; the mode is 0644, or 0755 if the text begins with "#!"

    [[run]]                              # a command that runs inside the image, without network, after all parts but [npm] are built; repeatable
    user = "root"                        # or "user"
    argv = ["python3", "-c", "import this"]

An unknown key is an error, so that a misspelt key is noticed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from sandlot.images.recipe import Debian, Npm, Recipe, Step, lineage
from sandlot.model.errors import InvalidRequestError
from sandlot.model.languages import LANGUAGES
from sandlot.model.sizes import parse_size
from sandlot.model.specs import Limits, User, check_env

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SUITE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_KINDS: Mapping[type, str] = {str: "text", bool: "boolean", list: "list", dict: "table"}
_Value = TypeVar("_Value")
_VARIANTS = ("extract", "custom", "essential", "apt", "required", "minbase", "important", "standard")


def load_recipes(folder: Path | None, aliases: Mapping[str, str]) -> Mapping[str, Recipe]:
    """Return the recipes of a machine by name: those that come with Sandlot, those of a folder, which replace others of their name, and aliases.

    Args:
        folder: Folder with recipes. None: only those that come with Sandlot.
        aliases: Name of the recipe that each alias stands for.

    Raises:
        InvalidRequestError: A recipe of the folder is invalid, or the folder cannot be read.
        NotFoundError: An alias stands for a name without a template.
    """
    return with_aliases({**shipped(), **({} if folder is None else load_folder(folder))}, aliases)


def with_aliases(recipes: Mapping[str, Recipe], aliases: Mapping[str, str]) -> Mapping[str, Recipe]:
    """Return recipes with further names for some of them. An alias takes the place of a recipe of its name.

    Args:
        recipes: Recipes by name.
        aliases: Name of the recipe that each alias stands for.

    Raises:
        NotFoundError: An alias stands for a name without a template.
    """
    found = {alias: lineage(recipes, name)[-1] for alias, name in aliases.items()}
    return {**recipes, **{alias: replace(recipe, name=alias) for alias, recipe in found.items()}}


def builtin_templates() -> Mapping[str, Recipe]:
    """Return the recipes of the templates that come with Sandlot, by name."""
    return {name: recipe for name, recipe in shipped().items() if not recipe.internal}


def shipped() -> Mapping[str, Recipe]:
    """Return all recipes that come with Sandlot, internal ones included, by name."""
    return _read(
        {
            entry.name: entry.read_text(encoding="utf-8")
            for entry in (resources.files("sandlot.images") / "recipes").iterdir()
            if entry.name.endswith((".toml", ".lock"))
        }
    )


def load_folder(folder: Path) -> Mapping[str, Recipe]:
    """Load all recipes of a folder: each ``NAME.toml``, with the lock files in the same folder. Return the recipes by name.

    Raises:
        InvalidRequestError: A recipe is invalid, or the folder cannot be read.
    """
    try:
        return _read({entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.suffix in {".toml", ".lock"}})
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(
            f"The recipes in {folder} cannot be read: {reason}.", hint="Name a folder with recipes, or unset SANDLOT_RECIPES_DIR."
        ) from None


def parse(name: str, text: str, locks: Mapping[str, str]) -> Recipe:
    """Parse a recipe.

    Args:
        name: Name of the recipe: 1 to 63 characters of ``a-z 0-9 -``.
        text: Text of the TOML file.
        locks: Text of the lock files in the folder of the recipe, by file name.

    Raises:
        InvalidRequestError: The text is not TOML, or has an unknown key or an invalid value.
    """
    if not NAME.fullmatch(name):
        raise InvalidRequestError(f"The recipe name {name!r} is not valid.", hint="Use 1 to 63 characters of a-z, 0-9 and '-'.")
    try:
        table = _Table(f"recipe {name}", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"The recipe {name} is not valid TOML: {error}.") from None
    debian = table.table("debian")
    python, npm = table.table("python"), table.table("npm")
    parent = table.text("from") or None
    recipe = Recipe(
        name=name,
        description=table.text("description"),
        debian=_debian(debian, has_parent=parent is not None) if debian is not None else None,
        parent=parent,
        lock=_lock(python, locks) if python is not None else "",
        npm=_npm(npm, locks) if npm is not None else None,
        env=table.text_table("env"),
        files=table.text_table("files"),
        run=tuple(_step(step) for step in table.tables("run")),
        languages=table.text_list("languages"),
        memory_bytes=_memory_bytes(table.text("memory")),
        internal=table.flag("internal"),
    )
    table.done()
    if recipe.debian is None and recipe.parent is None:
        raise InvalidRequestError(f"The recipe {name} has neither `[debian]` nor `from`.", hint="Use one of them, or both.")
    if recipe.debian is not None and recipe.parent is None and not recipe.debian.suite:
        raise InvalidRequestError(f"The recipe {name} has no `suite` in [debian].", hint='Use a name such as "bookworm".')
    check_env(recipe.env)
    known = [language.name for language in LANGUAGES]
    for language in recipe.languages:
        if language not in known:
            raise InvalidRequestError(f"The language {language!r} of the recipe {name} is not known.", hint=f"Use one of: {', '.join(known)}.")
    for path in recipe.files:
        if not path.startswith("/") or any(part in {"", ".", ".."} for part in path[1:].split("/")):
            raise InvalidRequestError(f"The path {path!r} in [files] of the recipe {name} is not valid.", hint="Use an absolute path without '..'.")
    return recipe


def _read(files: Mapping[str, str]) -> Mapping[str, Recipe]:
    names = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return {name: parse(name, files[f"{name}.toml"], files) for name in names}


def _memory_bytes(size: str) -> int | None:
    return Limits(memory_bytes=parse_size(size)).memory_bytes if size else None  # Limits refuses a size out of range


def _debian(table: _Table, *, has_parent: bool) -> Debian:
    debian = Debian(
        suite=table.text("suite"),
        variant=table.text("variant") or ("" if has_parent else "apt"),
        packages=table.text_list("packages"),
        exclude=table.text_list("exclude"),
        include=table.text_list("include"),
    )
    table.done()
    if debian.suite and not _SUITE.fullmatch(debian.suite):
        raise InvalidRequestError(f"The suite {debian.suite!r} of {table.where} is not a valid suite name.", hint='Use a name such as "bookworm".')
    if debian.variant and debian.variant not in _VARIANTS:
        raise InvalidRequestError(f"The variant {debian.variant!r} of {table.where} is not known.", hint=f"Use one of: {', '.join(_VARIANTS)}.")
    for package in debian.packages:
        if not _PACKAGE.fullmatch(package):
            raise InvalidRequestError(f"{package!r} in {table.where} is not the name of a Debian package.")
    for pattern in (*debian.exclude, *debian.include):
        if not pattern.startswith("/") or "\n" in pattern:
            raise InvalidRequestError(f"The path pattern {pattern!r} in {table.where} must be an absolute path without line breaks.")
    return debian


def _lock(table: _Table, locks: Mapping[str, str]) -> str:
    name = table.text("lock")
    table.done()
    if name not in locks or not name.endswith(".lock"):
        raise InvalidRequestError(f"The lock file {name!r} of {table.where} does not exist.", hint="Name a .lock file in the folder of the recipe.")
    return locks[name]


def _npm(table: _Table, locks: Mapping[str, str]) -> Npm:
    scripts = table.text_list("scripts")
    npm = Npm(_lock(table, locks), scripts)
    try:
        entries = [entry for path, entry in json.loads(npm.lock)["packages"].items() if path]
        valid = bool(npm.packages) and all(entry["integrity"] and "resolved" not in entry for entry in entries)
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise InvalidRequestError(f"The lock file of {table.where} is not a package-lock.json with hashes and without addresses.")
    return npm


def _step(table: _Table) -> Step:
    argv, user = table.text_list("argv"), table.text("user") or "root"
    table.done()
    if not argv:
        raise InvalidRequestError(f"A step of {table.where} has no `argv`.", hint="Set `argv` to the program and its arguments.")
    if user not in {"root", "user"}:
        raise InvalidRequestError(f"A step of {table.where} has the `user` {user!r}; it must be 'root' or 'user'.")
    return Step(argv=argv, user=User(user))


class _Table:
    """A TOML table that is read key by key. ``done`` raises an error if the table has a key that was not read.

    Args:
        where: Description of the table for error messages.
        values: Values of the table by key.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self._values = dict(values)

    def text(self, name: str) -> str:
        return self._take(name, str, "")

    def flag(self, name: str) -> bool:
        return self._take(name, bool, False)

    def text_list(self, name: str) -> tuple[str, ...]:
        values = self._take(name, list, [])
        return tuple(self._each(name, value, str) for value in values)

    def text_table(self, name: str) -> dict[str, str]:
        values = self._take(name, dict, {})
        return {key: self._each(f"{name}.{key}", value, str) for key, value in values.items()}

    def table(self, name: str) -> _Table | None:
        return _Table(f"[{name}] in the {self.where}", self._take(name, dict, {})) if name in self._values else None

    def tables(self, name: str) -> list[_Table]:
        return [_Table(f"[[{name}]] in the {self.where}", self._each(name, value, dict)) for value in self._take(name, list, [])]

    def done(self) -> None:
        if self._values:
            raise InvalidRequestError(f"Unknown keys in the {self.where.removeprefix('the ')}: {', '.join(sorted(self._values))}.")

    def _take(self, name: str, kind: type[_Value], default: _Value) -> _Value:
        return self._each(name, self._values.pop(name, default), kind)

    def _each(self, name: str, value: object, kind: type[_Value]) -> _Value:
        if not isinstance(value, kind):
            raise InvalidRequestError(f"{name} in the {self.where.removeprefix('the ')} must be a {_KINDS[kind]}, not {value!r}.")
        return value

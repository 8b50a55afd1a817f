"""Recipes: TOML files that describe the content of an image.

A recipe begins with Debian packages or with the image of another recipe. It adds Python and npm packages from lock files, files, environment
variables and commands to run. A recipe with both ``from`` and ``[debian]`` adds Debian packages to another recipe, or takes them from another suite:
its image is built from the parts of both recipes (:func:`combine`), not from the other image::

    description = "one line for people"
    languages = ["python"]               # languages (model/languages.py) whose compilers and interpreters the recipe adds
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

Invariants:
- A recipe names no host. Packages come from the indexes that the machine is configured to use.
- An unknown key is an error, so that a misspelt key is noticed.
- Two recipes with the same :func:`image_key` build the same image, whatever their names.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.specs import User, check_env

GENERATION = 3
"""Part of every image key. Raise this number when a change of the builder makes it build another image from the same recipe."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SUITE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_KINDS: Mapping[type, str] = {str: "text", bool: "boolean", list: "list", dict: "table"}
_Value = TypeVar("_Value")
_VARIANTS = ("extract", "custom", "essential", "apt", "required", "minbase", "important", "standard")


@dataclass(frozen=True, slots=True)
class Debian:
    """Debian packages of an image: the table ``[debian]`` of a recipe.

    Args:
        suite: Debian suite, such as ``bookworm``. Empty: that of the parent.
        variant: Set of packages to begin with (mmdebstrap(1), VARIANTS). Empty: that of the parent.
        packages: Names of the packages to install in addition.
        exclude: Path patterns of files that are not installed (dpkg(1), --path-exclude).
        include: Path patterns of files that are installed although ``exclude`` matches them.
    """

    suite: str
    variant: str = "apt"
    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Npm:
    """Packages of npm that an image has for all programs: the table ``[npm]`` of a recipe.

    Args:
        lock: Text of the lock file, npm's ``package-lock.json``.
        scripts: Names of the packages whose install scripts run.
    """

    lock: str
    scripts: tuple[str, ...] = ()

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the packages that the recipe asks for, by name. Their dependencies are left out."""
        packages = json.loads(self.lock)["packages"]
        return {name: packages[f"node_modules/{name}"]["version"] for name in packages[""]["dependencies"]}


@dataclass(frozen=True, slots=True)
class Step:
    """A command that runs inside the image during its build, without network: a table ``[[run]]`` of a recipe.

    Args:
        argv: Program and arguments.
        user: User that runs the command.
    """

    argv: tuple[str, ...]
    user: User = User.ROOT


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe. At least one of ``debian`` and ``parent`` is set.

    Args:
        name: Name of the recipe and of its template.
        description: Description of the image in one line, for people.
        debian: Debian packages that the image begins with. None: the image begins with the image of the parent.
        parent: Name of the recipe that this recipe adds to (``from``), or None.
        lock: Text of the lock file with the Python packages to install. Empty for none.
        npm: Packages of npm to install, or None.
        env: Environment variables of every process in the sandbox, in addition to those of the parent.
        files: Text of each file to create, by absolute path inside the image.
        run: Commands that run at the end of the build, in this order.
        languages: Names of the languages whose compilers and interpreters the recipe adds.
        internal: True if the service alone uses the image, which is then no template.
    """

    name: str
    description: str = ""
    debian: Debian | None = None
    parent: str | None = None
    lock: str = ""
    npm: Npm | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    run: tuple[Step, ...] = ()
    languages: tuple[str, ...] = ()
    internal: bool = False


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
        internal=table.flag("internal"),
    )
    table.done()
    if recipe.debian is None and recipe.parent is None:
        raise InvalidRequestError(f"The recipe {name} has neither `[debian]` nor `from`.", hint="Use one of them, or both.")
    if recipe.debian is not None and recipe.parent is None and not recipe.debian.suite:
        raise InvalidRequestError(f"The recipe {name} has no `suite` in [debian].", hint='Use a name such as "bookworm".')
    check_env(recipe.env)
    for path in recipe.files:
        if not path.startswith("/") or any(part in {"", ".", ".."} for part in path[1:].split("/")):
            raise InvalidRequestError(f"The path {path!r} in [files] of the recipe {name} is not valid.", hint="Use an absolute path without '..'.")
    return recipe


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


def builtin() -> Mapping[str, Recipe]:
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


def lineage(recipes: Mapping[str, Recipe], name: str) -> tuple[Recipe, ...]:
    """Return a recipe and its ancestors. The recipe itself is last, and each recipe follows its parent.

    A recipe with a parent and Debian packages is combined with its ancestors, and is the first of the line.

    Args:
        recipes: All known recipes by name.
        name: Name of the recipe.

    Raises:
        NotFoundError: There is no recipe of this name, or the parent of a recipe does not exist.
        InvalidRequestError: A recipe is its own ancestor.
    """
    line: list[Recipe] = []
    wanted: str | None = name
    while wanted is not None:
        recipe = recipes.get(wanted)
        if recipe is None:
            message = f"There is no template {wanted!r}." if not line else f"The parent {wanted!r} of the recipe {line[-1].name} does not exist."
            templates = sorted(name for name, recipe in recipes.items() if not recipe.internal)
            known = ", ".join(templates) or "none"
            raise NotFoundError(
                message,
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"Use one of these templates: {known}.",
                fields={"template": wanted, "known": templates},
            )
        if recipe in line:
            raise InvalidRequestError(f"The recipe {recipe.name} is its own ancestor: {' <- '.join(r.name for r in [*line, recipe])}.")
        line.append(recipe)
        wanted = recipe.parent
    whole: list[Recipe] = []
    for recipe in reversed(line):
        if recipe.debian is not None and whole:
            whole = [combine([*whole, recipe])]
        else:
            whole.append(recipe)
    return tuple(whole)


def combine(line: Sequence[Recipe]) -> Recipe:
    """Return one recipe with the parts of several, without a parent. Its name, description and visibility are those of the last.

    A lock of npm replaces the locks before it.

    Args:
        line: The recipes, each after its parent. The first begins with Debian packages.
    """
    tables = [recipe.debian for recipe in line if recipe.debian is not None]
    files: dict[str, str] = {}
    for recipe in line:
        files.update(recipe.files)
    return replace(
        line[-1],
        debian=Debian(
            suite=[table.suite for table in tables if table.suite][-1],
            variant=[table.variant for table in tables if table.variant][-1],
            packages=_union(table.packages for table in tables),
            exclude=_union(table.exclude for table in tables),
            include=_union(table.include for table in tables),
        ),
        parent=None,
        lock="\n".join(recipe.lock for recipe in line if recipe.lock),
        npm=next((recipe.npm for recipe in reversed(line) if recipe.npm is not None), None),
        env=environment(line),
        files=files,
        run=tuple(step for recipe in line for step in recipe.run),
        languages=_union(recipe.languages for recipe in line),
    )


def environment(line: Sequence[Recipe]) -> dict[str, str]:
    """Return the environment variables of every process in sandboxes of a recipe. Variables of a recipe override those of its ancestors.

    Args:
        line: The recipe and its ancestors, as :func:`lineage` returns them.
    """
    env: dict[str, str] = {}
    for recipe in line:
        env.update(recipe.env)
    return env


def image_key(line: Sequence[Recipe], architecture: str) -> str:
    """Return the key of an image: the SHA-256, in hexadecimal, of everything that the image is built from.

    The key does not depend on names and descriptions of recipes, nor on environment variables, which are not part of the image.

    Args:
        line: The recipe and its ancestors, as :func:`lineage` returns them.
        architecture: Debian's name of the machine's architecture, such as ``amd64``.
    """
    parts = []
    for recipe in line:
        content = asdict(recipe)
        for name in ("name", "description", "parent", "env", "languages", "internal"):
            del content[name]
        if recipe.npm is None:
            del content["npm"]  # keys of images without packages of npm are those of versions that had none
        parts.append(content)
    return hashlib.sha256(json.dumps([GENERATION, architecture, parts], sort_keys=True).encode()).hexdigest()


def _read(files: Mapping[str, str]) -> Mapping[str, Recipe]:
    names = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return {name: parse(name, files[f"{name}.toml"], files) for name in names}


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in lists for text in each))


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

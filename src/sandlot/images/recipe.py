"""Recipes: descriptions of the content of an image.

A recipe begins with Debian packages or with the image of another recipe, its parent. It adds Python and npm packages from lock files, files,
environment variables and commands to run. A recipe with both a parent and Debian packages adds Debian packages to its parent, or takes them from
another suite: its image is built from the parts of both recipes (:func:`combine`), not from the parent's image.

:mod:`sandlot.images.recipe_files` reads recipes from files.

Invariants:
- A recipe names no host. Packages come from the indexes that the machine is configured to use.
- Two recipes with the same :func:`image_key` build the same image, whatever their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.languages import LANGUAGES, Language
from sandlot.model.specs import User

GENERATION = 4
"""Part of every image key. Raise this number when a change of the builder makes it build another image from the same recipe."""


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
        memory_bytes: Memory limit of sandboxes whose request names none. None: that of the parent, or of the service.
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
    memory_bytes: int | None = None
    internal: bool = False


def lineage(recipes: Mapping[str, Recipe], name: str) -> tuple[Recipe, ...]:
    """Return a recipe and its ancestors. The recipe itself is last, and each recipe follows its parent.

    A recipe with a parent and Debian packages is combined with its ancestors (:func:`combine`), so the result begins with it.

    Args:
        recipes: All known recipes by name.
        name: Name of the recipe.

    Raises:
        NotFoundError: There is no recipe of this name, or the parent of a recipe does not exist.
        InvalidRequestError: A recipe is its own ancestor.
    """
    ancestors: list[Recipe] = []
    wanted: str | None = name
    while wanted is not None:
        recipe = recipes.get(wanted)
        if recipe is None:
            message = (
                f"There is no template {wanted!r}." if not ancestors else f"The parent {wanted!r} of the recipe {ancestors[-1].name} does not exist."
            )
            templates = sorted(name for name, recipe in recipes.items() if not recipe.internal)
            known = ", ".join(templates) or "none"
            raise NotFoundError(
                message,
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"Use one of these templates: {known}.",
                fields={"template": wanted, "known": templates},
            )
        if recipe in ancestors:
            raise InvalidRequestError(f"The recipe {recipe.name} is its own ancestor: {' <- '.join(r.name for r in [*ancestors, recipe])}.")
        ancestors.append(recipe)
        wanted = recipe.parent
    combined: list[Recipe] = []
    for recipe in reversed(ancestors):
        if recipe.debian is not None and combined:
            combined = [combine([*combined, recipe])]
        else:
            combined.append(recipe)
    return tuple(combined)


def combine(lineage: Sequence[Recipe]) -> Recipe:
    """Return one recipe with the parts of several, without a parent. Its name, description and visibility are those of the last.

    The Python locks add up. A lock of npm describes all packages of an image, so it replaces the locks before it.

    Args:
        lineage: The recipes, each after its parent. The first begins with Debian packages.
    """
    tables = [recipe.debian for recipe in lineage if recipe.debian is not None]
    files: dict[str, str] = {}
    for recipe in lineage:
        files.update(recipe.files)
    return replace(
        lineage[-1],
        debian=Debian(
            suite=[table.suite for table in tables if table.suite][-1],
            variant=[table.variant for table in tables if table.variant][-1],
            packages=_union(table.packages for table in tables),
            exclude=_union(table.exclude for table in tables),
            include=_union(table.include for table in tables),
        ),
        parent=None,
        lock="\n".join(recipe.lock for recipe in lineage if recipe.lock),
        npm=next((recipe.npm for recipe in reversed(lineage) if recipe.npm is not None), None),
        env=environment(lineage),
        files=files,
        run=tuple(step for recipe in lineage for step in recipe.run),
        languages=_union(recipe.languages for recipe in lineage),
        memory_bytes=memory_bytes(lineage),
    )


def environment(lineage: Sequence[Recipe]) -> dict[str, str]:
    """Return the environment variables of every process in sandboxes of a recipe. Variables of a recipe override those of its ancestors.

    Args:
        lineage: The recipe and its ancestors, as :func:`lineage` returns them.
    """
    env: dict[str, str] = {}
    for recipe in lineage:
        env.update(recipe.env)
    return env


def languages_of(lineage: Sequence[Recipe]) -> tuple[Language, ...]:
    """Return the languages whose compilers and interpreters an image has, in the order of the table of languages.

    Args:
        lineage: The recipe and its ancestors, as :func:`lineage` returns them.
    """
    names = {name for recipe in lineage for name in recipe.languages}
    return tuple(language for language in LANGUAGES if language.name in names)


def memory_bytes(lineage: Sequence[Recipe]) -> int | None:
    """Return the memory limit of sandboxes of a recipe whose request names none; None: that of the service.

    Args:
        lineage: The recipe and its ancestors, as :func:`lineage` returns them.
    """
    return next((recipe.memory_bytes for recipe in reversed(lineage) if recipe.memory_bytes is not None), None)


def image_key(lineage: Sequence[Recipe], architecture: str) -> str:
    """Return the key of an image: the SHA-256, in hexadecimal, of everything that the image is built from.

    The key does not depend on names and descriptions of recipes, nor on environment variables and limits, which are not part of the image.

    Args:
        lineage: The recipe and its ancestors, as :func:`lineage` returns them.
        architecture: Debian's name of the machine's architecture, such as ``amd64``.
    """
    parts = []
    for recipe in lineage:
        content = asdict(recipe)
        for name in ("name", "description", "parent", "env", "languages", "memory_bytes", "internal"):
            del content[name]
        if recipe.npm is None:
            del content["npm"]  # keeps the keys of images from before recipes had [npm]; remove when GENERATION is raised
        parts.append(content)
    return hashlib.sha256(json.dumps([GENERATION, architecture, parts], sort_keys=True).encode()).hexdigest()


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in lists for text in each))

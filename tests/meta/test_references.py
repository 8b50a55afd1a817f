"""References in docstrings and design pages: each module, name and file that a text names exists.

A reference is a role (``:func:`name```), a dotted name that begins with ``sandlot.``, or the name of a Python file or a page. A name without a module
is looked up in the module of its docstring.

Names of the standard library and files of other projects (``FOREIGN``) are not looked up.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.meta.tree import PACKAGE, ROOT, files, modules, name

ROLE = re.compile(r":(?:mod|class|func|meth|data|attr|exc):`~?\.?([\w.]+)`")
DOTTED = re.compile(r"(?<![\w./:`~-])`{0,2}(sandlot\.[a-z_]\w*(?:\.\w+)*)(?![\w/-])")
FILE = re.compile(r"(?<![\w.<>{}*/:$~-])((?:[\w-]+/)*[\w-]+\.(?:py|md))\b(?![\w/*{<-])")
FOREIGN = {
    "agentsandbox/_constants.py",  # clients of vendors
    "retry.py",
    "sandbox/signature.py",
    "config.md",  # specification of OCI runtimes
    "config-linux.md",
    "docs/responses/package-metadata.md",  # npm
    "tests/file_persistance.py",  # Piston
    "test_sandbox_killed_during_run.py",  # E2B
}


@dataclass
class Names:
    """Names of a module.

    Attributes:
        members: Class -> its methods and attributes.
        bases: Class -> names of its base classes.
        imported: Imported name -> dotted name of its origin.
        all: All names of the top level.
    """

    members: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    all: set[str] = field(default_factory=set)


def file_of(module: str) -> Path | None:
    """Return the file of a module of the package, or None if there is no such module."""
    base = PACKAGE.joinpath(*module.split(".")[1:])
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), base if base.is_dir() else None)


@cache
def names_of(path: Path) -> Names:
    """Return the names of the module in a file."""
    found = Names()
    if path.is_dir():
        return found
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imported.update({(each.asname or each.name).split(".")[0]: each.name for each in node.names})
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(("sandlot", *path.relative_to(PACKAGE).parent.parts)) if node.level else ""
            module = f"{package}.{node.module or ''}".strip(".") if package else node.module or ""
            found.imported.update({each.asname or each.name: f"{module}.{each.name}" for each in node.names})
        elif isinstance(node, ast.ClassDef):
            found.members[node.name] = set(_defined(node)) | set(_attributes(node))
            found.bases[node.name] = [ast.unparse(base).split("[")[0] for base in node.bases]
    found.all = {*_defined(tree), *found.imported, *found.members}
    return found


def _defined(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node) if isinstance(node, ast.Module) else node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that the methods of a class assign."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            yield each.attr


def exists(dotted: str) -> bool:
    """Return whether a dotted name that begins with the package names a module, or a name of a module."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        file = file_of(".".join(parts[:length]))
        if file is not None:
            return length == len(parts) or is_known(file, parts[length:])
    return False


def is_known(path: Path, parts: list[str]) -> bool:
    """Return whether a module has a name, possibly followed by a member of the class of that name."""
    names, first = names_of(path), parts[0]
    if first not in names.all:
        return len(parts) == 1 and any(has_member(path, each, first) for each in names.members)
    if len(parts) == 1:
        return True
    if first in names.members:
        return has_member(path, first, parts[1])
    origin = names.imported.get(first, "")
    return exists(".".join((origin, *parts[1:]))) if origin.startswith("sandlot.") else True


def has_member(path: Path, class_name: str, member: str) -> bool:
    """Return whether a class or one of its base classes has a member."""
    names = names_of(path)
    if member in names.members[class_name]:
        return True
    for base in names.bases[class_name]:
        if base in names.members and has_member(path, base, member):
            return True
        origin = names.imported.get(base.split(".")[0], "")
        if origin.startswith("sandlot.") and exists(".".join((origin, *base.split(".")[1:], member))):
            return True
    return False


@cache
def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a file, also those of attributes."""
    found, blocks = [], [ast.parse(path.read_text("utf-8")).body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                found.append(node.value.value)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try):
                blocks.append(node.body)
    return found


@cache
def paths() -> frozenset[str]:
    """Return the paths of all files, each also without its first folders."""
    parts = [path.relative_to(ROOT).parts for path in files()]
    return frozenset("/".join(each[start:]) for each in parts for start in range(len(each)))


def test_roles_of_docstrings_name_something() -> None:
    missing = []
    for path in modules(PACKAGE):
        for text in docstrings(path):
            for reference in ROLE.findall(text):
                parts = reference.split(".")
                if not (exists(reference) if parts[0] == "sandlot" else parts[0] in sys.stdlib_module_names or is_known(path, parts)):
                    missing.append(f"{name(path)}: {reference}")
    assert missing == []


def test_modules_and_files_that_texts_name_exist() -> None:
    pages = [(path, path.read_text("utf-8")) for path in sorted((ROOT / "docs" / "design").glob("*.md"))]
    texts = [*pages, *((path, text) for folder in (PACKAGE, ROOT / "tests") for path in modules(folder) for text in docstrings(path))]
    missing, known = [], paths() | FOREIGN
    for path, text in texts:
        missing += [f"{name(path)}: {dotted}" for dotted in DOTTED.findall(text) if not exists(dotted)]
        missing += [f"{name(path)}: {file}" for file in FILE.findall(text) if file not in known]
    assert missing == []

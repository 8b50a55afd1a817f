"""Packages: their place in the page of the architecture, and what may be imported where."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.meta.tree import PACKAGE, ROOT, modules, name, rooms

#: What runs inside of a sandbox, where nothing is installed: folder -> what it may import beside the standard library. The
#: programs are started as files, with a copy of protocol/values.py next to them.
INSIDE = {
    "protocol": ("sandlot.protocol",),
    "builds/merge_program": ("sandlot.protocol.tar", "sandlot.protocol", "sandlot.host.image_index", "sandlot.builds.merge_program"),
    "guest": ("sandlot.protocol", "sandlot.guest"),
    "guest/fs": ("sandlot.protocol", "sandlot.guest"),
    "guest/kernels": ("sandlot.protocol", "sandlot.guest"),
    "guest/net": ("sandlot.protocol", "sandlot.guest"),
    "guest/process": ("sandlot.protocol", "sandlot.guest"),
    "guest/helpers": ("values", "sandlot.protocol", "sandlot.guest"),
    "guest/kernel_programs/bash": ("values",),
    "guest/kernel_programs/r": (),
    "guest/kernel_programs/python": ("sandlot_kernel",),
    "guest/kernel_programs/python/sandlot_kernel": ("IPython", "traitlets"),  # where the image has them
}


def test_folders_of_modules_are_packages() -> None:
    assert [name(folder) for folder in sorted({module.parent for module in modules(PACKAGE)}) if not (folder / "__init__.py").is_file()] == []


def test_modules_open_with_a_docstring() -> None:
    every = [path for top in ("src", "tests", "benchmarks", "scripts") for path in modules(ROOT / top)]
    assert [name(module) for module in every if not _opening(module.read_text(encoding="utf-8"))] == []


def test_architecture_lists_all_packages_in_the_order_of_the_layers() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    mapped = re.findall(r"^\| `(\w+)/` \| (\d+) \|", page, re.MULTILINE)
    assert sorted(package for package, _ in mapped) == rooms()
    lines = [int(line) for _, line in mapped]
    assert lines == sorted(lines, reverse=True)


def test_modules_that_run_in_a_sandbox_import_the_standard_library_only() -> None:
    foreign = [
        f"{name(module)}: {imported}"
        for folder, own in INSIDE.items()
        for module in sorted((PACKAGE / folder).glob("*.py"))
        for imported in _imports(module)
        if imported.split(".")[0] not in sys.stdlib_module_names
        and not any(imported == package or imported.startswith(f"{package}.") for package in own)
    ]
    assert foreign == []


def _opening(source: str) -> str | None:
    """Return the docstring of a module; only its first statement is parsed, because nothing else matters here."""
    first: list[str] = []
    for line in source.splitlines(keepends=True):
        first.append(line)
        if line.strip() and not line.startswith("#"):
            try:
                return ast.get_docstring(ast.parse("".join(first)))
            except SyntaxError:
                continue  # the statement goes on
    return None


def _imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 1 and module.parent.name == "sandlot_kernel":
                continue  # a package of that name only where it is shipped to
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" if node.module == "sandlot" else node.module for alias in node.names)

"""The rooms: their size, their place in the README, what may be imported where."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.tree import PACKAGE, ROOT, modules, name, rooms

MAX_LINES = 400
MAX_MODULES = 12  # "about ten", without __init__ and __main__; sub-rooms count for themselves

#: What runs inside of a sandbox, where nothing is installed: folder -> what it may import beside the standard library. The
#: programs are started as files, with a copy of protocol/values.py next to them.
INSIDE = {
    "protocol": ("sandlot.protocol",),
    "guest": ("sandlot.protocol", "sandlot.guest"),
    "guest/programs": ("values", "sandlot_kernel", "sandlot.protocol", "sandlot.guest"),
    "guest/programs/sandlot_kernel": ("IPython", "traitlets"),  # where the image has them
}


@pytest.mark.parametrize("module", modules(PACKAGE), ids=name)
def test_a_module_is_short(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("room", sorted({module.parent for module in modules(PACKAGE)}), ids=name)
def test_a_room_is_small_and_a_package(room: Path) -> None:
    own = [module for module in room.glob("*.py") if module.name not in {"__init__.py", "__main__.py"}]
    assert len(own) <= MAX_MODULES
    assert (room / "__init__.py").is_file()


@pytest.mark.parametrize("module", [path for top in ("src", "tests", "benchmarks", "scripts") for path in modules(ROOT / top)], ids=name)
def test_a_module_opens_with_what_it_is(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_bytes())), "no docstring"


def test_the_readme_maps_every_room_in_the_order_of_the_layers() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mapped = re.findall(r"^\| `(\w+)/` \| (\d+) \|", readme, re.MULTILINE)
    assert sorted(room for room, _ in mapped) == rooms()
    lines = [int(line) for _, line in mapped]
    assert lines == sorted(lines, reverse=True)


@pytest.mark.parametrize(
    "module, own",
    [pytest.param(module, own, id=name(module)) for folder, own in INSIDE.items() for module in sorted((PACKAGE / folder).glob("*.py"))],
)
def test_what_runs_in_a_sandbox_imports_the_standard_library_only(module: Path, own: tuple[str, ...]) -> None:
    foreign = [
        imported
        for imported in _imports(module)
        if imported.split(".")[0] not in sys.stdlib_module_names and not any(imported == room or imported.startswith(f"{room}.") for room in own)
    ]
    assert foreign == []


@pytest.mark.parametrize("module", ["sandlot", "sandlot.sdk", "sandlot.sdk.compat.sandboxapi"])
def test_a_client_pays_for_no_server_part(module: str) -> None:
    listing = "import json, sys; import " + module + "; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout))
    assert module in loaded
    assert loaded.isdisjoint({"fastapi", "starlette", "uvicorn", "typer", "sandlot.core", "sandlot.server", "sandlot.drivers", "sandlot.images"})


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

"""The repository's own files, as the tests of its structure see them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sandlot"
SCRIPTS = ROOT / "scripts"


def files() -> list[Path]:
    """Every file of the project: without what git, Python and the tools leave in the folder."""
    return sorted(_walk(ROOT))


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def rooms() -> list[str]:
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


def script(name: str) -> ModuleType:
    """Import a generator.

    Args:
        name: File name of the generator, without its suffix.
    """
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.suffix == ".egg-info" or (folder == ROOT and path.name in {"build", "dist"}):
            continue
        if path.name.startswith(".") and path.name not in {".ci", ".gitignore"}:
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path

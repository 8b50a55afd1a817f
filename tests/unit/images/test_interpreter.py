"""The guest's interpreter: its inputs, and the imports of the guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.images import interpreter
from sandlot.images.interpreter import ROOTS, unknown_imports
from sandlot.link import payload


def found(source: str, *known: str) -> dict[str, list[str]]:
    return unknown_imports({"x.py": source.encode()}, known)


def test_imports_are_found_at_every_place_of_a_source() -> None:
    source = "import os, sys\nimport a.b as c\nfrom d.e import f\ndef g():\n    import lazy\n    from h import i\n"
    assert sorted(found(source, "os", "sys")) == ["a.b", "d.e", "h", "lazy"]


def test_available_and_own_modules_are_not_reported() -> None:
    source = "from __future__ import annotations\nimport os\nfrom sandlot.protocol import frames\nfrom collections import deque\n"
    assert found(source, "os", "collections") == {}


def test_imports_for_type_checkers_are_ignored() -> None:
    source = "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from typing import Any\nelse:\n    import real\n"
    assert found(source) == {"real": ["x.py"]}


def test_key_depends_on_the_importable_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    before = interpreter.key("amd64")
    monkeypatch.setattr(interpreter, "ROOTS", (*ROOTS, "argparse"))
    assert interpreter.key("amd64") != before


def test_roots_contain_all_imports_of_the_guest() -> None:
    own = {name: text for name, text in payload.programs().items() if not payload.runs_on_the_image(name)}
    beside = [Path(path).stem for path in payload.programs()]
    unknown = unknown_imports({**payload.guest_sources(), **own}, {*ROOTS, *beside})
    # Extension modules come with the module that is written around them: _socket with socket.
    assert {name: files for name, files in unknown.items() if not name.startswith("_")} == {}

"""The generator of the synchronous client: whole tokens change, strings that are data do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.meta.tree import script


@pytest.fixture(scope="module")
def unasync() -> ModuleType:
    return script("unasync")


@pytest.fixture
def convert(unasync: ModuleType) -> Callable[[str], str]:
    def converted(source: str) -> str:
        header, _, rest = unasync.convert(source, "x.py").partition("\n")
        assert "x.py" in header
        return str(rest)

    return converted


def test_tokens(convert: Callable[[str], str], subtests: pytest.Subtests) -> None:
    for source, expected in (
        ("async def f():\n    await g()\n", "def f():\n    g()\n"),
        ("async with a as b, c:\n    pass\n", "with a as b, c:\n    pass\n"),
        ("x = [y async for y in z]\n", "x = [y for y in z]\n"),
        ("(await\n x)\n", "(\n x)\n"),
        ("async   def f(): ...\n", "def f(): ...\n"),
        ("class AsyncClient: ...\n", "class Client: ...\n"),
        ("AsyncClients, my_aclose = 1, 2\n", "AsyncClients, my_aclose = 1, 2\n"),
        ("await self.x.aclose()\n", "self.x.close()\n"),
        ("from sandlot.sdk._async import backend\n", "from sandlot.sdk._sync import backend\n"),
    ):
        with subtests.test(source=source, expected=expected):
            assert convert(source) == expected


def test_documentation_speaks_of_what_it_documents_and_data_stays(convert: Callable[[str], str]) -> None:
    source = '"""``await AsyncSandbox.create()`` is asynchronous."""\nname = "AsyncSandbox await"  # an AsyncSandbox\n'
    assert convert(source) == '"""``Sandbox.create()`` is synchronous."""\nname = "AsyncSandbox await"  # an Sandbox\n'


def test_what_is_missing_changed_or_left_over_is_stale(unasync: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasync, "TARGET", tmp_path)
    same, changed, missing, orphan = (tmp_path / f"{name}.py" for name in ("same", "changed", "missing", "orphan"))
    (tmp_path / "room").mkdir()
    within = tmp_path / "room" / "backend.py"
    monkeypatch.setattr(unasync, "BY_HAND", {tmp_path / "backend.py"})
    for path in (same, changed, orphan, within, tmp_path / "backend.py"):
        path.write_text("x")
    assert unasync.stale({same: "x", changed: "y", missing: "z"}) == [changed, missing, orphan, within]

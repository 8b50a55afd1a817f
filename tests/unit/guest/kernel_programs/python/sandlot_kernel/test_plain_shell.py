"""The shell without IPython: representations of objects, results and the history."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import ModuleType

import pytest

from tests.support.kernels import Process, errors_of, values_of


@pytest.fixture(scope="module")
def plain(shipped: Callable[[str], ModuleType]) -> ModuleType:
    return shipped("plain_shell")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), "--plain")
    running.run("pass")
    yield running
    running.close()


class Rich:
    def _repr_html_(self) -> str:
        return "<b>"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return b"\x89PNG", {"width": 2}

    def _repr_svg_(self) -> None:
        return None

    def _repr_markdown_(self) -> str:
        raise ValueError

    def _repr_mimebundle_(self) -> dict[str, str]:
        return {"application/vnd.x+json": "{}"}

    def __repr__(self) -> str:
        return "rich"


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no words")


def test_failed_representation_is_left_out(plain: ModuleType) -> None:
    data, about = plain.representations(Rich())
    assert data == {"text/plain": "rich", "text/html": "<b>", "image/png": b"\x89PNG", "application/vnd.x+json": "{}"}
    assert about == {"image/png": {"width": 2}}
    assert plain.representations(Rich)[0] == {"text/plain": repr(Rich)}, "a class is none of its objects"
    assert plain.representations(Broken())[0] == {"text/plain": "<Broken: repr failed: no words>"}


@pytest.mark.parametrize("one", ["x", b"x"], ids=["text", "bytes"])
def test_long_value_is_cut_before_its_repr(plain: ModuleType, one: str | bytes) -> None:
    text = plain.representations(one * 100_000_000)[0]["text/plain"]
    assert text.endswith(" [... of 100,000,000]")
    assert len(text) < 1024 * 1024


@pytest.mark.parametrize(
    "code,shown",
    [("5", ["5"]), ("5;", []), ("5; 6", ["6"]), ("x = 5", []), ("None", []), ("", []), ("# a remark", []), ("for n in range(2): n", [])],
)
def test_cell_reports_its_result(kernel: Process, code: str, shown: list[str]) -> None:
    assert values_of(kernel.run(code)) == shown


def test_stored_cell_is_counted_and_kept_in_the_history(kernel: Process) -> None:
    count = kernel.until(kernel.begin("6 * 7"))[0]["count"]
    assert kernel.value(f"In[{count}], Out[{count}], _") == "('6 * 7', 42, 42)"
    assert kernel.value("len(In)") == str(count + 3)
    kernel.run("'unseen'", silent=True)
    assert kernel.value("len(In)") == str(count + 4)


def test_cell_can_await_and_its_source_can_be_inspected(kernel: Process) -> None:
    assert kernel.value("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'"
    assert kernel.text("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))").startswith("def f():\n    return 1\n")
    assert errors_of(kernel.run("def g():\n    await asyncio.sleep(0)")) == ["SyntaxError"]


def test_cell_displays_and_updates_bundles(kernel: Process) -> None:
    (first, second) = kernel.run(
        "display({'text/html': '<i>'}, raw=True, display_id=7, metadata={'a': 1})\ndisplay('new', display_id=7, update=True);"
    )
    assert (first["data"], first["metadata"], first["display_id"], first["update"]) == ({"text/html": "<i>"}, {"a": 1}, "7", False)
    assert (second["data"], second["display_id"], second["update"]) == ({"text/plain": "'new'"}, "7", True)

"""The commands that start kernels, and images that lack an interpreter."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.starter import START_ORDER
from sandlot.model.languages import DEFAULT_CONTEXT_IDS
from sandlot.protocol import schema


def test_every_table_of_contexts_has_the_same_languages() -> None:
    assert {context: language for language, context in DEFAULT_CONTEXT_IDS.items()} == languages.DEFAULT_CONTEXTS
    assert set(languages.DEFAULT_CONTEXTS.values()) == set(START_ORDER) == set(schema.LANGUAGES)


@pytest.mark.parametrize(
    "language, name, plain, expected",
    [
        ("javascript", "node", True, ["node", "--no-force-async-hooks-checks", "javascript/kernel.mjs"]),
        ("typescript", "nodejs", True, ["nodejs", "--no-force-async-hooks-checks", "javascript/kernel.mjs", "typescript"]),
        ("r", "R", False, ["r/kernel.py", "R"]),
        ("r", "R", True, ["r/kernel.py", "R", "--no-init-file"]),
    ],
)
def test_kernel_runs_on_the_interpreter_of_the_image(tmp_path: Path, language: str, name: str, plain: bool, expected: list[str]) -> None:  # noqa: FBT001
    (tmp_path / name).touch(mode=0o755)
    argv = languages.kernel_argv(language, {"PATH": str(tmp_path)}, plain=plain)
    short = [part.removeprefix(f"{languages.PROGRAMS}/").removeprefix(f"{tmp_path}/") for part in argv]
    assert list(itertools.dropwhile(lambda part: part != expected[0], short)) == expected


@pytest.mark.parametrize(
    "language, template", [("python", "with Python"), ("typescript", "with Node.js"), ("javascript", "with Node.js"), ("r", "`languages`")]
)
def test_image_without_the_interpreter_is_refused_with_a_template_that_has_it(tmp_path: Path, language: str, template: str) -> None:
    with pytest.raises(RpcError) as refused:
        languages.kernel_argv(language, {"PATH": str(tmp_path)})
    assert refused.value.code == "unsupported"
    assert template in refused.value.hint

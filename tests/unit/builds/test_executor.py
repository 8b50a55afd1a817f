"""Executor of builds: errors of steps."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.builds import executor
from sandlot.builds.executor import Executor
from sandlot.builds.limits import BuildLimits
from sandlot.builds.patterns import ComparisonBudget
from sandlot.builds.plan import Run, Step
from sandlot.model.errors import LimitError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.sandboxes import ended_error


@pytest.mark.parametrize(
    "end, reason",
    [
        (Exit(ExitReason.OOM), "The sandbox of the build had no memory left."),
        (Exit(ExitReason.DISK), "The disk of the sandbox of the build was full."),
        (Exit(ExitReason.CRASHED, detail="signal 9"), "The sandbox of the build has ended (crashed: signal 9)."),
        (None, "The sandbox of the build has ended (for an unknown reason)."),
    ],
)
def test_step_that_ends_its_sandbox_names_the_reason_and_no_sandbox(end: Exit | None, reason: str) -> None:
    error = executor._failed(Step("2", "RUN x", Run("x")), ended_error(SandboxId("sb-a-b"), end))  # noqa: SLF001 - a whole build would need a crash
    assert error.message == f"Step 2 (RUN x) failed: {reason}"
    assert "sandbox" not in (error.hint or "")


async def test_wildcards_of_all_contexts_and_stages_of_a_build_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name takes two comparisons with ``*``, and each of the folders has 50 names."""
    names = [str(number) for number in range(50)]
    archive = tmp_path / "archive"
    with tarfile.open(archive, "w") as made:
        for name in names:
            made.addfile(tarfile.TarInfo(name))

    class Files:
        async def list(self, *_: object, **__: object) -> Any:  # noqa: ANN401 - a page
            return SimpleNamespace(entries=[SimpleNamespace(name=name) for name in names], more=False)

        async def resolve(self, _principal: object, _sandbox: object, path: str, **_: object) -> Any:  # noqa: ANN401 - an entry
            return SimpleNamespace(path=path, kind="file")

    monkeypatch.setattr(ComparisonBudget.__init__, "__defaults__", (350,))
    plan: Any = SimpleNamespace(contexts={"first": archive, "second": archive})
    node: Any = SimpleNamespace(files=Files())
    parts: Any = SimpleNamespace(temporary=tmp_path)
    unused: Any = None
    build = Executor(node, unused, unused, plan, unused, parts, unused, unused, BuildLimits(), unused)
    for name in plan.contexts:
        assert len((await build._context(name)).find("*", follow=True)) == 50  # noqa: SLF001 - a whole build would need sandboxes
    assert len(await build._find("sb-a-b", "/*")) == 50  # noqa: SLF001
    with pytest.raises(LimitError, match="too many files for the wildcards"):
        await build._find("sb-a-b", "/*")  # noqa: SLF001
    for context in build._contexts.values():  # noqa: SLF001
        context.close()

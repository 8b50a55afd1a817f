"""Executor of builds: errors of steps."""

from __future__ import annotations

import pytest

from sandlot.builds import executor
from sandlot.builds.plan import Run, Step
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

"""Sandlot for smolagents: ``CodeAgent(tools, model, executor=SandboxExecutor([], logger))`` runs the code of the agent in a sandbox.

Nothing that a sandbox sends is unpickled: ``allow_pickle`` stays False.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from sandlot.agents.extras import extra
from sandlot.sdk import Execution, Sandbox
from sandlot.toolset.images import check_image, decode_image

with extra("smolagents", "smolagents"):
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError

TIMEOUT_S = 3600.0


class SandboxExecutor(RemotePythonExecutor):  # type: ignore[misc]  # the package has no types
    """Executor of a ``CodeAgent``.

    Args:
        additional_imports: Packages to install.
        logger: Logger of the agent.
        sandbox: Sandbox to use; it is not ended. Default: a new one, which :meth:`cleanup` ends.
        options: Arguments of ``Sandbox.create``.
    """

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        *,
        sandbox: Sandbox | None = None,
        **options: Any,  # noqa: ANN401 - passed on
    ) -> None:
        super().__init__([*additional_imports], logger or AgentLogger(level=LogLevel.OFF), allow_pickle=False)
        self._is_own = sandbox is None
        self.sandbox = sandbox or Sandbox.create(**{"timeout": TIMEOUT_S, **options})
        """Sandbox in which the code runs."""
        self.installed_packages = self.install_packages([*additional_imports])

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install packages with pip."""
        if additional_imports:
            self.logger.log(self.sandbox.install(additional_imports, check=True).stdout)
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code. The final answer of the agent arrives as an exception, whose value is JSON."""
        run = self.sandbox.run_code(code, timeout=None)
        if run.error is not None and run.error.name == RemotePythonExecutor.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(run.error.value, allow_pickle=False)
            return CodeOutput(output=answer, logs=run.stdout, is_final_answer=True)
        if not run.ok:
            raise AgentError(f"{run.stdout}\nExecuting code yielded an error:\n{run.error or run.status}", self.logger)
        return CodeOutput(output=_value(run), logs=run.stdout, is_final_answer=False)

    def cleanup(self) -> None:
        """End the sandbox, unless it was passed in."""
        if self._is_own:
            self.sandbox.kill()


def _value(run: Execution) -> Any:  # noqa: ANN401 - text or an image
    for result in run.results:
        if result.main:
            for data in (result.png, result.jpeg):
                content = decode_image(data) if data else b""
                if content and not check_image(content):
                    return PIL.Image.open(io.BytesIO(content))
            return result.text
    return None

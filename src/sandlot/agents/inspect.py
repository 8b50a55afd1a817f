"""Sandlot for inspect_ai: ``Task(..., sandbox="sandlot")`` gives each sample a sandbox.

``sandbox=("sandlot", "code-interpreter")`` names a template, and ``SandboxEnvironmentSpec("sandlot", SandlotConfig(...))`` sets more. The entry point
of the distribution makes the name known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, Literal, overload

from sandlot.agents.extras import extra
from sandlot.agents.os_errors import os_errors
from sandlot.model.errors import SANDBOX_GONE, ErrorCode, SandlotError
from sandlot.sdk import AsyncSandbox, Output

with extra("inspect", "inspect_ai"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict

PROGRAM_NOT_FOUND: Final = 127
TIMEOUT_S: Final = 24 * 3600.0
"""Default of ``timeout`` of a sandbox; the end of its sample ends it earlier."""
METADATA: Final = {"inspect_ai": "sample"}
"""Metadata of the sandboxes of samples, by which ``inspect sandbox cleanup sandlot`` finds them."""


class SandlotConfig(BaseModel):  # type: ignore[misc, unused-ignore]
    """Sandbox of a sample. Further fields are arguments of ``AsyncSandbox.create``, such as ``cpus``.

    Args:
        template: Template to start from.
        network: Network mode, or the rules of an allowlist.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    template: str | None = None
    network: str | tuple[str, ...] | None = None


@sandboxenv(name="sandlot")  # type: ignore[untyped-decorator, unused-ignore]
class SandlotSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """The sandbox of a sample."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration in a log."""
        return SandlotConfig(**config)

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Create the sandbox of a sample."""
        if isinstance(config, str):
            config = SandlotConfig(template=PurePath(config).name)  # inspect_ai has made a path of the name, as of a configuration file
        options = {} if config is None else config.model_dump(exclude_none=True)
        metadata = {**METADATA, "task": task_name[:128]}
        sandbox = await AsyncSandbox.create(**{"timeout": TIMEOUT_S, "metadata": metadata, **options})
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: SandboxEnvironmentConfigType | None,  # noqa: ARG003
        environments: Mapping[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003, FBT001
    ) -> None:
        """End the sandbox of a sample."""
        for environment in environments.values():
            try:
                await environment.as_type(SandlotSandboxEnvironment).sandbox.kill()
            except SandlotError as error:
                if error.code not in SANDBOX_GONE:
                    raise

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002 - the word of the interface
        """End sandboxes that samples left behind: one by its id, or all of the caller."""
        for info in await AsyncSandbox.list(metadata=METADATA):
            if id in {None, info.id}:
                await AsyncSandbox.kill(info.id)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: ARG002, FBT001, FBT002
        concurrency: bool = True,  # noqa: ARG002, FBT001, FBT002
    ) -> ExecResult[str]:
        """Run a command. A command that times out is not repeated."""
        streams = {"stdout": bytearray(), "stderr": bytearray()}
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE

        def keep(piece: Output) -> None:
            streams[piece.stream].extend(piece.data)
            if len(streams[piece.stream]) > limit or piece.lost_bytes:
                text = bytes(streams[piece.stream][:limit]).decode("utf-8", "replace")
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text)

        try:
            with os_errors():
                result = await self.sandbox.commands.run(cmd, stdin=input, cwd=cwd, envs=env, user=user, timeout=timeout, on_output=keep)
        except SandlotError as error:
            if error.code is ErrorCode.PROGRAM_NOT_FOUND:
                return ExecResult(False, PROGRAM_NOT_FOUND, "", f"{error.message}\n")
            if user is not None and error.code is ErrorCode.INVALID_REQUEST:  # there is no such user
                return ExecResult(False, 1, "", f"{error.message}\n")
            if error.code in SANDBOX_GONE:
                raise SandboxUnavailableError(str(error)) from error
            raise
        if result.timed_out:
            raise TimeoutError(f"The command did not end within {timeout} s.")
        stdout, stderr = (bytes(streams[name]).decode("utf-8", "replace") for name in ("stdout", "stderr"))
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and create missing parent directories."""
        with os_errors(file):
            await self.sandbox.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:  # noqa: FBT001, FBT002 - of the interface
        """Read a file."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        content = bytearray()
        with os_errors(file):
            async with await self.sandbox.files.read(file, "stream") as stream:
                async for chunk in stream:
                    content += chunk
                    if len(content) > limit:
                        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else bytes(content)

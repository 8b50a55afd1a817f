"""Plan of a build: the stages, the base of each stage, and the steps on top. Pure.

A Dockerfile and the steps of E2B's API become the same steps. Variables in them are expanded. The steps of a Dockerfile are only known once the base
is, because its environment may appear in them: :meth:`StepSource.steps` returns them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from sandlot.model.errors import InvalidRequestError
from sandlot.model.images import ImageConfig
from sandlot.model.specs import MAX_ARG_BYTES, MIB, User, check_env, check_path, check_text

MAX_STEPS: Final = 1_000
"""Maximum number of steps of all stages of a build."""
MAX_STAGES: Final = 32
MAX_SOURCES: Final = 256
"""Maximum number of sources of one copy."""
MAX_INLINE_BYTES: Final = 1 * MIB
"""Maximum size in bytes of the files that a plan itself contains."""
DEFAULT_SHELL: Final = ("/bin/sh", "-c")
SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ImageBase:
    """An image of a registry.

    Args:
        reference: Reference of the image, such as ``python:3.12``.
    """

    reference: str


@dataclass(frozen=True, slots=True)
class TemplateBase:
    """A built-in template, or a template of the owner.

    Args:
        name: Name of the template, to which a colon and a tag can be added.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ArchiveBase:
    """An image in a file that a client has uploaded.

    Args:
        path: Archive of an OCI image layout, of ``docker save``, or of a root filesystem.
        image: Name of the image in the archive; empty: the only one.
    """

    path: Path
    image: str = ""


@dataclass(frozen=True, slots=True)
class StageBase:
    """The files at the end of an earlier stage.

    Args:
        stage: Index of the stage.
    """

    stage: int


@dataclass(frozen=True, slots=True)
class EmptyBase:
    """No files, as ``FROM scratch``."""


Base = ImageBase | TemplateBase | ArchiveBase | StageBase | EmptyBase


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file whose content is a part of the plan, such as a here-document.

    Args:
        name: Name of the file.
        content: Content of the file.
    """

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command. The step fails if the exit code is not 0.

    Args:
        command: Command line of the shell of the stage, or a program with its arguments.
        env: Variables of this command only, such as build arguments.
        user: User of this command; empty: the user of the stage.
        stdin: Standard input of the command; None: no input.
        has_network: False to run the command without a network.
    """

    command: str | tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    stdin: bytes | None = None
    has_network: bool = True

    def __post_init__(self) -> None:
        for each in (self.command,) if isinstance(self.command, str) else self.command:
            if len(check_text("command", each)) > MAX_ARG_BYTES:
                raise InvalidRequestError(f"The command has more than {MAX_ARG_BYTES} bytes.", hint="Copy a script into the sandbox and run it.")
        if not self.command:
            raise InvalidRequestError("The command is empty.", hint="Pass a command line to run.")
        check_env(self.env)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files.

    Args:
        sources: Paths in the origin, with the wildcards ``*``, ``?`` and ``[…]``. Paths never lead out of the origin.
        destination: Path in the sandbox, relative to the working directory of the stage. A slash at the end means a folder.
        origin: Index of an earlier stage, an image, or a key of :attr:`BuildPlan.contexts`.
        owner: Owner of all copied files, as ``USER[:GROUP]``; empty: root, or the owner in a stage or image.
        mode: Permission bits of all copied files; None: as in the origin.
        files: Files of the plan that are copied as well.
        unpack: True to unpack sources that are tar archives, as ``ADD`` does.
        follow: True to copy the target of a source that is a symbolic link, instead of the link.
    """

    sources: tuple[str, ...]
    destination: str
    origin: int | ImageBase | str = ""
    owner: str = ""
    mode: int | None = None
    files: tuple[InlineFile, ...] = ()
    unpack: bool = False
    follow: bool = True

    def __post_init__(self) -> None:
        if len(self.sources) > MAX_SOURCES:
            raise InvalidRequestError(f"A copy has {len(self.sources)} sources; at most {MAX_SOURCES} are allowed.", hint="Copy a folder.")
        if not self.sources and not self.files:
            raise InvalidRequestError("A copy has no source.", hint="Name a file or folder to copy, and then the destination.")
        for path in (*self.sources, self.destination):
            check_path("/" + path.lstrip("/"))
        if not self.destination:
            raise InvalidRequestError("A copy has no destination.", hint="Name the destination last.")
        if len(self.sources) + len(self.files) > 1 and not self.destination.endswith("/") and self.destination not in {".", ".."}:
            raise InvalidRequestError(
                f"Several files cannot be copied to {self.destination[:SHOWN_CHARS]!r}: it is not a folder.",
                hint="End the destination with a slash.",
            )
        if self.owner:
            User(self.owner)
        if self.mode is not None and not 0 <= self.mode <= 0o7777:  # noqa: PLR2004 - all permission bits
            raise InvalidRequestError(f"{self.mode:o} is not a file mode.", hint="Pass octal digits, for example 0755.")


@dataclass(frozen=True, slots=True)
class Env:
    """Set variables of the environment of the stage."""

    values: Mapping[str, str]

    def __post_init__(self) -> None:
        check_env(self.values)


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """Change the working directory of the stage, and create it if it does not exist.

    Args:
        path: Path, relative to the present working directory.
    """

    path: str

    def __post_init__(self) -> None:
        check_path("/" + self.path)


@dataclass(frozen=True, slots=True)
class SetUser:
    """Change the user of the stage.

    Args:
        user: User, as ``USER[:GROUP]``.
        creates: True to create the user if it does not exist.
    """

    user: str
    creates: bool = False

    def __post_init__(self) -> None:
        User(self.user)


@dataclass(frozen=True, slots=True)
class Shell:
    """Change the shell of the stage, to whose arguments a command line is added."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Change the program that sandboxes start.

    Args:
        entrypoint: First arguments of the program; None: unchanged. Setting it removes the arguments that the base has.
        cmd: Further arguments; None: unchanged.
    """

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None


Action = Run | Copy | Env | WorkingDirectory | SetUser | Shell | Start


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a stage.

    Args:
        label: Name of the step in the log and in errors: its number, 1 for the first one of the plan.
        text: Instruction for people, in one line.
        action: Action of the step.
        warning: Warning for the log; empty if there is none.
        line: Number of the line in the Dockerfile; 0: there is none.
    """

    label: str
    text: str
    action: Action
    warning: str = ""
    line: int = 0


class StepSource(Protocol):
    """Steps of a stage, which may depend on the base."""

    def steps(self, config: ImageConfig) -> Sequence[Step]:
        """Return the steps. Pure.

        Args:
            config: Configuration of the base.

        Raises:
            InvalidRequestError: A variable cannot be expanded, or a step is invalid; the message names the line and the instruction.
        """
        ...

    def origins(self) -> Iterator[int | ImageBase]:
        """Yield the earlier stages and images from which the steps copy. Pure."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSteps:
    """Steps that do not depend on the base."""

    items: tuple[Step, ...] = ()

    def steps(self, config: ImageConfig) -> Sequence[Step]:
        """Return the steps."""
        del config
        return self.items

    def origins(self) -> Iterator[int | ImageBase]:
        """Yield the earlier stages and images from which the steps copy."""
        for step in self.items:
            if isinstance(step.action, Copy) and not isinstance(step.action.origin, str):
                yield step.action.origin


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a build.

    Args:
        base: Files and configuration with which the stage begins.
        source: Steps.
        name: Name of the stage; empty if it has none.
    """

    base: Base
    source: StepSource
    name: str = ""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Plan of a build.

    Args:
        stages: Stages. The last one becomes the template; stages that it does not need are not built.
        contexts: Name -> tar archive on this host, plain or compressed with gzip, from which steps copy. The context of a Dockerfile is named ``""``,
            and the context of a step of E2B's API as its hash.
        start_command: Command of the shell that runs in every sandbox; empty: the entrypoint and command of the last stage, if its steps set any.
        ready_command: Command of the shell that succeeds once the start command is ready; empty for none.
        user: User of the last stage at its beginning; empty: that of the base.
        working_dir: Working directory of the last stage at its beginning; empty: that of the base.
        ignores_cache: True to run all steps again.
        warnings: Warnings for the log.
    """

    stages: tuple[Stage, ...]
    contexts: Mapping[str, Path] = field(default_factory=dict)
    start_command: str = ""
    ready_command: str = ""
    user: str = ""
    working_dir: str = ""
    ignores_cache: bool = False
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.stages) <= MAX_STAGES:
            raise InvalidRequestError(f"The build has {len(self.stages)} stages; 1 to {MAX_STAGES} are allowed.", hint="Remove stages.")

    def archives(self) -> set[Path]:
        """Return the archives on this host that the build reads."""
        return {*self.contexts.values(), *(stage.base.path for stage in self.stages if isinstance(stage.base, ArchiveBase))}

    def reading(self, moved: Mapping[Path, Path]) -> BuildPlan:
        """Return the plan with other paths of archives; a path that is not in ``moved`` stays."""
        stages = (
            replace(stage, base=replace(stage.base, path=moved.get(stage.base.path, stage.base.path)))
            if isinstance(stage.base, ArchiveBase)
            else stage
            for stage in self.stages
        )
        return replace(self, stages=tuple(stages), contexts={name: moved.get(path, path) for name, path in self.contexts.items()})

    def needed(self) -> tuple[int, ...]:
        """Return the indexes of the stages that the last one needs, in their order, the last one included. Pure."""
        found: set[int] = set()
        pending = [len(self.stages) - 1]
        while pending:
            index = pending.pop()
            if index in found:
                continue
            found.add(index)
            stage = self.stages[index]
            pending += [each for each in stage.source.origins() if isinstance(each, int)]
            if isinstance(stage.base, StageBase):
                pending.append(stage.base.stage)
        return tuple(sorted(found))


_OCTAL: Final = re.compile(r"0?[0-7]{1,4}")


def parse_mode(text: str) -> int:
    """Parse a file mode of octal digits.

    Raises:
        InvalidRequestError: The text is not an octal number of at most four digits.
    """
    if not _OCTAL.fullmatch(text):
        raise InvalidRequestError(f"{text[:SHOWN_CHARS]!r} is not a file mode.", hint="Pass octal digits, for example 0755.")
    return int(text, 8)


def shown(text: str) -> str:
    """Return a text in one line of at most ``SHOWN_CHARS`` characters. Pure."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 3] + "..."

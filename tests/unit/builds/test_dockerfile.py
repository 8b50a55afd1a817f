"""Dockerfiles become stages and steps, with variables expanded as BuildKit does; errors name line and instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sandlot.builds import dockerfile
from sandlot.builds.plan import (
    Action,
    BuildPlan,
    Copy,
    EmptyBase,
    Env,
    ImageBase,
    InlineFile,
    Run,
    SetUser,
    Shell,
    StageBase,
    Start,
    Step,
    WorkingDirectory,
)
from sandlot.model.errors import InvalidRequestError
from sandlot.model.images import ImageConfig


def steps(text: str, *, env: Mapping[str, str] | None = None, args: Mapping[str, str] | None = None) -> Sequence[Step]:
    """Return the steps of the last stage, which begins with the image ``base`` if the text has no FROM."""
    stages = dockerfile.parse(text if "FROM" in text else f"FROM base\n{text}", args=args).stages
    return stages[-1].source.steps(ImageConfig(env=env or {}))


def only(text: str, **options: Mapping[str, str]) -> Action:
    """Return the action of the last step."""
    return steps(text, **options)[-1].action


def expand_all(text: str) -> None:
    """Parse a Dockerfile, and return the steps of all stages."""
    plan = BuildPlan(dockerfile.parse(text).stages)
    plan.needed()
    for stage in plan.stages:
        stage.source.steps(ImageConfig())


@pytest.mark.parametrize(
    "line, action",
    [
        ("RUN echo $HOME && ls", Run("echo $HOME && ls")),
        ("RUN a \\\n  # a comment\n  b", Run("a   b")),
        ('RUN ["a", "b c"]', Run(("a", "b c"))),
        ("RUN --network=none make", Run("make", has_network=False)),
        ("RUN <<END\na\nb\nEND", Run("a\nb\n")),
        ("RUN <<-END\n\ta\n\tEND", Run("a\n")),
        ("RUN python3 <<END\nprint(1)\nEND", Run("python3 <<END\nprint(1)\nEND")),
        (
            "RUN <<END\n#!/usr/bin/env python3\nprint(1)\nEND",
            Run(("/usr/bin/env", "python3", "/dev/stdin"), stdin=b"#!/usr/bin/env python3\nprint(1)\n"),
        ),
        ("ENV A=1 B='x y'", Env({"A": "1", "B": "x y"})),
        ("ENV A some words", Env({"A": "some words"})),
        ("WORKDIR /a b", WorkingDirectory("/a b")),
        ("USER app:1000", SetUser("app:1000")),
        ('SHELL ["/bin/bash", "-c"]', Shell(("/bin/bash", "-c"))),
        ("CMD python app.py", Start(cmd=("/bin/sh", "-c", "python app.py"))),
        ('ENTRYPOINT ["a", "b"]', Start(entrypoint=("a", "b"))),
        ("COPY a b c/", Copy(("a", "b"), "c/")),
        ('COPY ["a b", "c"]', Copy(("a b",), "c")),
        ("COPY --chown=1:2 --chmod=0750 a b", Copy(("a",), "b", owner="1:2", mode=0o750)),
        ("COPY --from=python:3 /a /b", Copy(("/a",), "/b", origin=ImageBase("python:3"))),
        ("COPY <<A <<'B' /etc/\nx\nA\n$y\nB", Copy((), "/etc/", files=(InlineFile("A", b"x\n"), InlineFile("B", b"$y\n")))),
        ("ADD a.tar.gz /", Copy(("a.tar.gz",), "/", unpack=True)),
    ],
)
def test_instruction_becomes_an_action(line: str, action: Action) -> None:
    assert only(line) == action


@pytest.mark.parametrize(
    "word, value",
    [
        ("$A", "one"),
        ("${A}x", "onex"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A b"', "one b"),
        ("$NONE", ""),
        ("${NONE:-else}", "else"),
        ("${A:+other}", "other"),
        ("${A#o}", "ne"),
        ("${A%e}", "on"),
        ("${A/n/N}", "oNe"),
        ("$PATH:/x", "/bin:/x"),
    ],
)
def test_variables_are_expanded_with_the_environment_of_the_base(word: str, value: str) -> None:
    assert only(f"ENV A=one\nENV X={word}", env={"PATH": "/bin"}) == Env({"X": value})


def test_common_patterns_are_expanded() -> None:
    values = {"A": "1.2.3-rc1", "P": "/usr/bin:/bin:/usr/local/bin", "N": "n" * 200}
    action = only('ENV B="${A%%.*}-${P##*/}-${A//./_}" C=${A#${A%.*}} D=${N%%n*} E="${A:-"${P##*/}"}"', env=values)
    assert action == Env({"B": "1-bin-1_2_3-rc1", "C": ".3-rc1", "D": "", "E": "1.2.3-rc1"})
    script = 'if [ "${x##*/}" = y ]; then echo "${HOME%/*}:$N"; fi\n' * 50
    (file,) = only(f"COPY <<E /x\n{script}E", env={**values, "HOME": "/root"}).files  # type: ignore[union-attr]
    assert file.content.decode().startswith(f'if [ "" = y ]; then echo ":{values["N"]}"; fi\n')


def test_variable_is_set_from_the_next_instruction_on() -> None:
    assert only("ENV A=old\nENV A=new B=$A") == Env({"A": "new", "B": "old"})


def test_arguments_are_variables_of_commands_and_hidden_by_the_environment() -> None:
    assert only("ARG A=1 B\nARG TARGETARCH\nENV A=2\nRUN x", args={"B": "3"}) == Run("x", {"B": "3", "TARGETARCH": "amd64"})
    assert only("ARG V=1\nFROM base\nRUN x") == Run("x")
    assert only("ARG V=1\nFROM base\nARG V\nRUN x") == Run("x", {"V": "1"})
    assert only("ARG V=1\nFROM base\nARG V=2\nRUN x", args={"V": "3"}) == Run("x", {"V": "3"})


def test_stages_begin_with_images_stages_and_nothing() -> None:
    text = "ARG V=3.12\nFROM --platform=$BUILDPLATFORM python:${V}-slim AS One\nFROM one\nFROM scratch\nCOPY --from=ONE a b\nCOPY --from=1 a b\n"
    stages = dockerfile.parse(text).stages
    assert [each.base for each in stages] == [ImageBase("python:3.12-slim"), StageBase(0), EmptyBase()]
    assert list(stages[2].source.origins()) == [0, 1]


def test_stages_that_the_target_does_not_need_are_not_built() -> None:
    text = "FROM a AS one\nFROM b AS two\nFROM c AS three\nCOPY --from=one x y\n"
    assert BuildPlan(dockerfile.parse(text).stages).needed() == (0, 2)
    assert len(dockerfile.parse(text, target="two").stages) == 2


@pytest.mark.parametrize("line", ["EXPOSE 80", "LABEL a=b", "VOLUME /x", "HEALTHCHECK CMD x", "STOPSIGNAL 9", "MAINTAINER me", "ONBUILD RUN x"])
def test_instruction_without_effect_is_ignored_with_a_warning(line: str) -> None:
    assert steps(line)[0].warning == f"{line.split(maxsplit=1)[0]} is ignored."


def test_cache_mount_is_ignored_with_a_warning() -> None:
    (step,) = steps("RUN --mount=type=cache,target=/root/.cache pip install x")
    assert step.action == Run("pip install x")
    assert "--mount=type=cache" in step.warning


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no FROM"),
        ("RUN x\nFROM base", "Line 1 (RUN): The first instruction must be FROM"),
        ("FROM base AS", "Line 1 (FROM)"),
        ("FROM base AS 1x", "Line 1 (FROM): '1x' is not the name of a stage"),
        ("ARG V\nFROM ${V}", "Line 2 (FROM): The name of the image is empty"),
        ("FROM --platform=linux/arm64 base", "Line 1 (FROM): The platform 'linux/arm64' is not supported"),
        ("FROM base\n\nNONSENSE x", "NONSENSE"),
        ("FROM base\nRUN --mount=type=secret,id=x cat", "Line 2 (RUN): A mount of type 'secret' is not supported"),
        ("FROM base\nRUN --mount=type=ssh x", "Line 2 (RUN): A mount of type 'ssh' is not supported"),
        ("FROM base\nRUN --network=host x", "Line 2 (RUN): The network 'host'"),
        ("FROM base\nRUN --security=insecure x", "Line 2 (RUN)"),
        ("FROM base\nRUN", "RUN"),
        ('FROM base\nRUN <<E\n#!/bin/"sh\nE', "Line 2 (RUN): The line '#!/bin/\"sh' is invalid"),
        ("FROM base\nRUN <<E\n#!/bin/sh \\\nE", "Line 2 (RUN)"),
        ("FROM base\nCOPY a", "Line 2 (COPY): A copy has no source"),
        ("FROM base\nCOPY a b c", "Line 2 (COPY): Several files cannot be copied"),
        ("FROM base\nCOPY --chmod=rwx a b", "Line 2 (COPY): 'rwx' is not a file mode"),
        ("FROM base\nCOPY --chown=: a b", "Line 2 (COPY): ':' is not a valid user"),
        ("FROM base\nCOPY --from=5 a b", "Line 2 (COPY): There is no earlier stage 5"),
        ("FROM base\nCOPY --from=$X a b", "Line 2 (COPY): Variables are not supported"),
        ("FROM base\nCOPY --what=x a b", "Line 2 (COPY): The flag `--what` is not supported"),
        ("FROM base\nADD https://example.com/x /", "Line 2 (ADD): ADD of a URL"),
        ("FROM base\nADD git@example.com:x /", "Line 2 (ADD): ADD of a URL"),
        ("FROM base\nENV A=${B:?missing}", "Line 2 (ENV)"),
        ("FROM base\nENV A=${B", "Line 2 (ENV)"),
        ("FROM base\nUSER $NONE", "Line 2 (USER): USER needs a value"),
        ("FROM base\nUSER a b", "Line 2 (USER)"),
        ("FROM base\nSHELL bash", "Line 2 (SHELL)"),
        ("FROM base\nARG 1=2", "Line 2 (ARG)"),
    ],
)
def test_error_names_line_and_instruction(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        expand_all(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "FROM base\n" + "#" * (dockerfile.MAX_BYTES + 1),
        "FROM base\n" * 33,
        "FROM base\n" + "RUN x\n" * 1001,
        "FROM base\nENV A=" + "x" * 100 + "\n" + "ENV A=$A$A$A$A$A$A$A$A\n" * 20,
        "FROM base\nENV A=" + "x" * 10_000 + "\nENV B=" + "$A" * 100_000,
        "FROM base\nENV A=" + "a" * 30_000 + "\nENV B=${A#*a*b}",
        "FROM base\nENV A=" + "a" * 1_000 + "\nENV B=${A#*a*a*a*b}",
        "FROM base\nENV A=" + "${A:-" * 5_000 + "}" * 5_000,
        "FROM " + "${a#" * 60_000,
        "ARG A=" + "${a#" * 60_000,
        "# a=b" + " " * 200_000 + "c\nFROM base",
        "FROM base\nENV A=x B=" + "${A%" + "b" * 200_000 + "}",
        "FROM base\nENV A=" + "a" * 100 + " B=*a*a*a*a*a*a*a*ab\nENV C=${A#$B}",
        "FROM base\nENV A=" + "a" * 100 + "\nENV C=${A#*\\}*a*a*a*a*a*ab}",
        "FROM base\nENV A=" + "a" * 100 + "\nENV C=${A//a/${A//a/${A//a/$A}}}",
        "FROM base\nENV @=" + "a" * 100 + '\nENV C="${@#*a*a*a*a*a*a*ab}"',
        "FROM base\nENV A=" + "a" * 250 + "\nENV " + " ".join(f"C{number}=${{A/*a*b/x}}" for number in range(4_000)),
        "FROM base\nENV A=" + "a" * 100_000 + "\nCOPY " + f"{'$A' * 32} " * 100 + "/",
        "FROM base\n" + "".join(f"COPY <<E /x\n{'$A' * 50_000}\nE\n" for _ in range(2)) + "ENV X=${A",
    ],
)
def test_hostile_dockerfile_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        expand_all(text)

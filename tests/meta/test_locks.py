"""The locks: every package by version and hash, no address of an index, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.meta.tree import PACKAGE, ROOT, name

RUN, DEV = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
ENVIRONMENTS = sorted((ROOT / "tests" / "environments").glob("*.in"))
CLIENTS = sorted((ROOT / "tests" / "environments" / "clients").glob("*.in"))
RECIPES = [file for file in sorted((PACKAGE / "images" / "recipes").glob("*.lock")) if not file.name.endswith(".npm.lock")]
LOCKS = [RUN, DEV, *(file.with_suffix(".lock") for file in (*ENVIRONMENTS, *CLIENTS)), *RECIPES]
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\]+?))?(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)")


def test_a_lock_is_pins_with_hashes_and_nothing_else() -> None:
    assert [name(lock) for lock in LOCKS if not _entries(lock)] == []
    assert [f"{name(lock)}: {entry}" for lock in LOCKS for entry in _entries(lock) if PIN.fullmatch(entry) is None] == []


def test_the_larger_lock_contains_the_smaller_one() -> None:
    # scripts/setup relies on it: an environment with the larger one serves who asks for the smaller.
    smaller, larger = _versions(RUN), _versions(DEV)
    assert {package: larger.get(package) for package in smaller} == smaller


def test_the_locks_hold_what_pyproject_asks_for() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build, dev = (pyproject["dependency-groups"][group] for group in ("build", "dev"))
    assert pyproject["build-system"]["requires"] == build
    extras = pyproject["project"]["optional-dependencies"]
    service = [*pyproject["project"]["dependencies"], *extras["server"], *extras["repl"], *extras["notebook"]]
    for lock, wanted in ((RUN, service + build), (DEV, [item for item in dev if isinstance(item, str)])):
        pinned = _versions(lock)
        for requirement in map(Requirement, wanted):
            versions = pinned.get(canonicalize_name(requirement.name), [])
            assert versions, f"{requirement} is not in {lock.name}: run scripts/lock"
            assert all(requirement.specifier.contains(version) for version in versions), f"{requirement} is {versions} in {lock.name}"


@pytest.mark.parametrize("file", [*ENVIRONMENTS, *CLIENTS], ids=name)
def test_lock_of_an_environment_satisfies_pyproject_and_the_environment(file: Path) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    own = [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pinned = _versions(file.with_suffix(".lock"))
    beside = [] if file in CLIENTS else pyproject["project"]["dependencies"]
    for requirement in map(Requirement, [*own, *beside]):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not locked: run scripts/lock"
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement} is {versions}"


def test_client_requires_the_oldest_versions_that_its_lock_has() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = _versions(ROOT / "tests" / "environments" / "client-oldest.lock")
    for requirement in map(Requirement, pyproject["project"]["dependencies"]):
        (oldest,) = (spec.version for spec in requirement.specifier if spec.operator == ">=")
        (version,) = pinned[canonicalize_name(requirement.name)]
        assert Version(version) == Version(oldest), f"{requirement} is {version}"


@pytest.mark.parametrize("extra", ["anthropic", "inspect", "langchain", "openai", "openai-agents", "pydantic-ai", "smolagents"])
def test_extra_of_an_adapter_requires_the_oldest_versions_with_which_its_example_runs(extra: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    environment = "models" if extra in {"anthropic", "openai"} else extra
    pinned = _versions(ROOT / "tests" / "environments" / f"{environment}-oldest.lock")
    for requirement in map(Requirement, pyproject["project"]["optional-dependencies"][extra]):
        (oldest,) = (spec.version for spec in requirement.specifier if spec.operator == ">=")
        (version,) = pinned[canonicalize_name(requirement.name)]
        assert Version(version) == Version(oldest), f"{requirement} is {version}"


@pytest.mark.parametrize("wanted", sorted((PACKAGE / "images" / "recipes").glob("*.in")), ids=name)
def test_an_images_lock_holds_what_its_recipe_asks_for(wanted: Path) -> None:
    lines = [line for line in wanted.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= _versions(wanted.with_suffix(".lock")).keys()


def _entries(lock: Path) -> list[str]:
    joined = lock.read_text(encoding="utf-8").replace("\\\n", "")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def _versions(lock: Path) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for entry in _entries(lock):
        pin = PIN.fullmatch(entry)
        assert pin is not None
        versions.setdefault(pin["name"], []).append(pin["version"])
    return versions

"""Requirements: those that are accepted for a package manager, and those that are refused."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.model.packages import MAX_PACKAGES, InstallParams, Manager, choose_manager

GOOD = {
    Manager.PIP: (
        "requests",
        "requests>=2.31,<3",
        "requests == 2.31.0",
        "uvicorn[standard]==0.30.*",
        "Foo.Bar_baz[a,b-c] ~= 1.0",
        "tomli>=1; python_version < '3.11' and platform_system == \"Linux\"",
        "torch===2.3.0+cpu",
        "a!=1!2.0.dev1",
        "-r requirements.txt",
        "-r../requirements.txt",
        "--requirement=/tmp/with blank.txt",
        "--requirement  a",
    ),
    Manager.NPM: (
        "lodash",
        "lodash@4.17.21",
        "lodash@^4",
        "lodash@>=4 <5 || 3.x",
        "lodash@latest",
        "@types/node",
        "@types/node@~20.1",
        "JSONStream",
        "lodash@*",
    ),
    Manager.APT: ("tree", "g++", "libc6:amd64", "tree=2.1.0-1", "tree:amd64=1:2.1.0-1~bpo12+1", "libstdc++6", "0ad"),
}
BAD = {
    Manager.PIP: (
        "",
        "-r",
        "-r -",
        "-c constraints.txt",
        "--requirement",
        "--requirements-from-script x.py",
        "foo.zip",
        "foo-1.0-py3-none-any.whl",
        "foo.TGZ[extra]",
        "--",
        ".",
        "./package",
        "package.whl @ file:///tmp/package.whl",
        "requests @ https://example.com/requests.whl",
        "git+https://example.com/repository",
        "file:///etc/passwd",
        "requests --no-deps",
        "requests flask",
        "requests\nflask",
        "requests;",
        "requests\u200b",
        "$(reboot)",
        "requests>=2.31;os_nonsense=='a'",
        "a" * 501,
    ),
    Manager.NPM: (
        "",
        "-r requirements.txt",
        "--global",
        "--",
        ".",
        "./here",
        "~/x",
        "user/repository",
        "git+ssh://git@example.com/x.git",
        "file:x",
        "lodash@file:x",
        "lodash@npm:other",
        "lodash@x/y",
        "lodash@",
        "@types",
        "@/node",
        "_private",
        "lodash;reboot",
        "a" * 215,
    ),
    Manager.APT: (
        "",
        "-r requirements.txt",
        "-y",
        "--",
        "tree-",
        "./tree.deb",
        "tree/bookworm-backports",
        "^tree$",
        "Tree",
        "task^",
        "tree=",
        "tree\nbash",
        "t",
    ),
}


@pytest.mark.parametrize("manager, word", [(manager, word) for manager, words in GOOD.items() for word in words])
def test_requirement_that_names_a_package_is_accepted(manager: Manager, word: str) -> None:
    assert InstallParams(manager, (word,)).packages == (word,)


@pytest.mark.parametrize("manager, word", [(manager, word) for manager, words in BAD.items() for word in words])
def test_requirement_that_names_no_package_is_refused_with_a_hint(manager: Manager, word: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        InstallParams(manager, ("fine", word))
    assert refused.value.fields["field"] == "packages"
    assert refused.value.hint


@pytest.mark.parametrize("manager", Manager)
def test_requirement_with_nul_is_refused(manager: Manager) -> None:
    with pytest.raises(InvalidRequestError, match="NUL"):
        InstallParams(manager, ("a\0b",))


@pytest.mark.parametrize("count", [0, MAX_PACKAGES + 1])
def test_number_of_packages_of_one_install_is_limited(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(count)):
        InstallParams(Manager.PIP, ("a",) * count)


def test_unknown_package_manager_is_refused_with_the_known_ones() -> None:
    assert choose_manager("npm") is Manager.NPM
    with pytest.raises(InvalidRequestError) as refused:
        choose_manager("cargo")
    assert "pip, npm, apt" in refused.value.hint

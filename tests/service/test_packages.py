"""Packages on real sandboxes of both kinds: typed and by ``install``, as user and as root, and what fails says why.

They come from the indexes that this machine is configured for, through the machine's own package cache, so that only the first run of these
tests ever asks upstream for much.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from sandlot.model.errors import InvalidRequestError
from tests.support.localservice import EVERY_DAY, LocalService, local_service

pytestmark = pytest.mark.slow

QUICK = pytest.mark.parametrize("service", ["container"], indirect=True)
"""For what is the package managers' and ours, and nothing of the isolation's."""

IMPORTED = "import {0}; print({0}.__name__)"


@pytest.fixture(scope="module", params=EVERY_DAY)
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(timeout=1200) as made:
        made.run_code("kept = 'kept'")
        yield made


def typed(sandbox: Sandbox, command: str, user: str = "user") -> str:
    """Run what somebody typed; it must succeed."""
    done = sandbox.commands.run(command, user=user, timeout=300)
    assert done.exit_code == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.mark.parametrize(
    "user, command, module",
    [
        ("user", "pip install six", "six"),
        ("user", "uv pip install tabulate", "tabulate"),
        ("user", "python3 -m pip install 'idna>=3'", "idna"),
        ("root", "pip install colorama", "colorama"),
        ("root", "uv pip install toolz", "toolz"),
    ],
)
def test_pip_that_is_typed(sandbox: Sandbox, user: str, command: str, module: str) -> None:
    typed(sandbox, command, user)
    ran = sandbox.run_code(f"import {module}; print({module}.__name__, kept)")
    assert (ran.error, ran.stdout) == (None, f"{module} kept\n")
    for who in ("user", "root"):
        assert typed(sandbox, f"python3 -c '{IMPORTED.format(module)}'", who) == f"{module}\n"


@pytest.mark.parametrize("user, package", [("user", "left-pad"), ("root", "is-number")])
def test_npm_that_is_typed(sandbox: Sandbox, user: str, package: str) -> None:
    typed(sandbox, f"npm install -g {package}", user)
    assert typed(sandbox, f"node -p 'typeof require(\"{package}\")'") == "function\n"
    typed(sandbox, f"mkdir -p /tmp/{user}/project && cd /tmp/{user}/project && npm init -y > /dev/null && npm install {package}", user)
    assert typed(sandbox, f"cd /tmp/{user}/project && node -p 'Object.keys(require(\"./package.json\").dependencies)[0]'", user) == f"{package}\n"


@pytest.mark.parametrize("user, command, program", [("user", "apt-get install tree", "tree"), ("root", "apt-get install -y hello", "hello")])
def test_apt_get_that_is_typed(sandbox: Sandbox, user: str, command: str, program: str) -> None:
    typed(sandbox, command, user)
    typed(sandbox, f"{program} --version")


def test_install_makes_packages_of_each_manager_usable_at_once(sandbox: Sandbox) -> None:
    said: list[str] = []
    failed = sandbox.run_code("import more_itertools")
    assert failed.error is not None
    done = sandbox.install("more-itertools>=9", on_stdout=said.append, on_stderr=said.append)
    assert done.exit_code == 0, done.stderr
    assert "".join(said) == done.stdout + done.stderr
    assert "more-itertools" in "".join(said)
    ran = sandbox.run_code("import more_itertools; print(more_itertools.first([1]), kept)")
    assert (ran.error, ran.stdout) == (None, "1 kept\n")
    sandbox.run_code("var kept = 'kept'", language="javascript")
    assert sandbox.install(["is-odd@^3", "@types/left-pad"], manager="npm").exit_code == 0
    odd = sandbox.run_code("[require('is-odd')(3), kept].join(' ')", language="javascript")
    assert (odd.error, odd.text) == (None, "'true kept'")
    assert typed(sandbox, "node -p 'require(\"is-odd\")(3)'") == "true\n"
    done = sandbox.install(["bc"], manager="apt")
    assert done.exit_code == 0, done.stderr
    assert typed(sandbox, "echo 6*7 | bc") == "42\n"


@pytest.mark.parametrize("left", ["an update that was not taken over", "a package that is not configured", "a dependency that is not there"])
def test_what_an_apt_that_was_killed_left_is_healed_by_the_next_install(sandbox: Sandbox, left: str) -> None:
    # What dpkg keeps of bc is made what it is in the middle of it; socat needs a library that the image does not have.
    make = {
        "an update that was not taken over": "dpkg -s bc | sed 's/install ok installed/install ok unpacked/' > /var/lib/dpkg/updates/0001",
        "a package that is not configured": "sed -i '/^Package: bc$/,/^$/s/install ok installed/install ok half-configured/' /var/lib/dpkg/status",
        "a dependency that is not there": "cd /tmp && apt-get -q download socat && dpkg --force-depends --unpack socat_*.deb",
    }[left]
    typed(sandbox, "apt-get install -y bc", "root")
    typed(sandbox, make, "root")
    if left != "a package that is not configured":
        assert sandbox.commands.run("apt-get install -y hello", user="root", timeout=100).exit_code == 100
    done = sandbox.install("tree", manager="apt")
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert "half done is finished first" in done.stdout
    assert typed(sandbox, "dpkg --audit; ls -A /var/lib/dpkg/updates", "root") == ""
    assert "half done" not in sandbox.install("tree", manager="apt").stdout


def test_nothing_of_it_is_in_the_working_folder(sandbox: Sandbox) -> None:
    assert typed(sandbox, "ls -A /workspace") == ""


@QUICK
@pytest.mark.parametrize(
    "manager, package, words",
    [
        ("pip", "sandlot-no-such-package", "was not found"),
        ("pip", "six==0.0.1", "six==0.0.1"),
        ("npm", "sandlot-no-such-package-of-ours", "404"),
        ("npm", "left-pad@99", "No matching version"),
        ("apt", "sandlot-no-such-package", "Unable to locate package"),
        ("apt", "tree=0.0.1", "Version '0.0.1' for 'tree' was not found"),
    ],
)
def test_an_install_that_fails_has_its_managers_words(sandbox: Sandbox, manager: str, package: str, words: str) -> None:
    done = sandbox.install(package, manager=manager)
    assert done.exit_code not in {0, None}
    assert words in done.stdout + done.stderr


@QUICK
def test_what_is_no_package_is_refused(sandbox: Sandbox) -> None:
    for manager, word in (("pip", "--index-url=http://192.0.2.1/"), ("npm", "https://192.0.2.1/x.tgz"), ("apt", "/tmp/x.deb"), ("gem", "rails")):
        with pytest.raises(InvalidRequestError):
            sandbox.install(word, manager=manager)


@QUICK
def test_one_that_runs_out_of_time_is_ended(sandbox: Sandbox) -> None:
    done = sandbox.install("numpy", timeout=0.2)
    assert (done.timed_out, done.exit_code) == (True, 137)


def test_a_full_disk_is_told_in_the_managers_words(service: LocalService) -> None:
    with service.create(disk="64M") as small:
        done = small.install(["numpy", "pandas"])
        assert done.exit_code not in {0, None}
        assert "No space left on device" in done.stderr
        assert small.commands.run("echo here").stdout == "here\n"


def test_without_network_packages_come_by_install_alone(service: LocalService) -> None:
    with service.create(network="none") as closed:
        # pip tells of an index that refuses as of one that has nothing; the others give the status.
        for command, words in {"pip": "No matching distribution", "uv pip": "403", "npm": "403"}.items():
            done = closed.commands.run(f"{command} install left-pad", timeout=120)
            assert done.exit_code != 0, command
            assert words in done.stdout + done.stderr, (command, done.stdout, done.stderr)
        done = closed.commands.run("apt-get install tree", timeout=120)
        assert (done.exit_code != 0, "403" in done.stderr) == (True, True), done.stderr
        assert closed.install("six").exit_code == 0
        assert typed(closed, "python3 -c 'import six'") == ""
        assert closed.commands.run("pip install --force-reinstall six").exit_code != 0


def test_the_port_goes_on_after_the_service_was_killed(service: LocalService) -> None:
    with service.create(timeout=600) as box:
        typed(box, "pip install six")
        running = box.commands.start("sleep 1; pip install --force-reinstall six && uv pip install --reinstall tabulate")
        service.end(signal.SIGKILL)
        service.start()
        done = Sandbox.connect(box.id, client=service.client).commands.connect(running.id).wait()
        assert done.exit_code == 0, done.stderr

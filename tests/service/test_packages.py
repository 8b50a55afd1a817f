"""Packages on real sandboxes of both kinds: typed and by ``install``, as user and as root, and what fails says why.

They come from the indexes that this machine is configured for, through the machine's own package cache, so that only the first run of these
tests ever asks upstream for much.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from sandlot import Network, Sandbox
from sandlot.model.errors import InvalidRequestError
from tests.support.localservice import EVERY_DAY, LocalService, local_service

pytestmark = pytest.mark.slow

IMPORTED = "import {0}; print({0}.__name__)"


@pytest.fixture(scope="module", params=EVERY_DAY)
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    """A sandbox of the isolation under test, for what package managers need of a kernel."""
    with service.create(timeout=1200) as made:
        made.run_code("kept = 'kept'")
        yield made


@pytest.fixture(scope="module")
def quick(service: LocalService) -> Iterator[Sandbox]:
    """A container, for what is the package managers' and ours, and nothing of the isolation's."""
    with service.create(timeout=1200, isolation="container") as made:
        made.run_code("kept = 'kept'")
        yield made


def typed(sandbox: Sandbox, command: str, user: str = "user") -> str:
    """Run what somebody typed; it must succeed."""
    done = sandbox.commands.run(command, user=user, timeout=300)
    assert done.exit_code == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def test_pip_npm_and_apt_get_install_for_all_users(sandbox: Sandbox) -> None:
    for user, command, module in (
        ("user", "pip install six", "six"),
        ("user", "uv pip install tabulate", "tabulate"),
        ("user", "uv pip install greenlet", "greenlet"),  # has headers
        ("root", "python3 -m pip install colorama", "colorama"),
    ):
        typed(sandbox, command, user)
        ran = sandbox.run_code(f"import {module}; print({module}.__name__, kept)")
        assert (ran.error, ran.stdout) == (None, f"{module} kept\n")
        other = "root" if user == "user" else "user"
        assert typed(sandbox, f"python3 -c '{IMPORTED.format(module)}'", other) == f"{module}\n"
    for user, package in (("user", "left-pad"), ("root", "is-number")):
        typed(sandbox, f"npm install -g {package}", user)
        assert typed(sandbox, f"node -p 'typeof require(\"{package}\")'") == "function\n"
    typed(sandbox, "mkdir -p /tmp/project && cd /tmp/project && npm install left-pad")
    assert typed(sandbox, "cd /tmp/project && node -p 'Object.keys(require(\"./package.json\").dependencies)[0]'") == "left-pad\n"
    for user, command, program in (("user", "apt-get install tree", "tree"), ("root", "apt-get install -y hello", "hello")):
        typed(sandbox, command, user)
        typed(sandbox, f"{program} --version")
    assert typed(sandbox, "ls -A /workspace") == ""


def test_installed_packages_are_usable_at_once(quick: Sandbox) -> None:
    said: list[str] = []
    failed = quick.run_code("import more_itertools")
    assert failed.error is not None
    done = quick.install("more-itertools>=9", on_stdout=said.append, on_stderr=said.append)
    assert done.exit_code == 0, done.stderr
    assert "".join(said) == done.stdout + done.stderr
    assert "more-itertools" in "".join(said)
    ran = quick.run_code("import more_itertools; print(more_itertools.first([1]), kept)")
    assert (ran.error, ran.stdout) == (None, "1 kept\n")
    quick.run_code("var kept = 'kept'", language="javascript")
    assert quick.install(["is-odd@^3", "@types/left-pad"], manager="npm").exit_code == 0
    odd = quick.run_code("[require('is-odd')(3), kept].join(' ')", language="javascript")
    assert (odd.error, odd.text) == (None, "'true kept'")
    assert typed(quick, "node -p 'require(\"is-odd\")(3)'") == "true\n"
    assert quick.install("nanoid", manager="npm").exit_code == 0  # an ES module
    quick.files.write("/tmp/ids.mjs", "import {nanoid} from 'nanoid'; export const size = nanoid().length; console.log(size);")
    assert typed(quick, "node /tmp/ids.mjs") == "21\n"
    for cell in ("import {nanoid} from 'nanoid'; nanoid().length", "(await import('/tmp/ids.mjs')).size", "require('nanoid').nanoid().length"):
        ids = quick.run_code(cell, language="javascript")
        assert (ids.error, ids.text) == (None, "21"), cell
    done = quick.install(["bc"], manager="apt")
    assert done.exit_code == 0, done.stderr
    assert typed(quick, "echo 6*7 | bc") == "42\n"
    assert typed(quick, "ls -A /workspace") == ""


BROKEN = {
    "an update that was not taken over": "dpkg -s bc | sed 's/install ok installed/install ok unpacked/' > /var/lib/dpkg/updates/0001",
    "a package that is not configured": "sed -i '/^Package: bc$/,/^$/s/install ok installed/install ok half-configured/' /var/lib/dpkg/status",
    "a dependency that is missing": "cd /tmp && apt-get -q download socat && dpkg --force-depends --unpack socat_*.deb",
}
"""State that a killed apt leaves -> command line that makes it; socat needs a library that the image does not have."""


def test_next_install_repairs_what_a_killed_apt_left(quick: Sandbox) -> None:
    typed(quick, "apt-get install -y bc", "root")
    for state, command in BROKEN.items():
        typed(quick, command, "root")
        if state != "a package that is not configured":
            assert quick.commands.run("apt-get install -y hello", user="root", timeout=100).exit_code == 100, state
        done = quick.install("tree", manager="apt")
        assert done.exit_code == 0, (state, done.stdout, done.stderr)
        assert "incomplete. It is completed first" in done.stdout, state
        assert typed(quick, "dpkg --audit; ls -A /var/lib/dpkg/updates", "root") == "", state
    assert "is incomplete" not in quick.install("tree", manager="apt").stdout


@pytest.mark.parametrize("name", ["gevent", "sqlalchemy<2.1", "zope.proxy"])
def test_package_with_headers_is_installed(quick: Sandbox, name: str) -> None:
    done = quick.install(name)
    assert done.exit_code == 0, done.stderr


def test_requirements_file_is_installed(quick: Sandbox) -> None:
    quick.files.write("/workspace/requirements.txt", "# comment\nhumanize>=4\n-r more/rest.txt\n")
    quick.files.write("/workspace/more/rest.txt", "idna\n")
    quick.files.write("/tmp/with blank.txt", "toolz\n")
    try:
        done = quick.install(["-r requirements.txt", "--requirement=/tmp/with blank.txt", "iniconfig"])
        assert done.exit_code == 0, done.stderr
        assert typed(quick, "python3 -c 'import humanize, idna, toolz, iniconfig'") == ""
        missing = quick.install("-r absent.txt")
        assert missing.exit_code not in {0, None}
        assert "absent.txt" in missing.stderr
    finally:
        typed(quick, "rm -r requirements.txt more")


UNINSTALLABLE = """
import zipfile
info = "sandlot_half-1.0.dist-info"
with zipfile.ZipFile("/tmp/sandlot_half-1.0-py3-none-any.whl", "w") as archive:
    archive.writestr("sandlot_half.py", "")
    archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: sandlot-half\\nVersion: 1.0\\n")
    archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    archive.writestr("sandlot_half-1.0.data/data/etc/npmrc/below", "")
    archive.writestr(f"{info}/RECORD", f"sandlot_half.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
"""
"""Makes a wheel whose last file cannot be written, because the folder of the file is a file of the image."""


@pytest.mark.parametrize("manager", ["uv", "pip"])
def test_failed_install_leaves_nothing_that_counts_as_installed(quick: Sandbox, manager: str) -> None:
    typed(quick, f"echo '{UNINSTALLABLE}' | python3; echo /tmp/sandlot_half-1.0-py3-none-any.whl >/tmp/half.txt")
    if manager == "pip":
        typed(quick, "mv /usr/local/bin/uv /tmp/uv")
    try:
        for _ in range(2):
            assert quick.install(["-r /tmp/half.txt", "tabulate"]).exit_code not in {0, None}
            assert "sandlot-half" not in typed(quick, "pip list")
            assert quick.commands.run("python3 -c 'import sandlot_half'").exit_code == 1
        assert quick.install("tabulate").exit_code == 0
    finally:
        if manager == "pip":
            typed(quick, "mv /tmp/uv /usr/local/bin/uv")


KILLED = """
set -e
cd /usr/local/lib/python3.11/dist-packages
rm -f six.py
sed -i /INSTALLER/d six-*.dist-info/RECORD
echo running >/var/tmp/.sandlot-install-pip
touch -d '1 minute ago' /var/tmp/.sandlot-install-pip
touch six-*.dist-info
"""
"""Makes the state of an install that was killed while it wrote the files of a package."""


def test_next_install_repairs_what_a_killed_install_left(quick: Sandbox) -> None:
    assert quick.install("six").exit_code == 0
    typed(quick, KILLED)
    done = quick.install("six")
    assert done.exit_code == 0, done.stderr
    assert typed(quick, "python3 -c 'import six'") == ""


@pytest.fixture(scope="module")
def java(service: LocalService) -> Iterator[Sandbox]:
    with service.create(timeout=1200) as made:
        done = made.install("openjdk-17-jdk-headless", manager="apt")
        assert done.exit_code == 0, done.stderr
        yield made


@pytest.mark.soak
def test_java_of_debian_is_installed(java: Sandbox) -> None:
    assert "17." in typed(java, "java -version 2>&1")


GREEDY = """
import java.nio.ByteBuffer;
import java.util.*;

public class Greedy {
    public static void main(String[] given) {
        List<Object> kept = new ArrayList<>();
        while (true) {
            Object more = given[0].equals("heap") ? new byte[8 << 20] : ByteBuffer.allocateDirect(8 << 20);
            if (more instanceof byte[]) Arrays.fill((byte[]) more, (byte) 1);
            else for (int at = 0; at < 8 << 20; at += 4096) ((ByteBuffer) more).put(at, (byte) 1);
            kept.add(more);
        }
    }
}
"""


@pytest.mark.soak
@pytest.mark.parametrize("where", ["heap", "direct"])
def test_java_program_that_fills_the_memory_ends_alone(java: Sandbox, where: str) -> None:
    java.files.write("/workspace/Greedy.java", GREEDY)
    kept = java.commands.run("sleep 900", background=True)
    done = java.commands.run(f"java -Xmx64g -XX:MaxDirectMemorySize=64g Greedy.java {where}", timeout=300)
    # In a container the kernel chooses the process, and the guest does not know why it was killed.
    assert (done.exit_code, done.reason) == (137, "oom" if java.info().isolation == "gvisor" else "signalled"), done.stderr
    # The limit of the virtual machine is smaller than that of the sandbox.
    done = java.commands.run(f"java -Xmx128m -XX:MaxDirectMemorySize=64m Greedy.java {where}", timeout=300)
    assert "OutOfMemoryError" in done.stderr
    assert done.exit_code == 1
    assert kept.poll() is None
    kept.kill()
    assert java.run_code("6 * 7").text == "42"


@pytest.mark.soak
def test_driver_of_playwright_starts(sandbox: Sandbox) -> None:
    assert sandbox.install("playwright").exit_code == 0
    assert typed(sandbox, "playwright --version").startswith("Version")


NOTEBOOK = {
    "cells": [{"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": [], "source": "import pylab\npylab.plot([1, 2])"}],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.mark.soak
def test_notebook_that_jupyter_executes_has_its_figure(service: LocalService) -> None:
    with service.create("code-interpreter-slim", timeout=1200) as box:
        box.install(["nbconvert", "ipykernel"]).check()
        box.files.write("/workspace/in.ipynb", json.dumps(NOTEBOOK))
        typed(box, "jupyter nbconvert --to notebook --execute in.ipynb --output out.ipynb")
        assert "image/png" in typed(box, "cat out.ipynb")


def test_failed_install_has_the_output_of_its_manager(quick: Sandbox) -> None:
    for manager, package, words in (
        ("pip", "sandlot-no-such-package", "was not found"),
        ("pip", "six==0.0.1", "six==0.0.1"),
        ("npm", "sandlot-no-such-package-of-ours", "404"),
        ("npm", "left-pad@99", "No matching version"),
        ("apt", "sandlot-no-such-package", "Unable to locate package"),
        ("apt", "tree=0.0.1", "Version '0.0.1' for 'tree' was not found"),
    ):
        done = quick.install(package, manager=manager)
        assert done.exit_code not in {0, None}, package
        assert words in done.stdout + done.stderr, package


def test_urls_paths_and_options_are_no_packages(quick: Sandbox) -> None:
    for manager, word in (("pip", "--index-url=http://192.0.2.1/"), ("npm", "https://192.0.2.1/x.tgz"), ("apt", "/tmp/x.deb"), ("gem", "rails")):
        with pytest.raises(InvalidRequestError):
            quick.install(word, manager=manager)


def test_install_ends_at_its_timeout(quick: Sandbox) -> None:
    done = quick.install("numpy", timeout=0.2)
    assert (done.timed_out, done.exit_code) == (True, 124)


def test_full_disk_is_reported_by_the_managers_output(service: LocalService) -> None:
    with service.create(disk="32M", isolation="container") as small:
        done = small.install("numpy")
        assert done.exit_code not in {0, None}
        assert "No space left on device" in done.stderr
        assert small.commands.run("echo here").stdout == "here\n"


def test_without_network_only_install_gets_packages(service: LocalService) -> None:
    with service.create(network=Network("none")) as closed:
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


def test_package_port_works_after_the_service_was_killed(service: LocalService) -> None:
    with service.create(timeout=600) as box:
        typed(box, "pip install six")
        running = box.commands.run("sleep 1; pip install --force-reinstall six", background=True)
        service.end(signal.SIGKILL)
        service.start()
        done = Sandbox.connect(box.id, client=service.client).commands.connect(running.id).wait()
        assert done.exit_code == 0, done.stderr

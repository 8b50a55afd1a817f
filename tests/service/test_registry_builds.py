"""Images of a real registry become templates: pulled by `FROM`, built on, and used in sandboxes, whatever the image lacks."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.builds.limits import BuildLimits
from sandlot.images.recipe_files import shipped
from sandlot.images.store import ImageStore
from sandlot.model.access import OPERATOR
from sandlot.model.errors import UnsupportedError
from sandlot.model.executions import CodeResult
from sandlot.model.files import Entry
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import GIB, CellSpec, Limits, ProcessSpec
from tests.support.building import Bench, building
from tests.support.cache import CACHE_DIR
from tests.support.oci import MadeImage
from tests.support.roots import busybox_image
from tests.support.saving import place

pytestmark = pytest.mark.slow

ACCOUNTS = "# not an account\n\nroot:x:0:0\napp:x:4711:4712:An App:/srv/app:/bin/sh\nmore:x:many:0::/:/bin/sh\n:::::::\n"
LARGE = Limits(memory_bytes=GIB, disk_bytes=2 * GIB)
MUSL = """
FROM base AS tools
RUN apt-get update && apt-get install -y --no-install-recommends gcc musl-tools
RUN printf '#include <stdio.h>\\nint main(void) { puts("musl runs"); return 0; }\\n' > /hello.c && musl-gcc -o /hello /hello.c
FROM HOST/busybox:1
COPY --from=tools /lib/ld-musl-*.so.1 /lib/
COPY --from=tools /hello /bin/hello
RUN hello > /said
WORKDIR /home/user
"""


def packed(root: Path, *arguments: str) -> bytes:
    """Return an archive of a folder."""
    return subprocess.run(["tar", "-C", root, "--numeric-owner", *arguments], check=True, capture_output=True).stdout


def with_file(root: Path, name: str, text: str, mode: int) -> Path:
    """Add a file to a folder."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    (root / name).chmod(mode)
    return root


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bench]:
    folder = tmp_path_factory.mktemp("images")
    busybox = packed(busybox_image(), "-c", "./bin")
    odd = packed(with_file(folder / "odd", "etc/passwd", ACCOUNTS, 0o400), "-c", "./etc")
    debian = ImageStore(CACHE_DIR, shipped()).ensure("builder").path
    left_out = [
        f"--exclude=./{name}"
        for name in ("usr/share", "usr/lib/gcc", "usr/bin/buildah", "usr/bin/skopeo", "usr/lib/x86_64-linux-gnu/perl", "var/lib/apt", "var/cache")
    ]
    path = {"Env": ["PATH=/bin:/usr/bin", "KEPT=from the image"]}
    images = {
        "busybox": MadeImage([busybox], settings=path),
        "odd": MadeImage([busybox, odd], settings={**path, "User": "4711", "WorkingDir": "/srv/app"}),
        "debian": MadeImage([packed(debian, *left_out, "-c", ".")], settings=path),
    }
    limits = BuildLimits(network=NetworkPolicy(NetworkMode.NONE))
    with place() as state_dir:
        async with building(state_dir, tmp_path_factory.mktemp("registry"), images, limits) as running:
            yield running


async def use(bench: Bench, template: str, command: str) -> tuple[list[str], Entry, CodeResult | UnsupportedError]:
    """Return what a command prints in a new sandbox, a file that is written there, and the result of code."""
    sandbox = await bench.node.sandboxes.create(OPERATOR, CreateSandboxParams(template=template))
    try:
        done = await bench.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", command)))
        assert done.outcome.exit_code == 0, done.stderr.text()
        user = sandbox.spec.user
        await bench.node.files.write(OPERATOR, sandbox.id, "written", once(b"content"), user=user)
        entry = await bench.node.files.stat(OPERATOR, sandbox.id, "written", user=user)
        content = b"".join([piece async for piece in await bench.node.files.read(OPERATOR, sandbox.id, "written", user=user)])
        assert content == b"content"
        try:
            return done.stdout.text().splitlines(), entry, await bench.node.code.run(OPERATOR, sandbox.id, CellSpec("print(6 * 7)"))
        except UnsupportedError as error:
            return done.stdout.text().splitlines(), entry, error
    finally:
        await bench.node.sandboxes.kill(OPERATOR, sandbox.id)


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_busybox_without_bash_and_python_is_built_on_and_runs(bench: Bench) -> None:
    text = f'FROM {bench.host}/busybox:1\nRUN ["touch", "/made"]\nRUN echo $KEPT > /kept\nUSER 1234:5678\nWORKDIR /home/app\n'
    build = await bench.build(text, name="bb")
    assert "pulling layer 1 of 1" in await bench.log(build)
    lines, entry, code = await use(bench, "bb", "id -u; id -g; pwd; cat /kept; echo $KEPT; ls /made; > mine; stat -c %u mine")
    assert lines == ["1234", "5678", "/home/app", "from the image", "from the image", "/made", "1234"]
    assert (entry.path, entry.uid, entry.gid) == ("/home/app/written", 1234, 5678)
    assert isinstance(code, UnsupportedError)
    assert "no python" in code.message


async def test_image_with_odd_accounts_a_numeric_user_and_a_missing_folder_runs(bench: Bench) -> None:
    text = f"FROM {bench.host}/odd:1\nRUN id -u; pwd\nUSER root\nRUN chown app . && stat -c %u:%a . > /of\nUSER app\nRUN id > who\n"
    build = await bench.build(text, name="odd")
    assert "\n4711\n/srv/app\n" in await bench.log(build)
    lines, entry, _ = await use(bench, "odd", "cat /of; id -u; id -g; echo $HOME; grep -c . /etc/passwd || stat -c %a /etc/passwd")
    assert lines == ["4711:755", "4711", "4712", "/srv/app", "400"]
    assert (entry.path, entry.uid, entry.gid) == ("/srv/app/written", 4711, 4712)


async def test_debian_image_with_python_runs_code_and_sudo(bench: Bench) -> None:
    await bench.build(f"FROM {bench.host}/debian:1\nRUN python3 -c 'print(40 + 2)' > /said\nWORKDIR /home/user\n", name="deb")
    lines, entry, code = await use(bench, "deb", "cat /said; id -un; sudo id -un; command -v bash")
    assert lines == ["42", "user", "root", "/bin/bash"]
    assert (entry.path, entry.uid) == ("/home/user/written", 1000)
    assert isinstance(code, CodeResult)
    assert code.stdout.text() == "42\n"


@pytest.mark.soak
async def test_program_of_musl_runs(bench: Bench) -> None:
    limits = bench.runtime._limits  # noqa: SLF001
    bench.runtime._limits = replace(limits, network=NetworkPolicy(NetworkMode.PACKAGES))  # noqa: SLF001
    try:
        await bench.build(MUSL.replace("HOST", bench.host), name="musl", limits=LARGE)
    finally:
        bench.runtime._limits = limits  # noqa: SLF001
    lines, _, code = await use(bench, "musl", "cat /said; hello; ls /lib")
    assert lines[:2] == ["musl runs"] * 2
    assert isinstance(code, UnsupportedError)

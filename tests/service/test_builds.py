"""Promise: a Dockerfile becomes a root file system with exactly the files that its steps make, and a hostile step ends its build only."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.builds import dockerfile
from sandlot.builds.bases import BaseRoot, Report
from sandlot.builds.limits import BuildLimits
from sandlot.builds.plan import Base, BuildPlan, EmptyBase, ImageBase, TemplateBase
from sandlot.builds.root_images import RootImageBuilder
from sandlot.builds.runtime import BuildRuntime
from sandlot.core.ports import ResolvedTemplate, SystemClock
from sandlot.images.recipe import shipped
from sandlot.images.store import DEFAULT_CACHE, ImageStore
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal
from sandlot.model.images import ImageConfig
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import SandboxFilter
from sandlot.model.specs import MIB, Limits, ProcessSpec, RootFs, TemplateRef, User
from sandlot.model.templates import BuildRecord, BuildStatus, BuiltRoot
from sandlot.server.composition import RunningService, open_service
from sandlot.server.image_templates import ImageTemplates
from tests.support.saving import BASE, settings_of

pytestmark = pytest.mark.slow

SMALL = Limits(memory_bytes=256 * MIB, disk_bytes=256 * MIB, pids=64)
LIMITS = BuildLimits(network=NetworkPolicy(NetworkMode.NONE), cached_step_s=0.5, output_bytes=64 * MIB, layer_bytes=512 * MIB)
ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))


class Templates(ImageTemplates):
    """The templates of the service, and ``made``, whose root file system is the last one that was made."""

    made: RootFs | None = None

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        return TemplateRef(LOCAL, name) if name == "made" else await super().find(principal, name)

    async def build(self, ref: TemplateRef, **options: bool) -> ResolvedTemplate:
        if ref.name == "made" and self.made is not None:
            return ResolvedTemplate(self.made, {})
        return await super().build(ref, **options)

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        return await self.build(ref) if ref.name == "made" else await super().at(ref)


class Bases:
    """Built-in templates as bases."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self.runtime: BuildRuntime | None = None
        self.builder: RootImageBuilder | None = None
        self.made: RootFs | None = None

    async def open(self, principal: Principal, base: Base, report: Report) -> BaseRoot:
        del principal, report
        if isinstance(base, EmptyBase):
            return BaseRoot("base", BuiltRoot((), 0), "empty")
        assert isinstance(base, ImageBase | TemplateBase)
        name = base.reference if isinstance(base, ImageBase) else base.name
        image = self._store.find(name)
        assert image is not None
        config = ImageConfig(env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
        return BaseRoot(name, BuiltRoot((), 0, image.digest, name), image.digest, config)

    async def prepare(self, root: BuiltRoot, report: Report) -> None:
        assert self.builder is not None
        assert self.runtime is not None
        self.made = await self.builder.ensure(root, self.runtime.read_layer, report)


class Bench:
    """A service that builds."""

    def __init__(self, service: RunningService, templates: Templates, bases: Bases, runtime: BuildRuntime, folder: Path) -> None:
        self.node, self.templates, self.bases, self.runtime, self.folder = service.node, templates, bases, runtime, folder

    async def start(self, text: str, principal: Principal = OPERATOR, context: bytes = b"", limits: Limits = SMALL) -> BuildRecord:
        """Start the build of a Dockerfile."""
        parsed = dockerfile.parse(text)
        contexts = {}
        if context:
            path = self.folder / f"{len(list(self.folder.iterdir()))}.tar"
            path.write_bytes(context)
            contexts[""] = path
        _, build = await self.node.template_builds.request(principal, "made", limits=limits)
        await self.runtime.start(principal, build, BuildPlan(parsed.stages, contexts, warnings=parsed.warnings))
        return build

    async def build(self, text: str, principal: Principal = OPERATOR, context: bytes = b"", limits: Limits = SMALL) -> BuildRecord:
        """Build a Dockerfile and return the record of the ended build."""
        build = await self.start(text, principal, context, limits)
        await self.runtime.wait(build.id)
        found = await self.node.template_builds.get_build(principal, build.id)
        assert not (await self.node.sandboxes.list(OPERATOR, SandboxFilter(), after=None, limit=10)).items
        return found

    async def log(self, build: BuildRecord) -> str:
        """Return the log of a build."""
        page = await self.node.template_builds.lines(OPERATOR, build.id, limit=20_000)
        return "\n".join(line.text for line in page.items)

    async def shell(self, command: str, user: User = User.ROOT) -> str:
        """Run a command in a sandbox of the template that was built last."""
        self.templates.made = self.bases.made
        sandbox = await self.node.sandboxes.create(OPERATOR, replace(BASE, template="made"))
        try:
            done = await self.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", command), cwd="/", user=user))
            assert done.outcome.exit_code == 0, done.stderr.text()
            return done.stdout.text()
        finally:
            await self.node.sandboxes.kill(OPERATOR, sandbox.id)


@pytest.fixture(scope="module")
async def bench(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bench]:
    store = ImageStore(DEFAULT_CACHE, shipped())
    templates, bases = Templates(store), Bases(store)
    settings = settings_of(state_dir, memory_ratio=100.0, disk_ratio=100.0, pids_ratio=100.0)
    async with open_service(settings, templates=templates) as service:
        bases.builder = RootImageBuilder(store, tmp_path_factory.mktemp("cache"), reserve_bytes=0)
        bases.builder.connect(service.node)
        bases.runtime = BuildRuntime(service.node, bases, tmp_path_factory.mktemp("builds"), LIMITS, SystemClock())
        await bases.runtime.open()
        yield Bench(service, templates, bases, bases.runtime, tmp_path_factory.mktemp("contexts"))
        await bases.runtime.aclose()
        await bases.builder.aclose()


def archive(**files: bytes) -> bytes:
    """Return a build context."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for name, target in (("app/relative", "main.py"), ("app/absolute", "/etc/passwd"), ("app/dangling", "no/where")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            made.addfile(info)
    return out.getvalue()


TWO_STAGES = """
ARG BASE=base
FROM ${BASE} AS made
ENV NAME=world
RUN <<END
mkdir -p /out/deep && echo "hello $NAME" > /out/deep/text
chown -R 1234:5678 /out/deep && chmod 4711 /out/deep/text
ln /out/deep/text /out/hard
stat -c '%n %a %u %g %h' /out/deep/text /out/hard
END
FROM base
WORKDIR /srv
COPY --from=made /out /copied/
COPY --chown=user --chmod=640 app ./app/
COPY app/relative followed
RUN stat -c '%n %a %u %g %h' /copied/deep/text /copied/hard
RUN sleep 1; rm -r /usr/share/doc/adduser; rm /etc/issue; mkdir /etc/issue; touch /etc/issue/now
USER user
ENV GREETING="a b"
CMD ["cat", "/srv/app/main.py"]
"""


async def test_stages_copies_and_commands_make_the_files_of_the_template(bench: Bench) -> None:
    build = await bench.build(TWO_STAGES, context=archive(**{"app/main.py": b"print(1)\n"}))
    assert build.status is BuildStatus.READY, (build.error, await bench.log(build))
    print(await bench.log(build))
    found = await bench.shell(
        "stat -c '%n %a %u %g %h' /copied/deep /copied/deep/text /copied/hard /srv/app/main.py; readlink /srv/app/*; cat /copied/hard /srv/followed;"
        "ls -d /etc/issue/now; ls /usr/share/doc/adduser /out /etc/hostname 2>/dev/null; true"
    )
    assert found.split("\n") == [
        "/copied/deep 755 1234 5678 2",
        "/copied/deep/text 4711 1234 5678 2",
        "/copied/hard 4711 1234 5678 2",
        "/srv/app/main.py 640 1000 1000 1",
        "/etc/passwd",
        "no/where",
        "main.py",
        "hello world",
        "print(1)",
        "/etc/issue/now",
        "/etc/hostname",
        "",
    ]
    assert (build.settings.user, build.settings.working_dir, build.settings.env["GREETING"]) == ("user", "/srv", "a b")
    assert build.settings.start_command == "cat /srv/app/main.py"
    again = await bench.build(TWO_STAGES, context=archive(**{"app/main.py": b"print(1)\n"}))
    assert again.root == build.root
    assert "CACHED RUN sleep 1" in await bench.log(again)
    changed = await bench.build(TWO_STAGES + "RUN sleep 1; whoami", context=archive(**{"app/main.py": b"print(1)\n"}))
    log = await bench.log(changed)
    assert ("CACHED RUN sleep 1" in log, "\nuser" in log) == (True, True), log


async def test_cache_of_a_key_is_not_used_for_another_key(bench: Bench) -> None:
    text = "FROM base\nRUN sleep 1; echo ran\n"
    for principal in (ALICE, BOB):
        build = await bench.build(text, principal)
        assert build.status is BuildStatus.READY, build.error
        assert "\nran" in await bench.log(build)
        assert "CACHED" in await bench.log(await bench.build(text, principal))


@pytest.mark.parametrize(
    "command, reason",
    [
        ("echo first; sleep 0.2; exit 3", "exit code 3. The last lines of its output:\nfirst"),
        ("cat /dev/zero > /zeros", "No space left on device"),
        ("yes", "bytes of output, the maximum"),
        ("head -c 100000000 /dev/zero | tr '\\\\0' x", "bytes of output, the maximum"),
        ("bomb() { bomb | bomb & }; bomb; sleep 1; ls / > /dev/null || exit 9; while true; do :; done", "exit code"),
    ],
)
async def test_hostile_command_ends_its_build_only(bench: Bench, command: str, reason: str) -> None:
    hostile = await bench.start(f"FROM base\nRUN {command}\n", ALICE)
    good = await bench.start("FROM base\nRUN sleep 1.5; date\n", BOB)
    await asyncio.gather(bench.runtime.wait(hostile.id), bench.runtime.wait(good.id))
    failed = await bench.node.template_builds.get_build(ALICE, hostile.id)
    assert failed.status is BuildStatus.FAILED
    assert failed.step == "2"
    assert "Step 2 (RUN" in failed.error
    assert reason in failed.error
    assert len(await bench.log(failed)) < 2 * MIB
    assert (await bench.node.template_builds.get_build(BOB, good.id)).status is BuildStatus.READY

"""Promise: a root image has exactly the files that the layers of an image give together, and boots whatever the image contains.

Each image is compared entry by entry in a sandbox that starts from it, with the guest's own interpreter: the images need no Python and no shell.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import subprocess
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.builds.merged_root_images import KIND, MergedRootImages
from sandlot.core.ports import ResolvedTemplate
from sandlot.images import tree
from sandlot.images.recipe_files import shipped
from sandlot.images.store import ImageStore
from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.model.access import INTERNAL, LOCAL, OPERATOR, Principal
from sandlot.model.errors import InvalidRequestError, LimitError, NotFoundError
from sandlot.model.images import Layer
from sandlot.model.sandboxes import CreateSandboxParams, SandboxFilter
from sandlot.model.specs import ProcessSpec, RootFs, TemplateRef, User
from sandlot.model.templates import BuiltRoot, TemplateDefaults
from sandlot.server.composition import RunningService, open_service
from sandlot.server.image_templates import ImageTemplates
from tests.support.cache import CACHE_DIR
from tests.support.image_layers import FOLDER, HARDLINK, StoredLayer, entry, layer_of
from tests.support.roots import BUSYBOX
from tests.support.saving import BASE, settings_of

pytestmark = pytest.mark.slow

LIST = """
import json, os, stat, sys, zlib
found, first, pending = [], {}, ["/"]
while pending:
    folder = pending.pop()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if path in ("/.sandlot", "/dev", "/proc", "/sys", "/run", "/tmp", "/etc/resolv.conf"):
            continue
        status = os.lstat(path)
        content = ""
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = str(zlib.crc32(file.read()))
        elif stat.S_ISDIR(status.st_mode):
            pending.append(path)
        attributes = {} if stat.S_ISLNK(status.st_mode) else {
            key: os.getxattr(path, key, follow_symlinks=False).hex() for key in os.listxattr(path, follow_symlinks=False)
        }
        same = "" if stat.S_ISDIR(status.st_mode) else first.setdefault((status.st_dev, status.st_ino), path)
        links = 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink
        found.append((path, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, links, same, attributes, content))
sys.stdout.write(json.dumps(sorted(found)))
"""
"""Prints the properties of all entries: path, mode, owner, group, time, number and first of the hard links, attributes, target or checksum."""

Listing = dict[str, list[Any]]


class RootTemplates(ImageTemplates):
    """The templates of the service, and templates whose root file systems are root images.

    Attributes:
        roots: Name -> root image.
    """

    def __init__(self, store: ImageStore) -> None:
        super().__init__(store)
        self.roots: dict[str, RootFs] = {}

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the template of a name."""
        return TemplateRef(LOCAL, name) if name in self.roots else await super().find(principal, name)

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return what sandboxes of a template get."""
        return TemplateDefaults() if ref.name in self.roots else await super().defaults(ref)

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        """Return the build of a template."""
        root = self.roots.get(ref.name)
        return await super().build(ref, images=images) if root is None else ResolvedTemplate(root, {"PATH": "/bin:/usr/bin"})

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build with a digest."""
        return await self.build(ref, images=True) if ref.name in self.roots else await super().at(ref)


class Bench:
    """A service that makes root images and starts sandboxes from them."""

    def __init__(self, service: RunningService, templates: RootTemplates, builder: MergedRootImages, cache: Path) -> None:
        self.service, self.templates, self.builder, self.cache = service, templates, builder, cache
        self.lines: list[str] = []

    async def ensure(self, layers: Iterable[StoredLayer], base: str = "") -> RootFs:
        """Make the root image of layers, on top of the image of a built-in template."""
        stored = {each.layer.digest: each for each in layers}
        image = self.templates._store.find(base) if base else None  # noqa: SLF001 - the store of this test
        root = BuiltRoot(tuple(each.layer for each in layers), 0, "" if image is None else image.digest, base)

        async def read(layer: Layer) -> AsyncIterator[bytes]:
            data = stored[layer.digest].stored
            for start in range(0, len(data), 1 << 20):
                yield data[start : start + (1 << 20)]

        self.lines.clear()
        return await self.builder.ensure(root, read, self.lines.append)

    async def listing(self, root: RootFs) -> Listing:
        """Return all entries that a sandbox of a root image shows."""
        result = await self.run(root, *INTERPRETER_ARGV, "-c", LIST, user=User.ROOT)
        return {each[0]: each for each in json.loads(result)}

    async def run(self, root: RootFs, *argv: str, user: User = User.USER) -> str:
        """Run a program in a new sandbox of a root image and return its output."""
        self.templates.roots["made"] = root
        sandbox = await self.service.node.sandboxes.create(OPERATOR, replace(BASE, template="made"))
        try:
            chunks: list[bytes] = []
            done = await self.service.node.processes.run(
                OPERATOR, sandbox.id, ProcessSpec(argv, user=user, cwd="/"), on_output=lambda output: chunks.append(output.data)
            )
            assert done.outcome.exit_code == 0, b"".join(chunks)[-2000:]
            return b"".join(chunks).decode()
        finally:
            await self.service.node.sandboxes.kill(OPERATOR, sandbox.id)


@pytest.fixture(scope="module")
async def bench(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bench]:
    store = ImageStore(CACHE_DIR, {**shipped(), "busybox": BUSYBOX})
    templates, cache = RootTemplates(store), tmp_path_factory.mktemp("cache")
    settings = settings_of(state_dir, memory_ratio=100.0, disk_ratio=100.0, pids_ratio=100.0)
    async with open_service(settings, templates=templates) as service:
        builder = MergedRootImages(store, cache, reserve_bytes=0)
        builder.connect(service.node)
        yield Bench(service, templates, builder, cache)
        await builder.aclose()


def archive_of(root: Path, *options: str) -> bytes:
    """Return an archive of a folder."""
    argv = ["tar", "--create", "--format=posix", "--numeric-owner", "--xattrs", "--xattrs-include=*", *options, f"--directory={root}", "."]
    return subprocess.run(argv, check=True, capture_output=True).stdout


def expected(root: Path) -> Listing:
    """Return the entries of a folder, in the form of ``LIST``."""
    found: Listing = {}
    first: dict[int, str] = {}
    links = Counter(status.st_ino for _, status in tree.walk(root))  # the cache has further links of files of an image
    for path, status in sorted(tree.walk(root), key=lambda each: _order(each[0])):
        content, attributes = "", {}
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(root / path)  # noqa: PTH115 - a Path would change the target
        else:
            attributes = {key: os.getxattr(root / path, key, follow_symlinks=False).hex() for key in os.listxattr(root / path, follow_symlinks=False)}
        if stat.S_ISREG(status.st_mode):
            content = str(zlib.crc32((root / path).read_bytes()))
        is_folder = stat.S_ISDIR(status.st_mode)
        same = "" if is_folder else first.setdefault(status.st_ino, f"/{path}")
        numbers = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, 1 if is_folder else links[status.st_ino])
        found[f"/{path}"] = [f"/{path}", *numbers, same, attributes, content]
    return found


def _order(path: str) -> tuple[Any, ...]:
    return tuple(path.split("/"))


def compare(found: Listing, wanted: Listing, changed: Iterable[str] = ()) -> None:
    """Check that a sandbox has exactly the wanted entries, apart from what the layout adds."""
    added = {
        "/etc", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/passwd", "/home", "/home/user", "/home/user/.local", "/home/user/.local/bin",
        "/output", "/root", "/usr", "/usr/bin", "/usr/bin/sudo", "/var", "/var/tmp", "/workspace", *changed,
    }  # fmt: skip
    skipped = {"/dev", "/proc", "/sys", "/run", "/tmp", "/etc/resolv.conf"}
    wanted = {path: each for path, each in wanted.items() if not any(f"{path}/".startswith(f"{top}/") for top in skipped)}
    assert set(found) - set(wanted) - added == set()
    assert set(wanted) - set(found) == set()
    different = {path: (each, found[path]) for path, each in wanted.items() if found[path] != each and path not in added}
    assert not different, list(different.values())[:5]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[StoredLayer, StoredLayer], Path]:
    """Two layers on each other, the lower one of Debian, and a folder with the files that they give together."""
    image = ImageStore(CACHE_DIR, shipped()).ensure("builder").path
    folder = tmp_path_factory.mktemp("debian")
    low, high = folder / "low", folder / "high"
    subprocess.run(["cp", "-a", "--reflink=auto", image, low], check=True)
    shutil.rmtree(low / "usr/share")
    data = low / "data"
    (data / "opaque/below").mkdir(parents=True)
    (data / "opaque/below/hidden").write_text("low")
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755), ("both", 0o6711)):
        (data / name).write_text(name)
        (data / name).chmod(mode)
    (data / "sticky").mkdir()
    (data / "sticky").chmod(0o3777)
    (data / "sticky/inside").write_text("capable")
    (data / "first").write_text("linked")
    for name in ("second", "third"):
        os.link(data / "first", data / name)
    os.link(data / "setuid", data / "setuid-again")
    os.setxattr(data / "setgid", "user.note", b"a\xffb")
    os.setxattr(data / "sticky/inside", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.setxattr(data / "sticky", "user.folder", b"yes")
    os.chown(data / "both", 1234, 70_000)
    (data / "gone").write_text("low")
    (data / "link").symlink_to("/nowhere/../else")
    os.mkfifo(data / "pipe")
    (data / "n\udcffme").write_text("odd")
    os.utime(data / "first", ns=(0, 1_700_000_000_123_456_789))
    os.utime(data / "sticky", ns=(0, 999))
    lower = layer_of(archive=archive_of(low))

    (high / "data/opaque").mkdir(parents=True)
    (high / "data/opaque/shown").write_text("high")
    (high / "data/second").write_text("no link any more")
    shutil.copystat(data, high / "data")
    (high / "usr/lib").mkdir(parents=True)
    (high / "usr/lib/file").write_text("x" * 3_000_000)
    reference = folder / "reference"
    low.rename(reference)
    (reference / "data/gone").unlink()
    (reference / "data/second").unlink()
    shutil.rmtree(reference / "data/opaque")
    subprocess.run(["cp", "-a", f"{high}/.", reference], check=True)
    for name in ("data/.wh.gone", "data/opaque/.wh..wh..opq"):
        (high / name).write_text("")
    for name in ("data", "data/opaque"):  # both have changed with the whiteouts
        shutil.copystat(reference / name, high / name)
    plain = archive_of(high)
    os.removexattr(reference / "data/sticky/inside", "security.capability")  # gVisor has none
    return (lower, layer_of(archive=plain, stored=plain)), reference


async def test_debian_image_of_two_layers_is_the_same_in_a_sandbox(bench: Bench, debian: tuple[tuple[StoredLayer, StoredLayer], Path]) -> None:
    layers, reference = debian
    root = await bench.ensure(layers)
    compare(await bench.listing(root), expected(reference))
    assert (await bench.run(root, "/usr/bin/python3", "-c", "import os; print(os.getuid(), os.environ['HOME'])")).split() == ["1000", "/home/user"]
    assert (await bench.run(root, "sudo", "id", "-u")).strip() == "0"


@pytest.mark.soak
async def test_root_images_of_equal_layers_are_equal(bench: Bench, debian: tuple[tuple[StoredLayer, StoredLayer], Path]) -> None:
    root = await bench.ensure(debian[0])
    digests = []
    for _ in range(2):
        assert root.image is not None
        assert root.index is not None
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in (root.image, root.index)])
        shutil.rmtree(bench.cache / KIND / root.digest)
        root = await bench.ensure(debian[0])
    assert digests[0] == digests[1]


async def test_busybox_without_accounts_boots_and_a_layer_of_zstd_is_read(bench: Bench) -> None:
    image = bench.templates._store.ensure("busybox").path  # noqa: SLF001 - the store of this test
    plain = archive_of(image / "bin", "--transform=s,^\\.,./bin,")
    done = await asyncio.create_subprocess_exec("zstd", "-qc", stdin=subprocess.PIPE, stdout=subprocess.PIPE) if shutil.which("zstd") else None
    stored = None if done is None else (await done.communicate(plain))[0]
    root = await bench.ensure([layer_of(archive=plain, stored=stored), layer_of(entry("bin/again", kind=HARDLINK, target="bin/busybox"))])
    listing = await bench.listing(root)
    assert listing["/bin/again"][5:7] == listing["/bin/busybox"][5:7] == [2, "/bin/again"]
    assert await bench.run(root, "/bin/sh", "-c", "id; cat /etc/passwd") == (
        "uid=1000(user) gid=1000(user) groups=1000(user)\nroot:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"
    )


async def test_image_without_any_program_boots(bench: Bench) -> None:
    root = await bench.ensure([layer_of(entry("only", b"text"))])
    assert await bench.run(root, *INTERPRETER_ARGV, "-c", "print(open('/only').read())") == "text\n"


def apply_changes(image: Path, reference: Path, layer: StoredLayer) -> None:
    """Make a copy of an image with the changes of the next test."""
    subprocess.run(["cp", "-a", "--reflink=auto", image, reference], check=True)
    for name in ("ls", "cat", "vi"):
        (reference / "bin" / name).unlink()
    shutil.rmtree(reference / "var")
    (reference / "var").mkdir()
    argv = ["tar", "--extract", "--preserve-permissions", "--same-owner", "--exclude=.wh.*", f"--directory={reference}"]
    subprocess.run(argv, input=layer.archive, check=True)
    for name in ("bin", "var"):  # the layer has no entries of these folders
        shutil.copystat(image / name, reference / name)


async def test_layer_on_a_built_in_template_changes_only_its_files(bench: Bench, tmp_path: Path) -> None:
    image, reference = bench.templates._store.ensure("busybox"), tmp_path / "reference"  # noqa: SLF001 - the store of this test
    layer = layer_of(
        *(entry(f"bin/.wh.{name}") for name in ("ls", "nothing")),
        entry("bin/again", kind=HARDLINK, target="bin/busybox"),
        entry("bin/cat", kind=FOLDER, mode=0o2711, owner=70_000),
        entry("bin/cat/setuid", b"new", mode=0o6755, mtime="1700000000.5"),
        entry("bin/vi", b"a file now" * 1000),
        entry("var/.wh..wh..opq"),
        entry("var/lib", b"no folder any more"),
    )
    roots = [await bench.ensure([layer], base="busybox")]
    apply_changes(image.path, reference, layer)
    assert roots[0].image is not None
    contents = [roots[0].image.read_bytes()]
    compare(await bench.listing(roots[0]), expected(reference))
    shutil.rmtree(bench.cache / KIND / roots[0].digest)  # as if it was evicted
    await bench.ensure([layer], base="busybox")
    contents.append(roots[0].image.read_bytes())
    assert contents[0] == contents[1]


async def test_refused_layer_is_named_and_nothing_is_left(bench: Bench) -> None:
    good, bad = layer_of(entry("etc/motd", b"hello")), layer_of(entry("../escape", b"x"))
    with pytest.raises(InvalidRequestError) as error:
        await bench.ensure([good, bad])
    assert bad.layer.digest in error.value.message
    assert error.value.fields == {"layer": bad.layer.digest, "entry": "../escape"}
    await nothing_is_left(bench)


async def test_bomb_is_refused_and_nothing_is_left(bench: Bench) -> None:
    bomb = layer_of(entry("zeros", bytes(64 << 20)))
    builder = bench.builder
    limits = builder._limits  # noqa: SLF001 - in place of a larger bomb
    builder._limits = replace(limits, ratio_free_bytes=1 << 20)  # noqa: SLF001
    try:
        with pytest.raises(LimitError) as error:
            await bench.ensure([bomb])
    finally:
        builder._limits = limits  # noqa: SLF001
    assert error.value.fields["layer"] == bomb.layer.digest
    await nothing_is_left(bench)


async def nothing_is_left(bench: Bench) -> None:
    """Check that a failed build left neither files nor a sandbox."""
    assert list((bench.cache / "tmp").iterdir()) == []
    page = await bench.service.node.sandboxes.list(INTERNAL, SandboxFilter(), after=None, limit=100)
    assert [each.id for each in page.items if not each.is_over] == []


async def test_image_of_the_builder_is_no_template(bench: Bench) -> None:
    with pytest.raises(NotFoundError):
        await bench.service.node.sandboxes.create(OPERATOR, CreateSandboxParams(template="builder"))

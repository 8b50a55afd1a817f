"""Building: what goes into a fresh folder so that it becomes an image, an interpreter, a guest layer.

Each function fills one folder of a :class:`~sandlot.images.shelf.Shelf` and is told nothing about the cache around it. What
they decide is in :mod:`~sandlot.images.plan` and :mod:`~sandlot.host.apt_sources`; here it is done, in order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sandlot.host import apt_sources
from sandlot.host.locked_folder import remove_tree
from sandlot.images import furnish, interpreter, plan, tree
from sandlot.images.process import Runner, output_of, require
from sandlot.images.progress import Meter, Reporter
from sandlot.images.recipe import Debian, Recipe
from sandlot.link import payload
from sandlot.model.errors import ErrorCode, HostError

TREE = "tree"
"""The folder with the file system, in everything on a shelf."""
MANIFEST = "manifest.json"
"""What it is, beside the tree."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LOCK_INSIDE = f"{plan.WHEELS}/requirements.lock"
_LIBRARIES = "/usr/local/lib"


def architecture() -> str:
    """Debian's word for this machine.

    Raises:
        HostError: There is no gVisor for it.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise HostError(f"Sandboxes do not run on {machine}.", code=ErrorCode.HOST_NOT_READY, hint="Use an x86-64 or 64-bit ARM machine.")
    return _ARCHITECTURES[machine]


def image(folder: Path, recipe: Recipe, parent: Path | None, runner: Runner, report: Reporter) -> None:
    """Build an image.

    Args:
        folder: The folder to fill: ``tree`` and ``manifest.json``.
        recipe: What to build.
        parent: The tree of the image that it begins with.
        runner: Runs the commands.
        report: Told what is done.

    Raises:
        HostError: Something failed; the message has the end of its output and where the log lies.
        LimitError: The disk is full.
    """
    _need_root()
    began_s = time.time()
    root = folder / TREE
    scratch = folder.parent
    if recipe.debian is not None:
        debian(recipe.debian, root, scratch, runner, report)
        furnish.unsource(root)
        furnish.furnish(root, recipe.files)
    elif parent is not None:
        report.step(f"copying {recipe.parent}")
        runner.run(f"copying {recipe.parent}", plan.copy_argv(parent, root), env=os.environ)
        furnish.furnish(root, recipe.files)
    furnish.devices(root)
    if recipe.lock:
        _python(recipe.lock, root, scratch, runner, report, began_s)
    for step in recipe.run:
        report.step(f"running {step.argv[0]}")
        runner.run(f"running {step.argv[0]}", plan.inside_argv(root, step.argv, step.user), env=plan.inside_env(step.user))
    furnish.clean(root)
    furnish.give(root)
    if parent is not None:
        tree.share(parent, root)
    tree.settle_times(root, since_s=began_s, to_s=plan.BUILD_TIME_S)
    report.step("summing up")
    _write_manifest(folder, root, {"name": recipe.name, "built_s": int(began_s)})


def debian(wanted: Debian, root: Path, scratch: Path, runner: Runner, report: Reporter) -> None:
    """Make a tree of Debian packages from the machine's own mirrors.

    Args:
        wanted: The packages.
        root: The folder to make.
        scratch: A folder for what is in between.
        runner: Runs mmdebstrap.
        report: Told what is done.
    """
    require("mmdebstrap", "unshare", "setpriv")
    sources = _sources(wanted.suite)
    sources_file = scratch / "image.sources"
    sources_file.write_text(apt_sources.sources_text(sources), encoding="utf-8")
    options_file = scratch / "apt.conf"
    netrc = {name: path for name, path in (("netrc", "/etc/apt/auth.conf"), ("netrcparts", "/etc/apt/auth.conf.d")) if Path(path).exists()}
    options_file.write_text(apt_sources.options_text(output_of(("apt-config", "dump"))) + apt_sources.credentials_text(netrc), encoding="utf-8")
    argv = plan.mmdebstrap_argv(
        wanted,
        root,
        sources=sources_file if sources else None,
        apt_options=options_file,
        file_mirrors=any(source.uri.startswith(("file:", "copy:")) for source in sources),
    )
    report.step(f"installing Debian {wanted.suite} with mmdebstrap")
    meter = Meter()
    try:
        runner.run("installing the Debian packages", argv, env=plan.mmdebstrap_env(os.environ), on_line=lambda line: _detail(report, meter, line))
    finally:
        # They may hold the address and the password of a private mirror.
        sources_file.unlink(missing_ok=True)
        options_file.unlink(missing_ok=True)


def guest_interpreter(folder: Path, runner: Runner, report: Reporter) -> None:
    """Build the guest's interpreter: ``tree`` is what ``/.sandlot`` begins with."""
    _need_root()
    scratch = folder.parent
    extracted = scratch / "debian"
    debian(interpreter.DEBIAN, extracted, scratch, runner, report)
    report.step("assembling")
    root = folder / TREE
    root.mkdir(mode=0o755)
    interpreter.assemble(extracted, root, scratch, runner)
    tree.settle_times(root, since_s=0, to_s=plan.BUILD_TIME_S)
    _write_manifest(folder, root, {"name": "interpreter", "built_s": int(time.time())})


def guest_layer(folder: Path, base: Path, runner: Runner) -> None:
    """Build ``/.sandlot``: an interpreter and the guest's own code.

    Args:
        folder: The folder to fill.
        base: The interpreter's tree.
        runner: Runs it, to compile.

    Raises:
        InternalError: The guest imports what the interpreter does not have.
    """
    sources = dict(payload.guest_sources())
    programs = dict(payload.programs())
    # Kernels run on the image's python and node, which have everything; sudo.py and shell.py on the guest's, beside the others.
    own = {**sources, **{name: text for name, text in programs.items() if not payload.runs_on_the_image(name)}}
    interpreter.check_imports(own, base, beside=[name.removesuffix(".py") for name in programs])

    root = folder / TREE
    tree.link(base, root)
    below = folder.parent / "guest"
    for inside, text in sources.items():
        (below / inside).parent.mkdir(parents=True, exist_ok=True)
        (below / inside).write_bytes(text)
    interpreter.compile_zip(interpreter.argv_in(base), below, root / "guest.zip", f"{payload.GUEST_ROOT}/guest.zip", runner)
    for name, text in programs.items():
        (root / "programs" / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (root / "programs" / name).write_bytes(text)
        (root / "programs" / name).chmod(0o644)
    (root / payload.VOLUMES).mkdir(mode=0o755)
    tree.settle_times(root, since_s=plan.BUILD_TIME_S + 1, to_s=plan.BUILD_TIME_S)
    _write_manifest(folder, root, {"name": "guest", "built_s": int(time.time())})


def compose(folder: Path, image_tree: Path, guest_tree: Path) -> None:
    """Put an image and a guest layer together, by hard links: nothing is copied and nothing mounted."""
    root = folder / TREE
    tree.link(image_tree, root)
    tree.link(guest_tree, root / payload.GUEST_ROOT.strip("/"))
    for path in (root, root / payload.GUEST_ROOT.strip("/")):
        os.utime(path, (plan.BUILD_TIME_S, plan.BUILD_TIME_S))


def manifest(folder: Path) -> Mapping[str, object]:
    """What a finished folder says that it is."""
    words: dict[str, object] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return words


def _python(lock: str, root: Path, scratch: Path, runner: Runner, report: Reporter, began_s: float) -> None:
    """Download the locked wheels outside, install them inside."""
    loader, libraries = interpreter.loader_of(root)
    python = plan.own_python_argv(root, loader, libraries, Path("usr/bin/python3"))
    wheels = root / plan.WHEELS.strip("/")
    wheels.mkdir(mode=0o700)
    lock_file = scratch / "requirements.lock"
    lock_file.write_text(lock, encoding="utf-8")
    total = sum(1 for line in lock.splitlines() if "==" in line)

    report.step(f"downloading {total} Python packages")
    meter = Meter(total)
    runner.run(
        "downloading the Python packages",
        plan.download_argv(python, lock_file, wheels),
        env=plan.download_env(os.environ),
        on_line=lambda line: _detail(report, meter, line),
    )
    lock_file.rename(root / _LOCK_INSIDE.strip("/"))
    report.step("installing the Python packages")
    runner.run("installing the Python packages", plan.inside_argv(root, plan.install_argv(_LOCK_INSIDE)), env=plan.inside_env())
    remove_tree(wheels)
    tree.settle_times(root, since_s=began_s, to_s=plan.BUILD_TIME_S)
    folders = sorted(f"{_LIBRARIES}/{path.parent.name}/{path.name}" for path in (root / _LIBRARIES.strip("/")).glob("python3*/dist-packages"))
    modules = sum(1 for _ in (root / _LIBRARIES.strip("/")).rglob("*.py"))
    report.step(f"compiling {modules} Python modules")
    meter = Meter(modules)
    runner.run(
        "compiling the Python packages",
        plan.inside_argv(root, plan.compile_argv(folders)),
        env=plan.inside_env(),
        on_line=lambda line: _detail(report, meter, line),
    )


def _sources(suite: str) -> list[apt_sources.Source]:
    found = []
    for target, asked in apt_sources.choose(apt_sources.parse_targets(output_of(("apt-get", "indextargets"))), suite, architecture()):
        entry = Path(target.entry.rpartition(":")[0])
        signed_by = apt_sources.signed_by(target.entry, entry.read_text(encoding="utf-8")) if entry.is_file() else ""
        if not signed_by and _DEBIAN_KEYRING.is_file():
            signed_by = str(_DEBIAN_KEYRING)
        found.append(apt_sources.Source(uri=target.uri, suite=asked, signed_by=signed_by))
    return found


def _detail(report: Reporter, meter: Meter, line: str) -> None:
    text = meter.feed(line)
    if text is not None:
        report.detail(text)


def _write_manifest(folder: Path, root: Path, words: Mapping[str, object]) -> None:
    (folder / MANIFEST).write_text(json.dumps({**words, **asdict(tree.summary(root))}, indent=1) + "\n", encoding="utf-8")


def _need_root() -> None:
    if os.geteuid() != 0:
        raise HostError("Building an image needs root: its files belong to more than one user.", code=ErrorCode.HOST_NOT_READY, hint="Run as root.")

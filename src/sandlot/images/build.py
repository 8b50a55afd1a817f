"""Builds images, interpreters, guest layers and roots.

Each ``build_*`` function fills one folder of a :class:`~sandlot.images.artifact_cache.ArtifactCache`, whose lock the caller holds. The command lines
come from :mod:`~sandlot.images.command_lines`, and the apt sources from :mod:`~sandlot.host.apt_sources`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from sandlot.host import apt_sources
from sandlot.host.locked_folder import remove_tree
from sandlot.images import command_lines, interpreter, rootfs_layout, tree
from sandlot.images.command import CommandRunner, output_of, require_programs
from sandlot.images.progress import OutputParser, ProgressReporter
from sandlot.images.recipe import Debian, Npm, Recipe, environment, languages_of
from sandlot.link import payload
from sandlot.model.errors import HostError
from sandlot.model.specs import User

TREE = "tree"
"""Name of the folder with the built tree of files, in every artifact."""
MANIFEST = "manifest.json"
"""Name of the JSON file beside :data:`TREE` with the name, digest and size of the artifact."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LOCK_INSIDE = f"{command_lines.WHEELS}/requirements.lock"
_LIBRARIES = "/usr/local/lib"
_NPM_MODULES = "/usr/local/lib/node_modules"
_NPM_CONFIGS = ("/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc")
"""Configuration of npm for all users of a machine, by the prefix of its Node.js."""


def architecture() -> str:
    """Return Debian's name of this machine's architecture.

    Raises:
        HostError: Sandboxes do not run on this architecture.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise HostError(f"Sandboxes do not run on {machine}.", hint="Use a machine with an x86-64 or 64-bit ARM processor.")
    return _ARCHITECTURES[machine]


def build_image(folder: Path, line: Sequence[Recipe], parent: Path | None, runner: CommandRunner, report: ProgressReporter) -> None:
    """Build the image of a recipe. The manifest has the versions of the languages of the recipe and its ancestors.

    Args:
        folder: Empty folder to fill with ``tree`` and ``manifest.json``. Temporary files are written into its parent folder.
        line: Recipe of the image and its ancestors (:func:`~sandlot.images.recipe.lineage`).
        parent: Tree of the parent image. None if the recipe begins with Debian packages.
        runner: Runs the commands of the build.
        report: Reports the progress of the build.

    Raises:
        HostError: A command failed, or this process is not root. The message contains the last lines of the command's output.
        LimitError: The disk is full.
    """
    _require_root()
    started_s = time.time()
    recipe = line[-1]
    root = folder / TREE
    scratch = folder.parent
    if recipe.debian is not None:
        install_debian(recipe.debian, root, scratch, runner, report)
        rootfs_layout.remove_apt_sources(root)
        rootfs_layout.apply_layout(root, recipe.files)
    elif parent is not None:
        report.step(f"copying {recipe.parent}")
        manifest = read_manifest(parent.parent)
        runner.run(f"copying {recipe.parent}", command_lines.copy_argv(parent, root), env=os.environ)
        if read_manifest(parent.parent) != manifest:
            raise HostError(f"The image {recipe.parent} was updated while it was copied.", hint="Build the image again.")
        rootfs_layout.apply_layout(root, recipe.files)
    rootfs_layout.create_device_nodes(root)
    if recipe.lock:
        _install_python(recipe.lock, root, scratch, runner, report, started_s)
    for step in recipe.run:
        report.step(f"running {step.argv[0]}")
        runner.run(f"running {step.argv[0]}", command_lines.inside_argv(root, step.argv, step.user), env=command_lines.inside_env(step.user))
    if recipe.npm is not None:  # after the steps, one of which may put Node.js in its place
        _install_npm(recipe.npm, root, scratch, runner, report)
    versions = _probe_versions(line, root, runner, report)
    rootfs_layout.remove_build_traces(root)
    rootfs_layout.chown_usr_local(root)
    if parent is not None:
        tree.share_unchanged(parent, root)
    tree.normalize_times(root, since_s=started_s, to_s=command_lines.BUILD_TIME_S)
    report.step("computing the digest")
    _write_manifest(folder, root, {"name": recipe.name, "built_s": int(started_s), "languages": versions})


def install_debian(debian: Debian, root: Path, scratch: Path, runner: CommandRunner, report: ProgressReporter) -> None:
    """Create a tree with Debian packages, downloaded from the mirrors that this machine is configured to use.

    Args:
        debian: Packages to install.
        root: Folder to create for the tree.
        scratch: Folder for temporary files.
        runner: Runs mmdebstrap.
        report: Reports the progress of the build.
    """
    require_programs("mmdebstrap", "unshare", "setpriv")
    sources = _apt_sources(debian.suite)
    sources_file = scratch / "image.sources"
    sources_file.write_text(apt_sources.sources_text(sources), encoding="utf-8")
    options_file = scratch / "apt.conf"
    netrc = {name: path for name, path in (("netrc", "/etc/apt/auth.conf"), ("netrcparts", "/etc/apt/auth.conf.d")) if Path(path).exists()}
    options_file.write_text(apt_sources.options_text(output_of(("apt-config", "dump"))) + apt_sources.credentials_text(netrc), encoding="utf-8")
    argv = command_lines.mmdebstrap_argv(
        debian,
        root,
        sources=sources_file if sources else None,
        apt_options=options_file,
        file_mirrors=any(source.uri.startswith(("file:", "copy:")) for source in sources),
    )
    report.step(f"installing Debian {debian.suite} with mmdebstrap")
    parser = OutputParser()
    try:
        runner.run(
            "installing the Debian packages",
            argv,
            env=command_lines.mmdebstrap_env(os.environ),
            on_line=lambda line: _report_detail(report, parser, line),
        )
    finally:
        # Both files may contain the address and the password of a private mirror.
        sources_file.unlink(missing_ok=True)
        options_file.unlink(missing_ok=True)


def build_interpreter(folder: Path, runner: CommandRunner, report: ProgressReporter) -> None:
    """Build the guest's interpreter.

    Args:
        folder: Empty folder to fill with ``tree`` and ``manifest.json``. Temporary files are written into its parent folder.
        runner: Runs the commands of the build.
        report: Reports the progress of the build.
    """
    _require_root()
    scratch = folder.parent
    extracted = scratch / "debian"
    install_debian(interpreter.DEBIAN, extracted, scratch, runner, report)
    report.step("assembling")
    root = folder / TREE
    root.mkdir(mode=0o755)
    interpreter.assemble(extracted, root, scratch, runner)
    tree.normalize_times(root, since_s=0, to_s=command_lines.BUILD_TIME_S)
    _write_manifest(folder, root, {"name": "interpreter", "built_s": int(time.time())})


def build_guest_layer(folder: Path, base: Path, runner: CommandRunner) -> None:
    """Build a guest layer, the content of ``/.sandlot``: the guest's interpreter and the guest's own code.

    Args:
        folder: Empty folder to fill with ``tree`` and ``manifest.json``. Temporary files are written into its parent folder.
        base: Tree of the built interpreter.
        runner: Runs the interpreter, to compile the guest.

    Raises:
        InternalError: The guest imports a module that the interpreter does not have.
    """
    sources = dict(payload.guest_sources())
    programs = dict(payload.programs())
    # Programs that run on the image's own interpreter, such as the Python kernel, are not checked, because that interpreter has the whole standard
    # library.
    own = {**sources, **{name: text for name, text in programs.items() if not payload.runs_on_the_image(name)}}
    interpreter.check_imports(own, base, beside=[Path(path).stem for path in programs])

    root = folder / TREE
    tree.link_tree(base, root)
    below = folder.parent / "guest"
    for inside, text in sources.items():
        (below / inside).parent.mkdir(parents=True, exist_ok=True)
        (below / inside).write_bytes(text)
    interpreter.compile_zip(interpreter.argv_in(base), below, root / "guest.zip", f"{payload.GUEST_ROOT}/guest.zip", runner)
    for path, text in programs.items():
        (root / path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (root / path).write_bytes(text)
        (root / path).chmod(0o644)
    for path, program in payload.MACHINE_CODE.items():
        (root / path).write_bytes(program)
        (root / path).chmod(0o755)
    (root / payload.VOLUMES).mkdir(mode=0o755)
    tree.normalize_times(root, since_s=command_lines.BUILD_TIME_S + 1, to_s=command_lines.BUILD_TIME_S)
    _write_manifest(folder, root, {"name": "guest", "built_s": int(time.time())})


def build_root(folder: Path, image_tree: Path, guest_tree: Path) -> None:
    """Build a root: combine an image and a guest layer by hard links, without copying or mounting.

    Args:
        folder: Empty folder. The root is built in its subfolder ``tree``.
        image_tree: Tree of the image.
        guest_tree: Tree of the guest layer. It becomes ``/.sandlot``.
    """
    root = folder / TREE
    tree.link_tree(image_tree, root)
    tree.link_tree(guest_tree, root / payload.GUEST_ROOT.strip("/"))
    for path in (root, root / payload.GUEST_ROOT.strip("/")):
        os.utime(path, (command_lines.BUILD_TIME_S, command_lines.BUILD_TIME_S))


def read_manifest(folder: Path) -> Mapping[str, object]:
    """Return the manifest of an artifact, as parsed JSON.

    Args:
        folder: Folder of the artifact.
    """
    manifest: dict[str, object] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _install_python(lock: str, root: Path, scratch: Path, runner: CommandRunner, report: ProgressReporter, started_s: float) -> None:
    """Install the Python packages of a lock: download their wheels outside the tree, then install them inside the tree without network."""
    loader, libraries = interpreter.loader_of(root)
    python = command_lines.own_program_argv(root, loader, libraries, Path("usr/bin/python3"))
    wheels = root / command_lines.WHEELS.strip("/")
    wheels.mkdir(mode=0o700)
    lock_file = scratch / "requirements.lock"
    lock_file.write_text(lock, encoding="utf-8")
    total = sum(1 for line in lock.splitlines() if "==" in line)

    report.step(f"downloading {total} Python packages")
    parser = OutputParser(total)
    runner.run(
        "downloading the Python packages",
        command_lines.download_argv(python, lock_file, wheels),
        env=command_lines.download_env(os.environ),
        on_line=lambda line: _report_detail(report, parser, line),
    )
    lock_file.rename(root / _LOCK_INSIDE.strip("/"))
    report.step("installing the Python packages")
    runner.run(
        "installing the Python packages", command_lines.inside_argv(root, command_lines.install_argv(_LOCK_INSIDE)), env=command_lines.inside_env()
    )
    remove_tree(wheels)
    tree.normalize_times(root, since_s=started_s, to_s=command_lines.BUILD_TIME_S)
    folders = sorted(f"{_LIBRARIES}/{path.parent.name}/{path.name}" for path in (root / _LIBRARIES.strip("/")).glob("python3*/dist-packages"))
    modules = sum(1 for _ in (root / _LIBRARIES.strip("/")).rglob("*.py"))
    report.step(f"compiling {modules} Python modules")
    parser = OutputParser(modules)
    runner.run(
        "compiling the Python packages",
        command_lines.inside_argv(root, command_lines.compile_argv(folders)),
        env=command_lines.inside_env(),
        on_line=lambda line: _report_detail(report, parser, line),
    )


def _install_npm(npm: Npm, root: Path, scratch: Path, runner: CommandRunner, report: ProgressReporter) -> None:
    """Install packages of npm for all programs: download them outside the tree, then run the allowed scripts inside the tree without network."""
    loader, libraries = interpreter.loader_of(root)
    node = command_lines.own_program_argv(root, loader, libraries, Path("usr/local/bin/node"))
    modules = root / _NPM_MODULES.strip("/")
    folder = scratch / "npm"
    folder.mkdir(mode=0o700)
    lock = json.loads(npm.lock)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": lock["packages"][""]["dependencies"]}), encoding="utf-8")
    (folder / "package-lock.json").write_text(npm.lock, encoding="utf-8")
    machine = [Path(path) for path in _NPM_CONFIGS if Path(path).is_file()]
    report.step(f"downloading {len(npm.packages)} npm packages and what they need")
    runner.run(
        "downloading the npm packages",
        command_lines.npm_download_argv(node, modules / "npm/bin/npm-cli.js", folder, machine[-1] if machine else None),
        env=command_lines.npm_download_env(os.environ),
    )
    for entry in sorted((folder / "node_modules").iterdir()):
        if not entry.name.startswith("."):
            entry.rename(modules / entry.name)
    remove_tree(folder)
    report.step("installing the npm packages")
    for names, scripts in ((npm.scripts, True), (tuple(name for name in npm.packages if name not in npm.scripts), False)):
        if names:
            runner.run(
                "installing the npm packages",
                command_lines.inside_argv(root, command_lines.npm_link_argv(names, scripts=scripts)),
                env=command_lines.inside_env(),
            )


def _probe_versions(line: Sequence[Recipe], root: Path, runner: CommandRunner, report: ProgressReporter) -> dict[str, str]:
    """Return the versions of the languages of an image by their names.

    Raises:
        HostError: The image lacks a compiler or interpreter that its recipes declare.
    """
    versions: dict[str, str] = {}
    for language in languages_of(line):
        report.step(f"probing the version of {language.title}")
        printed: list[str] = []
        argv = command_lines.inside_argv(root, language.version_argv, User.USER)
        env = {**command_lines.inside_env(User.USER), **environment(line)}
        runner.run(f"probing the version of {language.title}", argv, env=env, on_line=printed.append)
        versions[language.name] = language.parse_version("\n".join(printed))
    return versions


def _apt_sources(suite: str) -> list[apt_sources.Source]:
    found = []
    for target, suite_name in apt_sources.choose(apt_sources.parse_targets(output_of(("apt-get", "indextargets"))), suite, architecture()):
        entry = Path(target.entry.rpartition(":")[0])
        signed_by = apt_sources.signed_by(target.entry, entry.read_text(encoding="utf-8")) if entry.is_file() else ""
        if not signed_by and _DEBIAN_KEYRING.is_file():
            signed_by = str(_DEBIAN_KEYRING)
        found.append(apt_sources.Source(uri=target.uri, suite=suite_name, signed_by=signed_by))
    return found


def _report_detail(report: ProgressReporter, parser: OutputParser, line: str) -> None:
    text = parser.feed(line)
    if text is not None:
        report.detail(text)


def _write_manifest(folder: Path, root: Path, fields: Mapping[str, object]) -> None:
    (folder / MANIFEST).write_text(json.dumps({**fields, **asdict(tree.summarize(root))}, indent=1) + "\n", encoding="utf-8")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise HostError("Building an image needs root, because its files belong to several users.", hint="Run as root.")

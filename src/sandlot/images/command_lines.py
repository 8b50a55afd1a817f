"""Command lines and environments of the commands that a build runs. Pure.

Invariants:
- Every command is killed when the builder dies (setpriv(1), --pdeathsig). mmdebstrap and all commands inside the tree also have their own mount and
  process namespaces (unshare(1)). So no mount and no process remains when the command has ended, and the host does not see the mounts.
- Commands that run *inside* the tree have no network, no terminal and no environment variable of the host.
- Commands that need the network (apt, pip's downloads) run *outside* the tree, with the machine's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

from sandlot.images.recipe import Debian
from sandlot.model.specs import User

USER_ID = 1000
"""Number that is both the user id and the group id of ``user`` inside an image."""

BUILD_TIME_S = 1_735_689_600
"""Modification time of the files that a build creates (2025-01-01), in seconds since the epoch.

The fixed time makes two builds of the same packages equal. It is not passed to commands as SOURCE_DATE_EPOCH, because py_compile would then write
byte code that reads its source at every import.
"""

WHEELS = "/tmp/.wheels"  # noqa: S108 - a path inside the tree that is being built
"""Path inside the tree of the folder with the downloaded wheels. The folder exists only while the wheels are installed."""

_MACHINE_ENV = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy")
"""Environment variables that name the machine's proxies. They are passed to commands that need the network."""

_PIP_ENV = (
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_KEYRING_PROVIDER",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_CONFIG_DIRS",
    "XDG_CONFIG_HOME",
)
"""Environment variables that say where pip downloads from. They are passed to pip; others, such as PIP_TARGET or PIP_USER, are not."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")


def mmdebstrap_argv(debian: Debian, target: Path, *, sources: Path | None, apt_options: Path, file_mirrors: bool) -> tuple[str, ...]:
    """Return the command that creates a tree with Debian packages (mmdebstrap(1)).

    Args:
        debian: Packages to install.
        target: Folder to create for the tree.
        sources: Path of a deb822 file with the machine's mirrors. None: mmdebstrap's default mirrors.
        apt_options: Path of a file with the machine's apt options, which mmdebstrap does not read by itself.
        file_mirrors: True if a mirror is a folder of this machine. The folder is then mounted into the tree.
    """
    return (
        *_NAMESPACES,
        "--mount-proc",
        "--",
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        "--verbose",
        f"--variant={debian.variant}",
        "--components=main",
        *([f"--include={','.join(debian.packages)}"] if debian.packages else []),
        f"--aptopt={apt_options}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in debian.exclude),
        *(f"--dpkgopt=path-include={pattern}" for pattern in debian.include),
        *(["--hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount"] if file_mirrors else []),
        debian.suite,
        str(target),
        *([str(sources)] if sources is not None else []),
    )


def mmdebstrap_env(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mmdebstrap. Of the machine's environment variables, only those that name proxies are passed on."""
    return {
        **_select(machine, _MACHINE_ENV),
        "PATH": _PATH,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def copy_argv(source: Path, target: Path) -> tuple[str, ...]:
    """Return the command that copies a tree with owners, modes, times and attributes. Disk blocks are shared if the file system supports reflinks."""
    return ("setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", str(source), str(target))


def own_program_argv(root: Path, loader: Path, libraries: Iterable[Path], program: Path) -> tuple[str, ...]:
    """Return the command that starts a program of a tree without chroot, so that the program can read and write files of the host.

    Args:
        root: Folder that contains the tree.
        loader: Path of the tree's dynamic loader, which starts the program.
        libraries: Paths of the tree's library folders.
        program: Path of the program, relative to ``root``.
    """
    return (str(loader), "--library-path", ":".join(str(folder) for folder in libraries), str(root / program))


def mkfs_erofs_argv(program: tuple[str, ...], source: Path, image: Path, uuid: UUID) -> tuple[str, ...]:
    """Return the command that makes an EROFS image of a tree (mkfs.erofs(1)).

    Args:
        program: Command of mkfs.erofs (:func:`own_program_argv`).
        source: Folder with the tree.
        image: File to create.
        uuid: UUID of the image.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *program,
        *("--quiet", "-U", str(uuid), "--mkfs-time", "-T", str(BUILD_TIME_S), "-Enoinline_data"),
        *(str(image), str(source)),
    )


def download_argv(python: tuple[str, ...], lock: Path, wheels: Path) -> tuple[str, ...]:
    """Return the command that downloads the locked wheels with the image's own pip and the machine's configuration of pip.

    Only wheels are downloaded. pip would build a source archive as root, with build requirements whose hashes the lock does not contain.

    Args:
        python: Command of the image's Python (:func:`own_program_argv`).
        lock: Path of the lock file, in pip's requirements format.
        wheels: Folder for the downloaded wheels.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *python,
        *("-I", "-m", "pip", "download", "--no-input", "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", f"--dest={wheels}", f"--requirement={lock}"),
    )


def download_env(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command that downloads wheels. Variables that name the machine's proxies and package sources are passed on."""
    return {
        **_select(machine, (*_MACHINE_ENV, *_PIP_ENV, "HOME")),
        "PATH": machine.get("PATH", _PATH),
        "LC_ALL": "C.UTF-8",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def npm_download_argv(node: tuple[str, ...], npm: Path, folder: Path, global_config: Path | None) -> tuple[str, ...]:
    """Return the command that downloads the packages of a lock into ``folder/node_modules``, without running their install scripts.

    Args:
        node: Command of the image's Node.js (:func:`own_program_argv`).
        npm: Program of the image's npm.
        folder: Folder with ``package.json`` and ``package-lock.json``.
        global_config: The machine's npmrc, which takes the place of the image's. None: the machine has none.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *node,
        *(str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-bin-links"),
        *(f"--prefix={folder}", f"--cache={folder}/.cache", f"--globalconfig={global_config or '/dev/null'}"),
    )


def npm_download_env(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command that downloads packages of npm. Variables that name the machine's proxies and registry are passed on."""
    ours = {name: value for name, value in machine.items() if name.lower().startswith("npm_config_")}
    return {
        **ours,
        **_select(machine, (*_MACHINE_ENV, "NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR", "SSL_CERT_FILE", "HOME")),
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
    }


def npm_link_argv(names: Iterable[str], *, scripts: bool) -> tuple[str, ...]:
    """Return the command that makes the programs of installed packages available inside the tree, and runs their install scripts if ``scripts``."""
    return ("npm", "rebuild", "--global", "--dangerously-allow-all-scripts" if scripts else "--ignore-scripts", *names)


def inside_argv(root: Path, argv: Iterable[str], user: User = User.ROOT) -> tuple[str, ...]:
    """Return the command that runs ``argv`` inside the tree ``root``: with chroot, its own /proc and no network."""
    drop = (f"--setgid={USER_ID}", f"--setuid={USER_ID}") if user == User.USER else ()
    return (*_NAMESPACES, "--net", "--ipc", "--uts", f"--root={root}", "--wd=/", "--mount-proc=/proc", *drop, "--", *argv)


def inside_env(user: User = User.ROOT) -> dict[str, str]:
    """Return the environment of a command that runs inside a tree as ``user``."""
    return {
        "PATH": _PATH,
        "HOME": "/home/user" if user == User.USER else "/root",
        "USER": user.value,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }


def install_argv(lock: str) -> tuple[str, ...]:
    """Return the command that installs the downloaded wheels inside the tree, without compiling them.

    The packages are compiled later (:func:`compile_argv`): byte code contains the time of its source file, and the build changes these times first.

    Args:
        lock: Path of the lock file inside the tree.
    """
    return (
        *("python3", "-m", "pip", "install", "--no-input", "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"),
        *(
            "--root-user-action=ignore",
            "--no-compile",
            "--no-deps",
            "--no-index",
            f"--find-links={WHEELS}",
            "--require-hashes",
            f"--requirement={lock}",
        ),
    )


def compile_argv(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the command that compiles installed Python packages to byte code inside the tree.

    Python compares the time and size in the byte code with the source file (mode ``timestamp``), so users can edit an installed library.

    Args:
        folders: Paths of the package folders inside the tree.
    """
    return ("python3", "-m", "compileall", "-j", "0", "--invalidation-mode=timestamp", *folders)


def _select(machine: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: machine[name] for name in names if name in machine}

"""Command lines and environments of a build's commands. Pure.

Invariants:
- Every command runs in its own mount and process namespaces and ends with the builder, however the builder ends: setpriv(1) sets the
  parent-death signal, and unshare(1) kills its process namespace when it ends. No mount and no process outlives a build, and no mount is
  visible in the host's mount table.
- Commands *inside* the tree have no network, no terminal and no variable of the host's environment.
- Commands that need the network (apt, pip's downloads) run *outside*, with the machine's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sandlot.images.recipe import Debian
from sandlot.model.specs import User

USER_ID = 1000
"""User id and group id of ``user`` inside an image."""

BUILD_TIME_S = 1_735_689_600
"""Time of files that a build creates (2025-01-01), so that two builds of the same packages are equal. It is not passed as SOURCE_DATE_EPOCH,
which makes py_compile write byte code that reads its source at every import."""

WHEELS = "/tmp/.wheels"  # noqa: S108 - inside of the tree that is being built
"""Folder of the downloaded wheels inside the tree while they are installed."""

_MACHINE_ENV = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy")
"""Variables with the machine's proxies."""

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
"""Variables that name pip's sources. Variables that name its target, such as PIP_TARGET or PIP_USER, are about the machine and not used."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")


def mmdebstrap_argv(debian: Debian, target: Path, *, sources: Path | None, apt_options: Path, file_mirrors: bool) -> tuple[str, ...]:
    """Return the command that creates a tree of Debian packages (mmdebstrap(1)).

    Args:
        debian: Packages of the recipe.
        target: Folder to create.
        sources: A deb822 file with the machine's mirrors; None for mmdebstrap's default.
        apt_options: A file with the machine's apt options, which mmdebstrap does not read by itself.
        file_mirrors: True if a mirror is a folder of this machine, which must be visible inside the tree as well.
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
    """Return the environment of mmdebstrap: only the proxies of the machine's environment."""
    return {
        **_select(machine, _MACHINE_ENV),
        "PATH": _PATH,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def copy_argv(source: Path, target: Path) -> tuple[str, ...]:
    """Return the command that copies a tree with owners, modes, times and attributes. Blocks are shared if the file system supports it."""
    return ("setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", str(source), str(target))


def own_python_argv(root: Path, loader: Path, libraries: Iterable[Path], python: Path) -> tuple[str, ...]:
    """Return the command that starts a tree's Python without chroot, through the tree's own loader, so that it sees the host's files.

    Args:
        root: The tree.
        loader: Dynamic loader of the tree.
        libraries: Library folders of the tree.
        python: Path of the interpreter, relative to the tree.
    """
    return (str(loader), "--library-path", ":".join(str(folder) for folder in libraries), str(root / python))


def download_argv(python: tuple[str, ...], lock: Path, wheels: Path) -> tuple[str, ...]:
    """Return the command that downloads the locked wheels with the image's own pip and the machine's configuration.

    Only wheels are downloaded: a source archive would run its own build as root, with build requirements that no hash covers.

    Args:
        python: Command of the image's Python (:func:`own_python_argv`).
        lock: The requirements file.
        wheels: Folder for the wheels.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *python,
        *("-I", "-m", "pip", "download", "--no-input", "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", f"--dest={wheels}", f"--requirement={lock}"),
    )


def download_env(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of pip's download: the machine's proxies and package sources."""
    return {
        **_select(machine, (*_MACHINE_ENV, *_PIP_ENV, "HOME")),
        "PATH": machine.get("PATH", _PATH),
        "LC_ALL": "C.UTF-8",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def inside_argv(root: Path, argv: Iterable[str], user: User = User.ROOT) -> tuple[str, ...]:
    """Return a command that runs ``argv`` inside a tree: with chroot, its own /proc and no network."""
    drop = (f"--setgid={USER_ID}", f"--setuid={USER_ID}") if user is User.USER else ()
    return (*_NAMESPACES, "--net", "--ipc", "--uts", f"--root={root}", "--wd=/", "--mount-proc=/proc", *drop, "--", *argv)


def inside_env(user: User = User.ROOT) -> dict[str, str]:
    """Return the environment of a command inside a tree."""
    return {
        "PATH": _PATH,
        "HOME": "/home/user" if user is User.USER else "/root",
        "USER": user.value,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }


def install_argv(lock: str) -> tuple[str, ...]:
    """Return the command that installs the wheels inside the tree. Byte code is compiled later, because it contains the time of its source."""
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
    """Return the command that compiles installed packages inside the tree.

    Byte code is checked against the time and size of its source, as usual, so that an edited library takes effect.
    """
    return ("python3", "-m", "compileall", "-j", "0", "--invalidation-mode=timestamp", *folders)


def _select(machine: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: machine[name] for name in names if name in machine}

"""The commands of a build, decided purely: argument vectors and environments, no I/O.

Laws:
- Every command runs in its own mount and process namespaces and dies with the builder, however that dies: setpriv(1)
  arms the parent-death signal, and unshare(1) kills its process namespace when it goes. So no mount and no process
  outlives a build, and none is ever visible in the host's mount table.
- What runs *inside* of the tree has no network, no terminal and none of the host's environment.
- What needs the network (apt, pip's downloads) runs *outside*, under the machine's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sandlot.images.recipe import Debian
from sandlot.model.specs import User

USER_ID = 1000
"""``user`` inside, and its group."""

BUILD_TIME_S = 1_735_689_600
"""The time that files made by a build carry (2025-01-01), so that two builds of the same packages are alike. It is not passed
as SOURCE_DATE_EPOCH: that makes py_compile write byte code that reads its source at every import."""

WHEELS = "/tmp/.wheels"  # noqa: S108 - inside of the tree that is being built
"""Where the downloaded wheels lie inside while they are installed."""

_MACHINE_ENV = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy")
"""How the machine reaches the world."""

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
"""Where pip's packages come from. Not where they go: a machine's PIP_TARGET or PIP_USER is about the machine."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LEASH = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")


def mmdebstrap_argv(debian: Debian, target: Path, *, sources: Path | None, apt_options: Path, file_mirrors: bool) -> tuple[str, ...]:
    """Make a tree of Debian packages, mmdebstrap(1).

    Args:
        debian: What the recipe says.
        target: The folder to make.
        sources: A deb822 file that names the machine's mirrors; None is mmdebstrap's own default.
        apt_options: A file with the machine's apt options; mmdebstrap reads none of them by itself.
        file_mirrors: Whether a mirror is a folder of this machine, which then has to be seen inside as well.
    """
    return (
        *_LEASH,
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
    """The environment of mmdebstrap: of the machine's only how it reaches the world."""
    return {
        **_taken(machine, _MACHINE_ENV),
        "PATH": _PATH,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def copy_argv(source: Path, target: Path) -> tuple[str, ...]:
    """Copy a tree with owners, modes, times and attributes; blocks are shared where the file system can."""
    return ("setpriv", "--pdeathsig", "KILL", "cp", "-a", "--reflink=auto", str(source), str(target))


def own_python_argv(root: Path, loader: Path, libraries: Iterable[Path], python: Path) -> tuple[str, ...]:
    """Run a tree's python from outside of it, through that tree's own loader: no chroot, so that the host's files are in sight.

    Args:
        root: The tree; used for nothing but to say where ``python`` lies.
        loader: The tree's dynamic loader.
        libraries: The tree's library folders.
        python: The interpreter, relative to the tree.
    """
    return (str(loader), "--library-path", ":".join(str(folder) for folder in libraries), str(root / python))


def download_argv(python: tuple[str, ...], lock: Path, wheels: Path) -> tuple[str, ...]:
    """Download the locked wheels with the image's own pip, which knows what fits it, under the machine's configuration.

    Wheels only: a source archive would run its own build as root, with build requirements that no hash vouches for.

    Args:
        python: The image's python, run from outside (:func:`own_python_argv`).
        lock: The requirements file.
        wheels: The folder to fill.
    """
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *python,
        *("-I", "-m", "pip", "download", "--no-input", "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", f"--dest={wheels}", f"--requirement={lock}"),
    )


def download_env(machine: Mapping[str, str]) -> dict[str, str]:
    """The environment of pip's download: of the machine's what says where packages come from."""
    return {
        **_taken(machine, (*_MACHINE_ENV, *_PIP_ENV, "HOME")),
        "PATH": machine.get("PATH", _PATH),
        "LC_ALL": "C.UTF-8",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def inside_argv(root: Path, argv: Iterable[str], user: User = User.ROOT) -> tuple[str, ...]:
    """Run a command inside of a tree: chroot, own /proc, no network."""
    drop = (f"--setgid={USER_ID}", f"--setuid={USER_ID}") if user is User.USER else ()
    return (*_LEASH, "--net", "--ipc", "--uts", f"--root={root}", "--wd=/", "--mount-proc=/proc", *drop, "--", *argv)


def inside_env(user: User = User.ROOT) -> dict[str, str]:
    """The environment of a command inside."""
    return {
        "PATH": _PATH,
        "HOME": "/home/user" if user is User.USER else "/root",
        "USER": user.value,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }


def install_argv(lock: str) -> tuple[str, ...]:
    """Install the downloaded wheels, inside. Byte code comes later (:func:`compile_argv`): it holds its source's time."""
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
    """Compile what was installed, inside: checked by the source's time and size as usual, so that who edits a library sees the edit."""
    return ("python3", "-m", "compileall", "-j", "0", "--invalidation-mode=timestamp", *folders)


def _taken(machine: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: machine[name] for name in names if name in machine}

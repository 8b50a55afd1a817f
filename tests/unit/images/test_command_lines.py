"""Commands of a build: they end with the builder, and run inside without network and without the host's environment."""

from __future__ import annotations

from pathlib import Path

from sandlot.images import command_lines
from sandlot.images.recipe import Debian
from sandlot.model.specs import User

MACHINE = {
    "PATH": "/opt/bin:/usr/bin",
    "HOME": "/root",
    "https_proxy": "http://proxy.example",
    "PIP_INDEX_URL": "https://index.example/simple",
    "PIP_TARGET": "/somewhere",
    "PIP_USER": "1",
    "SECRET": "s",
    "LD_PRELOAD": "/x.so",
}


def mmdebstrap(debian: Debian, *, sources: Path | None = Path("/s/image.sources"), file_mirrors: bool = False) -> tuple[str, ...]:
    return command_lines.mmdebstrap_argv(debian, Path("/t"), sources=sources, apt_options=Path("/s/apt.conf"), file_mirrors=file_mirrors)


def test_mmdebstrap_gets_packages_of_the_recipe_and_mirrors_of_the_machine() -> None:
    debian = Debian("bookworm", "apt", ("git", "curl"), ("/usr/share/man/*",), ("/usr/share/man/x",))
    argv = mmdebstrap(debian)
    assert argv[argv.index("mmdebstrap") :] == (
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        "--verbose",
        "--variant=apt",
        "--components=main",
        "--include=git,curl",
        "--aptopt=/s/apt.conf",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-include=/usr/share/man/x",
        "bookworm",
        "/t",
        "/s/image.sources",
    )


def test_mirror_in_a_folder_is_mounted_inside() -> None:
    assert any(word.endswith("file-mirror-automount") for word in mmdebstrap(Debian("bookworm"), file_mirrors=True))
    assert not any(word.startswith("--hook-dir") for word in mmdebstrap(Debian("bookworm")))


def test_command_ends_with_its_builder_in_its_own_mount_namespace() -> None:
    for argv in (mmdebstrap(Debian("bookworm")), command_lines.inside_argv(Path("/t"), ("true",))):
        assert argv[:3] == ("setpriv", "--pdeathsig", "KILL")
        own = argv[: argv.index("--")]
        assert {"unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"} <= set(own)
    assert command_lines.download_argv(("python3",), Path("/l"), Path("/w"))[:3] == ("setpriv", "--pdeathsig", "KILL")
    assert command_lines.copy_argv(Path("/a"), Path("/b"))[:3] == ("setpriv", "--pdeathsig", "KILL")


def test_command_inside_has_no_network_and_no_environment_of_the_host() -> None:
    argv = command_lines.inside_argv(Path("/t"), ("id", "-u"), User.USER)
    own, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert {"--net", "--root=/t", "--setuid=1000", "--setgid=1000"} <= set(own)
    assert command == ("id", "-u")
    assert "--setuid=0" not in command_lines.inside_argv(Path("/t"), ("id",))
    assert command_lines.inside_env(User.USER)["HOME"] == "/home/user"
    assert command_lines.inside_env()["HOME"] == "/root"
    assert set(command_lines.inside_env()) <= {"PATH", "HOME", "USER", "LANG", "PYTHONHASHSEED"}


def test_only_variables_for_reaching_packages_are_passed_on() -> None:
    for env in (command_lines.mmdebstrap_env(MACHINE), command_lines.download_env(MACHINE)):
        assert env["https_proxy"] == "http://proxy.example"
        assert env.keys().isdisjoint({"SECRET", "LD_PRELOAD", "PIP_TARGET", "PIP_USER"})
    env = command_lines.npm_download_env({**MACHINE, "npm_config_registry": "https://npm.example"})
    assert (env["https_proxy"], env["npm_config_registry"]) == ("http://proxy.example", "https://npm.example")
    assert env.keys().isdisjoint({"SECRET", "LD_PRELOAD", "PIP_INDEX_URL"})
    assert command_lines.download_env(MACHINE)["PIP_INDEX_URL"] == "https://index.example/simple"
    assert "PIP_INDEX_URL" not in command_lines.mmdebstrap_env(MACHINE)


def test_only_wheels_with_hashes_are_downloaded_and_installing_downloads_nothing() -> None:
    download = command_lines.download_argv(("/t/ld.so", "/t/python3"), Path("/s/x.lock"), Path("/w"))
    assert download[3:5] == ("/t/ld.so", "/t/python3")
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps", "--dest=/w", "--requirement=/s/x.lock"} <= set(download)
    assert {"--require-hashes", "--no-index", "--no-deps", "--no-compile"} <= set(command_lines.install_argv("/x.lock"))


def test_npm_downloads_what_the_lock_names_and_runs_only_allowed_scripts_inside() -> None:
    download = command_lines.npm_download_argv(("/t/ld.so", "/t/node"), Path("/t/npm-cli.js"), Path("/s/npm"), None)
    assert download[:7] == ("setpriv", "--pdeathsig", "KILL", "/t/ld.so", "/t/node", "/t/npm-cli.js", "ci")
    assert {"--ignore-scripts", "--prefix=/s/npm", "--globalconfig=/dev/null"} <= set(download)
    assert command_lines.npm_link_argv(["a"], scripts=True) == ("npm", "rebuild", "--global", "--dangerously-allow-all-scripts", "a")
    assert command_lines.npm_link_argv(["a", "b"], scripts=False) == ("npm", "rebuild", "--global", "--ignore-scripts", "a", "b")

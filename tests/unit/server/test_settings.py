"""Settings: their sources, their priority, and errors that name the source."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.pools.models import PoolSetting
from sandlot.egress.packages.config.values import DOCKER_HUB, ImageSource
from sandlot.model.errors import InvalidRequestError
from sandlot.model.image_aliases import parse_aliases
from sandlot.model.network import NetworkMode
from sandlot.model.pools import PoolSizes
from sandlot.server import settings as settings_module
from sandlot.server.settings import Settings
from sandlot.web.preview_urls import PreviewAddress

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "src/sandlot/images/recipes"


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the default file of settings, which does not exist."""
    file = tmp_path / "sandlot.toml"
    monkeypatch.setattr(settings_module, "CONFIG_FILE", file)
    return file


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.load({}) == Settings()
    assert Settings().socket == Path("/var/lib/sandlot/sandlot.sock")


VALUES: Mapping[str, tuple[str, Any]] = {
    "data_dir": ("/d", Path("/d")),
    "cache_dir": ("/c", Path("/c")),
    "recipes_dir": (str(RECIPES), RECIPES),
    "database_url": ("postgresql://u:p@h/d", "postgresql://u:p@h/d"),
    "host": ("::1", "::1"),
    "port": ("1", 1),
    "isolation_default": ("microvm", "microvm"),
    "isolation_allowed": ("gvisor, microvm,gvisor", ("gvisor", "microvm")),
    "max_sandboxes": ("7", 7),
    "max_creates": ("2", 2),
    "pools": (
        "base=2:3+1, code-interpreter=0",
        (
            PoolSetting("base", PoolSizes(2, 3, 1)),
            PoolSetting("code-interpreter", PoolSizes(0, 0)),
        ),
    ),
    "template_aliases": (
        "code-interpreter=code-interpreter-slim, small = base",
        (("code-interpreter", "code-interpreter-slim"), ("small", "base")),
    ),
    "memory_ratio": ("1.5", 1.5),
    "disk_ratio": ("4", 4),
    "pids_ratio": ("0.5", 0.5),
    "memory_reserve_bytes": ("0", 0),
    "disk_reserve_bytes": ("1000", 1000),
    "pids_reserve": ("10", 10),
    "suspend_reserve": ("1048576", 1048576),
    "max_connections": ("9", 9),
    "mcp_allowed_hosts": ("Sandbox.example.com,mcp.test", ("sandbox.example.com", "mcp.test")),
    "trusted_proxies": ("127.0.0.1/32,fd00::/8", (ip_network("127.0.0.1/32"), ip_network("fd00::/8"))),
    "buffer_bytes": ("67108864", 67108864),
    "upload_max_bytes": ("2097152", 2097152),
    "executions_keep_s": ("60", 60),
    "executions_keep": ("100", 100),
    "executions_max_bytes": ("16M", 16 << 20),
    "events_keep_s": ("61", 61),
    "events_keep": ("101", 101),
    "sandboxes_keep_s": ("62.5", 62.5),
    "sandboxes_keep": ("102", 102),
    "suspended_keep_s": ("63", 63),
    "packages_max_bytes": ("67108864", 67108864),
    "packages_ttl_s": ("0", 0),
    "preview_host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104 - a value
    "preview_port": ("8081", 8081),
    "preview_domain": ("preview.example.com", PreviewAddress("https", "preview.example.com")),
    "preview_tls_cert": ("/etc/cert.pem", Path("/etc/cert.pem")),
    "preview_tls_key": ("/etc/key.pem", Path("/etc/key.pem")),
    "network_mbit": ("100", 100),
    "network_allowed": ("internet, NONE,", (NetworkMode.NONE, NetworkMode.INTERNET)),
    "registries": (
        "docker.io, http://127.0.0.1:5000, ghcr.example=mirror.example:5000/hub",
        (
            ImageSource("docker.io", DOCKER_HUB),
            ImageSource("127.0.0.1:5000", "http://127.0.0.1:5000"),
            ImageSource("ghcr.example", "https://mirror.example:5000", "hub"),
        ),
    ),
    "image_aliases": (
        "python:3.12=my-python, node=mirror.example/node:*",
        parse_aliases(["python:3.12=my-python", "node=mirror.example/node:*"]),
    ),
    "network_private": ("10.1.2.0/24, fd00::/8,", (ip_network("10.1.2.0/24"), ip_network("fd00::/8"))),
    "agent_models": ("/etc/models.toml", Path("/etc/models.toml")),
    "agent_mcp_servers": ("/etc/servers.toml", Path("/etc/servers.toml")),
    "agent_model_requests": ("2", 2),
    "agent_tool_calls": ("3", 3),
    "agent_run_s": ("4.5", 4.5),
    "agent_session_tokens": ("5", 5),
    "agent_session_cost_usd": ("6.5", 6.5),
    "agent_sessions_keep_s": ("64", 64),
    "agent_runs_per_key": ("7", 7),
    "agent_runs": ("8", 8),
    "low_latency": ("on", "on"),
    "idle_exit_s": ("1.5", 1.5),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("text", "text"),
}
"""Field -> text of its variable, and the value that is read from it."""


def test_every_setting_has_a_variable_of_its_name() -> None:
    env = {f"SANDLOT_{name.upper()}": text for name, (text, _) in VALUES.items()}
    assert Settings.load(env) == Settings(**{name: value for name, (_, value) in VALUES.items()})
    assert set(VALUES) == {field.name for field in fields(Settings)}


def test_recipes_of_a_folder_are_templates_that_pools_can_name(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text('description = "small"\nfrom = "base"\n')
    env = {"SANDLOT_RECIPES_DIR": str(tmp_path), "SANDLOT_POOLS": "small=1"}
    assert {"small", "base", "builder"} <= Settings.load(env).recipes.keys()
    for broken, message in (
        ({"SANDLOT_POOLS": "builder=1"}, r"pools of these templates: agent, base, .*small"),
        ({"SANDLOT_RECIPES_DIR": str(tmp_path / "none")}, "cannot be read: No such file"),
        ({"SANDLOT_RECIPES_DIR": ""}, "SANDLOT_POOLS"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            Settings.load(env | broken)


def test_the_database_is_a_file_of_the_data_directory_unless_it_is_said() -> None:
    assert Settings.load({"SANDLOT_DATA_DIR": "/d"}).database == Path("/d/sandlot.db")
    assert Settings.load({"SANDLOT_DATABASE_URL": "postgres://h/d"}).database == "postgres://h/d"


def test_database_password_is_shown_nowhere(config_file: Path) -> None:
    assert "hush" not in repr(Settings.load({"SANDLOT_DATABASE_URL": "postgresql://u:hush@h/d"}))
    for url in ("mysql://u:hush@h/d", "hush", "/hush.db"):
        with pytest.raises(InvalidRequestError, match="SANDLOT_DATABASE_URL") as refused:
            Settings.load({"SANDLOT_DATABASE_URL": url})
        assert "hush" not in str(refused.value)
        config_file.write_text(f'database_url = "{url}"')
        with pytest.raises(InvalidRequestError, match="`database_url`") as refused:
            Settings.load({})
        assert "hush" not in str(refused.value)


def test_options_come_before_variables_and_variables_before_the_file(config_file: Path) -> None:
    config_file.write_text('host = "file"\nport = 1\nmax_creates = 3\nmax_sandboxes = 5\n')
    settings = Settings.load({"SANDLOT_HOST": "variable", "SANDLOT_PORT": "2", "SANDLOT_MAX_CREATES": "4"}, host="option", port=0)
    assert (settings.host, settings.port, settings.max_creates, settings.max_sandboxes) == ("option", 0, 4, 5)


def test_file_has_the_types_of_toml_and_the_texts_of_variables(config_file: Path) -> None:
    config_file.write_text("".join(f"{name} = {json.dumps(text)}\n" for name, (text, _) in VALUES.items()))
    assert Settings.load({}) == Settings(**{name: value for name, (_, value) in VALUES.items()})
    config_file.write_text(
        'network_private = ["10.0.0.0/8"]\nisolation_allowed = ["container", "gvisor"]\npools = ["base=1"]\nmemory_ratio = 2\nbuffer_bytes = 67108864'
    )
    settings = Settings.load({})
    assert (settings.network_private, settings.isolation_allowed) == ((ip_network("10.0.0.0/8"),), ("container", "gvisor"))
    assert ([pool.template for pool in settings.pools or ()], settings.memory_ratio, settings.buffer_bytes) == (["base"], 2.0, 1 << 26)


def test_sandlot_config_names_another_file_which_must_exist(config_file: Path, tmp_path: Path) -> None:
    config_file.write_text("port = 1\n")
    other = tmp_path / "other.toml"
    with pytest.raises(InvalidRequestError, match=f"{other} cannot be read: No such file") as refused:
        Settings.load({"SANDLOT_CONFIG": str(other)})
    assert "SANDLOT_CONFIG" in refused.value.hint
    other.write_text("max_creates = 9\n")
    assert Settings.load({"SANDLOT_CONFIG": str(other)}) == Settings(max_creates=9)
    assert Settings.load({"SANDLOT_CONFIG": os.devnull}) == Settings()


@pytest.mark.parametrize(
    "content,message",
    [
        ("prot = 1", "`prot` in FILE is not a setting."),
        ("[server]\nport = 1", "`server` in FILE is not a setting."),
        ("SANDLOT_PORT = 1", "`SANDLOT_PORT` in FILE is not a setting."),
        ("port = 65536", "`port` in FILE is 65536; it must be a whole number from 0 to 65535."),
        ("port = true", "`port` in FILE is True; it must be a whole number from 0 to 65535."),
        ('log_level = "loud"', "`log_level` in FILE is 'loud'; it must be one of debug, info, warning, error."),
        ("upload_max_bytes = 1", "`upload_max_bytes` in FILE is 1; it must be a size from 1 MiB to 1 TiB"),
        ('network_allowed = "open"', "`network_allowed` in FILE is 'open'; it must be one or more of none, packages, allowlist, internet"),
        ("network_allowed = []", "`network_allowed` in FILE is []; it must be one or more of none, packages, allowlist, internet"),
        ("network_private = [1]", "`network_private` in FILE is [1]; it must be networks such as"),
        (f"idle_exit_s = {400 * '9'}", "`idle_exit_s` in FILE is 9999"),
        ('isolation_default = "container"', "`isolation_default` in FILE is 'container'; it must be one of SANDLOT_ISOLATION_ALLOWED (gvisor)."),
        ("port = \n", "The file of settings FILE cannot be read: Invalid value (at line 1"),
    ],
)
def test_error_of_the_file_names_the_file_the_key_and_the_allowed_values(config_file: Path, content: str, message: str) -> None:
    config_file.write_text(content)
    with pytest.raises(InvalidRequestError) as refused:
        Settings.load({})
    assert refused.value.message.startswith(message.replace("FILE", str(config_file)))
    assert refused.value.hint


def test_sizes_can_have_units() -> None:
    settings = Settings.load({"SANDLOT_BUFFER_BYTES": "1G", "SANDLOT_MEMORY_RESERVE_BYTES": "1.5 GiB", "SANDLOT_SUSPEND_RESERVE": "0"})
    assert (settings.buffer_bytes, settings.memory_reserve_bytes, settings.suspend_reserve) == (1 << 30, 3 << 29, 0)


def test_wrong_option_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="--port is 65536; it must be a whole number from 0 to 65535"):
        Settings.load({"SANDLOT_PORT": "1"}, port=65536)


@pytest.mark.parametrize(
    "name,value",
    [
        ("DATA_DIR", "relative"),
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("PORT", "٣"),
        ("PORT", "9" * 5000),
        ("MAX_CREATES", "1.5"),
        ("POOLS", "nonsense=1"),
        ("MAX_CONNECTIONS", "16385"),
        ("MEMORY_RATIO", "0"),
        ("DISK_RATIO", "all"),
        ("PIDS_RATIO", "inf"),
        ("MEMORY_RESERVE_BYTES", "1X"),
        ("UPLOAD_MAX_BYTES", "1"),
        ("EXECUTIONS_KEEP_S", "59"),
        ("SANDBOXES_KEEP_S", "1e12"),
        ("PACKAGES_MAX_BYTES", "1"),
        ("NETWORK_PRIVATE", "10.1.2.3/24"),
        ("IDLE_EXIT_S", "nan"),
        ("IDLE_EXIT_S", "0"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
        ("ISOLATION_ALLOWED", "gvisor,chroot"),
        ("ISOLATION_ALLOWED", ","),
        ("ISOLATION_DEFAULT", "microvm"),
    ],
    ids=lambda text: text[:20],
)
def test_a_value_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Settings.load({f"SANDLOT_{name}": value})
    assert "SANDLOT_ISOLATION" in refused.value.message or f"SANDLOT_{name}" in refused.value.message
    assert refused.value.hint


def test_isolation_of_an_installed_driver_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "driver_names", lambda: ("gvisor", "container", "acme"))
    settings = Settings.load({"SANDLOT_ISOLATION_ALLOWED": "gvisor,acme", "SANDLOT_ISOLATION_DEFAULT": "acme"})
    assert (settings.isolation_allowed, settings.isolation_default) == (("gvisor", "acme"), "acme")

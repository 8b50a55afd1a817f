"""Settings: a default for everything, and a clear word about a value that makes no sense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.pools.models import PoolConfig, PoolSpec
from sandlot.model.access import LOCAL
from sandlot.model.errors import InvalidRequestError
from sandlot.model.pools import PoolSizes
from sandlot.model.specs import Limits, TemplateRef
from sandlot.server import settings as settings_module
from sandlot.server.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings().socket == Path("/var/lib/sandlot/sandlot.sock")


VALUES: Mapping[str, tuple[str, Any]] = {
    "data_dir": ("/d", Path("/d")),
    "cache_dir": ("/c", Path("/c")),
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
            PoolConfig(PoolSpec(TemplateRef(LOCAL, "base"), "auto", Limits()), PoolSizes(2, 3, 1)),
            PoolConfig(PoolSpec(TemplateRef(LOCAL, "code-interpreter"), "auto", Limits()), PoolSizes(0, 0)),
        ),
    ),
    "memory_ratio": ("1.5", 1.5),
    "disk_ratio": ("4", 4),
    "pids_ratio": ("0.5", 0.5),
    "memory_reserve_bytes": ("0", 0),
    "disk_reserve_bytes": ("1000", 1000),
    "pids_reserve": ("10", 10),
    "suspend_reserve": ("1048576", 1048576),
    "max_connections": ("9", 9),
    "buffer_bytes": ("67108864", 67108864),
    "upload_max_bytes": ("2097152", 2097152),
    "executions_keep_s": ("60", 60),
    "executions_keep": ("100", 100),
    "events_keep_s": ("61", 61),
    "events_keep": ("101", 101),
    "sandboxes_keep_s": ("62.5", 62.5),
    "keep_resting_s": ("63", 63),
    "packages_max_bytes": ("67108864", 67108864),
    "packages_ttl_s": ("0", 0),
    "webhooks_allow": ("10.1.2.0/24, fd00::/8,", (ip_network("10.1.2.0/24"), ip_network("fd00::/8"))),
    "idle_exit_s": ("1.5", 1.5),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("text", "text"),
}
"""Field -> text of its variable, and the value that is read from it."""


def test_every_setting_has_a_variable_of_its_name() -> None:
    env = {f"SANDLOT_{name.upper()}": text for name, (text, _) in VALUES.items()}
    assert Settings.from_env(env) == Settings(**{name: value for name, (_, value) in VALUES.items()})
    assert set(VALUES) == {field.name for field in fields(Settings)}


def test_the_database_is_a_file_of_the_data_directory_unless_it_is_said() -> None:
    assert Settings.from_env({"SANDLOT_DATA_DIR": "/d"}).database == Path("/d/sandlot.db")
    assert Settings.from_env({"SANDLOT_DATABASE_URL": "postgres://h/d"}).database == "postgres://h/d"


def test_a_password_of_the_database_is_shown_nowhere() -> None:
    assert "hush" not in repr(Settings.from_env({"SANDLOT_DATABASE_URL": "postgresql://u:hush@h/d"}))
    for url in ("mysql://u:hush@h/d", "hush", "/hush.db"):
        with pytest.raises(InvalidRequestError, match="SANDLOT_DATABASE_URL") as refused:
            Settings.from_env({"SANDLOT_DATABASE_URL": url})
        assert "hush" not in str(refused.value)


def test_the_docs_have_every_setting() -> None:
    documented = set(re.findall(r"^\| `(SANDLOT_\w+)` \|", (ROOT / "docs/node.md").read_text(), re.MULTILINE))
    assert documented == {f"SANDLOT_{field.name.upper()}" for field in fields(Settings)}


def test_the_command_line_goes_over_the_environment() -> None:
    settings = Settings.from_env({"SANDLOT_HOST": "a", "SANDLOT_PORT": "1"}, host="b", port=0)
    assert (settings.host, settings.port) == ("b", 0)


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
        ("MEMORY_RESERVE_BYTES", "1G"),
        ("UPLOAD_MAX_BYTES", "1"),
        ("EXECUTIONS_KEEP_S", "59"),
        ("SANDBOXES_KEEP_S", "1e12"),
        ("PACKAGES_MAX_BYTES", "1"),
        ("WEBHOOKS_ALLOW", "10.1.2.3/24"),
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
        Settings.from_env({f"SANDLOT_{name}": value})
    assert "SANDLOT_ISOLATION" in refused.value.message or f"SANDLOT_{name}" in refused.value.message
    assert refused.value.hint


def test_isolation_of_an_installed_driver_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "driver_names", lambda: ("gvisor", "container", "acme"))
    settings = Settings.from_env({"SANDLOT_ISOLATION_ALLOWED": "gvisor,acme", "SANDLOT_ISOLATION_DEFAULT": "acme"})
    assert (settings.isolation_allowed, settings.isolation_default) == (("gvisor", "acme"), "acme")

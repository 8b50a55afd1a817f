"""Parsers for the registries of images that the operator names, and for this machine's logins to registries. Pure.

Logins are read from the files that ``docker login``, ``podman login`` and ``skopeo login`` write (containers-auth.json(5)). Credential helpers are
not run. A login is used only for the registry that it names, and only if the operator has named this registry.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import DOCKER_HUB, Access, Credential, ImageSource, OciSources, basic_auth, netloc_of
from sandlot.model.images import DEFAULT_REGISTRY, is_registry, is_repository

SYNTAX: Final = "HOST[:PORT], http://HOST:PORT or NAME=[http://]HOST[:PORT][/PREFIX]"
"""Syntax of one registry in the settings."""
_HUB_HOSTS: Final = frozenset({DEFAULT_REGISTRY, f"index.{DEFAULT_REGISTRY}"})
"""Hosts under which logins to Docker Hub are stored."""
_CERTIFICATES: Final = ("/etc/containers/certs.d", "/etc/docker/certs.d")


def parse_registries(items: Iterable[str]) -> tuple[ImageSource, ...]:
    """Parse the registries that the operator names.

    Args:
        items: Registries in the form of ``SYNTAX``. ``http://`` allows plain HTTP; without it, TLS is required. ``NAME=...`` serves references to
            the registry NAME from another registry (a mirror), whose repositories may have a common prefix.

    Raises:
        ValueError: A text has another form, or a registry is named twice.
    """
    found: dict[str, ImageSource] = {}
    for item in items:
        name, equals, target = item.rpartition("=")
        source = _parse_source(name if equals else None, target)
        if source.name in found:
            raise ValueError(f"{source.name} is named twice")
        found[source.name] = source
    return tuple(found.values())


def login_files(env: Mapping[str, str]) -> list[Path]:
    """Return the files that can have logins to registries. Earlier files take precedence."""
    home = Path(env.get("HOME") or "/nonexistent")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    runtime = Path(env["XDG_RUNTIME_DIR"], "containers") if env.get("XDG_RUNTIME_DIR") else Path(f"/run/containers/{os.getuid()}")
    return [
        *([Path(env["REGISTRY_AUTH_FILE"])] if env.get("REGISTRY_AUTH_FILE") else []),
        runtime / "auth.json",
        config / "containers/auth.json",
        Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
    ]


def certificate_files(registries: Iterable[ImageSource]) -> tuple[str, ...]:
    """Return the certificates that Docker and Podman are configured to trust for registries (``certs.d/HOST:PORT/*.crt``)."""
    hosts = [urlsplit(source.origin).netloc for source in registries if source.origin.startswith("https:")]
    return tuple(str(path) for host in hosts for folder in _CERTIFICATES for path in sorted(Path(folder, host).glob("*.crt")))


def parse_sources(registries: Sequence[ImageSource], logins: Iterable[str], ca_files: tuple[str, ...] = ()) -> OciSources:
    """Return the registries with the credentials for them.

    Args:
        registries: Registries that the operator has named.
        logins: Contents of the files with logins. Earlier files take precedence. A malformed file is treated as an empty file.
        ca_files: Paths of files with further trusted certificates.
    """
    credentials: dict[tuple[str, str], Credential] = {}
    for text in logins:
        for key, header in _parse_logins(text):
            host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
            namespace = path if "://" not in key and is_repository(path) else ""
            for source in registries:
                parts = urlsplit(source.origin)
                netloc = netloc_of(source.origin)
                is_hub = source.origin == DOCKER_HUB and host in _HUB_HOSTS
                if is_hub or netloc_of(f"{parts.scheme}://{host}") == netloc:
                    path = f"/v2/{namespace}" if namespace else "/"
                    credentials.setdefault((netloc, path), Credential(parts.scheme, netloc, path, header))
    return OciSources(tuple(registries), Access(ca_files=ca_files, credentials=tuple(credentials.values())))


def _parse_source(name: str | None, target: str) -> ImageSource:
    scheme, mark, rest = target.rpartition("://")
    host, _, prefix = rest.partition("/")
    if (mark and scheme not in {"http", "https"}) or not is_registry(host) or not netloc_of(f"https://{host}"):
        raise ValueError(f"{target[:100]!r} is not {SYNTAX}")
    if (prefix and not (name and is_repository(prefix))) or (name is not None and not is_registry(name)):
        raise ValueError(f"{(target if name is None else f'{name}={target}')[:100]!r} is not {SYNTAX}")
    host = host.lower()
    if host == DEFAULT_REGISTRY and not mark:
        return ImageSource((name or host).lower(), DOCKER_HUB, prefix)
    return ImageSource((name or host).lower(), f"{scheme or 'https'}://{host}", prefix)


def _parse_logins(text: str) -> list[tuple[str, str]]:
    """Return the name of the registry and the ``Authorization`` header of each login."""
    try:
        auths = json.loads(text)["auths"].items()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    found = []
    for key, entry in auths:
        header = _header(entry) if isinstance(entry, dict) else ""
        if header:
            found.append((key.strip(), header))
    return found


def _header(entry: Mapping[str, Any]) -> str:
    if isinstance(entry.get("registrytoken"), str) and entry["registrytoken"].isprintable() and entry["registrytoken"].isascii():
        return f"Bearer {entry['registrytoken']}"
    user, password = entry.get("username"), entry.get("password")
    if isinstance(entry.get("auth"), str) and entry["auth"]:
        try:
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return ""
    return basic_auth(user, password.rstrip("\0")) if user and isinstance(user, str) and isinstance(password, str) else ""

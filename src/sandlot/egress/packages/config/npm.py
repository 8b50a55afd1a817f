"""Parsers for this machine's npm configuration: npmrc files and ``npm_config_*`` variables. Pure.

The keys are documented in npm's documentation, "npmrc" and "config". Variables override files, and the user's file overrides the machine's. The
key of a credential, such as ``//HOST/PATH/:_authToken``, begins with the URL prefix that the credential is valid for.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import NPM, Access, Credential, NpmSources, basic_auth, netloc_of, split_credential, with_slash

_VARIABLE = re.compile(r"\$\{([^}?]+)(\?)?\}")
_PREFIX = "npm_config_"
_SECRETS = ("_authToken", "_auth", "username", "_password")


def config_files(env: Mapping[str, str]) -> list[Path]:
    """Return the configuration files of npm and of Debian's npm package: the machine's files, then the user's file. Later files take precedence."""
    lower = {name.lower(): value for name, value in env.items()}
    home = Path(env.get("HOME") or "/nonexistent")
    machine = [Path(lower[f"{_PREFIX}globalconfig"])] if lower.get(f"{_PREFIX}globalconfig") else []
    user = Path(lower.get(f"{_PREFIX}userconfig") or home / ".npmrc")
    return [Path("/etc/npmrc"), Path("/usr/etc/npmrc"), Path("/usr/local/etc/npmrc"), *machine, user]


def parse_options(texts: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the configured npm options by key. The values of a repeated key (``ca[]``) are joined by newlines.

    Args:
        texts: Contents of npmrc files. Later files take precedence.
        env: Environment variables. ``npm_config_*`` override the files; all others can be used in the files as ``${NAME}``.
    """
    found: dict[str, str] = {}
    for text in texts:
        own: dict[str, str] = {}
        for line in text.splitlines():
            key, equals, value = line.strip().partition("=")
            if not equals or key.startswith((";", "#", "[")):
                continue
            key, value = _expand(key.strip(), env), _expand(_unquote(value.strip()), env)
            if key.endswith("[]"):
                own[key[:-2]] = "\n".join(filter(None, (own.get(key[:-2], ""), value)))
            else:
                own[key] = value
        found |= own
    variables: dict[str, str] = {}
    for name, value in env.items():
        if name.lower().startswith(_PREFIX) and value:
            key = name[len(_PREFIX) :]
            # npm keeps the underscores in names such as "npm_config_//host/:_authToken" and replaces them by dashes in all other names.
            variables[key if key.startswith(("//", "@")) else key.lower().replace("_", "-")] = value
    return found | variables


def parse_sources(options: Mapping[str, str], env: Mapping[str, str]) -> NpmSources:
    """Return the upstream registries of JavaScript packages that npm options name, with their certificates, proxies and credentials.

    Args:
        options: npm options by key, as :func:`parse_options` returns them.
        env: Environment variables; only ``NODE_EXTRA_CA_CERTS`` is used.
    """
    registry, own = split_credential(with_slash(options.get("registry", "").strip() or NPM))
    scopes, more = {}, [own] if own else []
    for key, value in options.items():
        if key.startswith("@") and key.endswith(":registry") and value.strip():
            scopes[key.removesuffix(":registry")], credential = split_credential(with_slash(value.strip()))
            more += [credential] if credential else []
    roots = [registry, *scopes.values()]
    proxies: dict[str, str | None] = {}
    for scheme, names in (("https://", ("https-proxy", "proxy")), ("http://", ("http-proxy", "proxy"))):
        proxy = next((options[name] for name in names if options.get(name, "null") not in {"", "null", "false"}), None)
        if proxy:
            proxies[scheme] = proxy
    if proxies:
        for host in re.split(r"[,\s]+", options.get("noproxy", "")):
            if host and host != "null":
                proxies[f"all://*{host}" if host.startswith(".") else f"all://{host}"] = None
    cafile, ca, extra = (
        value if value != "null" else "" for value in (options.get("cafile", ""), options.get("ca", ""), env.get("NODE_EXTRA_CA_CERTS", ""))
    )
    access = Access(
        ca_files=tuple(dict.fromkeys(path for path in (cafile, extra) if path)),
        ca_text=ca.replace("\\n", "\n"),
        ca_system=not (cafile or ca),
        verify=options.get("strict-ssl", "true").lower() != "false",
        proxies=proxies,
        credentials=(*_credentials(options, roots), *more),
    )
    return NpmSources(registry=registry, scopes=scopes, access=access)


def _credentials(options: Mapping[str, str], roots: list[str]) -> list[Credential]:
    """Return all credentials in npm options. A credential without a URL prefix, as in old npmrc files, is valid for the default registry."""
    schemes = {netloc_of(root): urlsplit(root).scheme for root in roots}
    by_prefix: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        prefix, colon, name = key.rpartition(":")
        if colon and prefix.startswith("//") and name in _SECRETS:
            by_prefix.setdefault(prefix, {})[name] = value
    without_prefix = {name: value for name in ("_authToken", "_auth") if (value := options.get(name, options.get(name.replace("_", "-"), "")))}
    found = []
    if without_prefix:
        by_prefix.setdefault(roots[0].partition(":")[2], without_prefix)
    for prefix, secrets in by_prefix.items():
        header = _header(secrets)
        parts = urlsplit(f"https:{prefix}")
        # The URL prefix of a credential has no scheme. Use the scheme of the registry on the same host; if there is none, use https.
        scheme = schemes.get(netloc_of(f"https:{prefix}")) or schemes.get(netloc_of(f"http:{prefix}")) or "https"
        if header:
            found.append(Credential(scheme, netloc_of(f"{scheme}:{prefix}"), parts.path or "/", header))
    return found


def _header(secrets: Mapping[str, str]) -> str:
    if secrets.get("_authToken"):
        return f"Bearer {secrets['_authToken']}"
    if secrets.get("_auth"):
        return f"Basic {secrets['_auth']}"
    if secrets.get("username") and secrets.get("_password"):
        try:
            return basic_auth(secrets["username"], base64.b64decode(secrets["_password"]).decode())
        except (binascii.Error, ValueError):
            return ""
    return ""


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` by the environment variable. If the variable is unset, ``${NAME}`` stays unchanged and ``${NAME?}`` becomes empty."""
    return _VARIABLE.sub(lambda found: env.get(found[1], "" if found[2] else found[0]), text)


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "'" else value

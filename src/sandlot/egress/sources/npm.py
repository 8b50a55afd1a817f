"""Npm's configuration of this machine: npmrc files and ``npm_config_*`` variables. Pure: texts in, values out.

What each key means: npm's documentation, "npmrc" and "config". A variable goes over a file, the user's file over the machine's. Credentials
stand under the place that they are for: ``//HOST/PATH/:_authToken``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sandlot.egress.sources.values import NPM, Access, Credential, Npm, basic, parted, place, rooted

_VARIABLE = re.compile(r"\$\{([^}?]+)(\?)?\}")
_PREFIX = "npm_config_"
_SECRETS = ("_authToken", "_auth", "username", "_password")


def files(env: Mapping[str, str]) -> list[Path]:
    """The configuration files that npm reads, farthest first: the machine's (Debian's npm has its own place for it), then the user's."""
    lower = {name.lower(): value for name, value in env.items()}
    home = Path(env.get("HOME") or "/nonexistent")
    machine = [Path(lower[f"{_PREFIX}globalconfig"])] if lower.get(f"{_PREFIX}globalconfig") else []
    user = Path(lower.get(f"{_PREFIX}userconfig") or home / ".npmrc")
    return [Path("/etc/npmrc"), Path("/usr/etc/npmrc"), Path("/usr/local/etc/npmrc"), *machine, user]


def options(texts: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """What is set, by key. What occurs more than once (``ca[]``) is joined by newlines.

    Args:
        texts: npmrc files, farthest first.
        env: The environment.
    """
    found: dict[str, str] = {}
    for text in texts:
        own: dict[str, str] = {}
        for line in text.splitlines():
            key, equals, value = line.strip().partition("=")
            if not equals or key.startswith((";", "#", "[")):
                continue
            key, value = _expanded(key.strip(), env), _expanded(_unquoted(value.strip()), env)
            if key.endswith("[]"):
                own[key[:-2]] = "\n".join(filter(None, (own.get(key[:-2], ""), value)))
            else:
                own[key] = value
        found |= own
    variables: dict[str, str] = {}
    for name, value in env.items():
        if name.lower().startswith(_PREFIX) and value:
            key = name[len(_PREFIX) :]
            # "npm_config_//host/:_authToken" is spelled as it is; of the others npm takes underscores for dashes.
            variables[key if key.startswith(("//", "@")) else key.lower().replace("_", "-")] = value
    return found | variables


def npm(set_: Mapping[str, str], env: Mapping[str, str]) -> Npm:
    """Where JavaScript's packages come from.

    Args:
        set_: Npm's keys.
        env: The environment.
    """
    registry, own = parted(rooted(set_.get("registry", "").strip() or NPM))
    scopes, more = {}, [own] if own else []
    for key, value in set_.items():
        if key.startswith("@") and key.endswith(":registry") and value.strip():
            scopes[key.removesuffix(":registry")], credential = parted(rooted(value.strip()))
            more += [credential] if credential else []
    roots = [registry, *scopes.values()]
    proxies: dict[str, str | None] = {}
    for scheme, names in (("https://", ("https-proxy", "proxy")), ("http://", ("http-proxy", "proxy"))):
        proxy = next((set_[name] for name in names if set_.get(name, "null") not in {"", "null", "false"}), None)
        if proxy:
            proxies[scheme] = proxy
    if proxies:
        for host in re.split(r"[,\s]+", set_.get("noproxy", "")):
            if host and host != "null":
                proxies[f"all://*{host}" if host.startswith(".") else f"all://{host}"] = None
    cafile, ca, extra = (
        value if value != "null" else "" for value in (set_.get("cafile", ""), set_.get("ca", ""), env.get("NODE_EXTRA_CA_CERTS", ""))
    )
    access = Access(
        ca_files=tuple(dict.fromkeys(path for path in (cafile, extra) if path)),
        ca_text=ca.replace("\\n", "\n"),
        ca_system=not (cafile or ca),
        verify=set_.get("strict-ssl", "true").lower() != "false",
        proxies=proxies,
        credentials=(*_credentials(set_, roots), *more),
    )
    return Npm(registry=registry, scopes=scopes, access=access)


def _credentials(set_: Mapping[str, str], roots: list[str]) -> list[Credential]:
    """Those that stand under a place, and those of old npmrc files that stand under none and were for the registry."""
    schemes = {place(root): urlsplit(root).scheme for root in roots}
    places: dict[str, dict[str, str]] = {}
    for key, value in set_.items():
        where, colon, name = key.rpartition(":")
        if colon and where.startswith("//") and name in _SECRETS:
            places.setdefault(where, {})[name] = value
    bare = {name: value for name in ("_authToken", "_auth") if (value := set_.get(name, set_.get(name.replace("_", "-"), "")))}
    found = []
    if bare:
        places.setdefault(roots[0].partition(":")[2], bare)
    for where, secrets in places.items():
        header = _header(secrets)
        parts = urlsplit(f"https:{where}")
        # A place is written without a scheme: it is that of the registry there, and never plain HTTP for one that is not.
        scheme = schemes.get(place(f"https:{where}")) or schemes.get(place(f"http:{where}")) or "https"
        if header:
            found.append(Credential(scheme, place(f"{scheme}:{where}"), parts.path or "/", header))
    return found


def _header(secrets: Mapping[str, str]) -> str:
    if secrets.get("_authToken"):
        return f"Bearer {secrets['_authToken']}"
    if secrets.get("_auth"):
        return f"Basic {secrets['_auth']}"
    if secrets.get("username") and secrets.get("_password"):
        try:
            return basic(secrets["username"], base64.b64decode(secrets["_password"]).decode())
        except (binascii.Error, ValueError):
            return ""
    return ""


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """``${NAME}`` replaced; one that is not set stays as it is, and with a question mark becomes nothing."""
    return _VARIABLE.sub(lambda found: env.get(found[1], "" if found[2] else found[0]), text)


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "'" else value

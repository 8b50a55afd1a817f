"""What no file of the repository may contain.

Which mirror and which package index are asked is the machine's own configuration, and nobody's folders but the reader's
exist: an address or a path that slipped in works on one machine only.
"""

from __future__ import annotations

import re

from tests.meta.tree import ROOT, files, name

# Written in pieces, so that this file is no exception.
HOSTS = [
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("ftp", "debian", "org"),
        ("snapshot", "debian", "org"),
        ("security", "debian", "org"),
        ("registry", "npmjs", "org"),
    )
]
FOREIGN_PATHS = re.compile(r"(?<![\w.<>}-])/(?:work|scratch|Users)/")
SECRETS = re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\b(?:ghp|gho|github_pat|glpat|sk|xox[bp])[-_][A-Za-z0-9_-]{20,}")


def test_files_are_text_without_package_hosts_foreign_paths_and_secrets() -> None:
    offenders = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            offenders.append(f"{name(path)}: a binary file")
            continue
        found = [*(host for host in (*HOSTS, str(ROOT)) if host in text), *FOREIGN_PATHS.findall(text), *SECRETS.findall(text)]
        offenders += [f"{name(path)}: {each}" for each in found]
    assert offenders == []

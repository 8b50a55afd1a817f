"""What no file of the repository may contain.

Which mirror and which package index are asked is the machine's own configuration, and nobody's folders but the reader's
exist: an address or a path that slipped in works on one machine only.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", files(), ids=name)
def test_a_file_names_no_package_host_no_foreign_path_and_no_secret(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        pytest.fail("a binary file: the repository holds text")
    assert [host for host in HOSTS if host in text] == []
    assert FOREIGN_PATHS.findall(text) == []
    assert str(ROOT) not in text
    assert SECRETS.findall(text) == []

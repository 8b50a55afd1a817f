"""Software bill of materials of a template, in the format CycloneDX 1.6 (JSON).

The packages are found by a program inside a sandbox of the template, on the interpreter of the guest, so that it works in images without Python.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from sandlot.link import payload
from sandlot.sdk import Sandbox, SandlotError

_RESULT: Final = "/tmp/packages.json"  # noqa: S108 - a path in a sandbox
_NAMESPACES: Final = {"deb": "debian/", "pypi": "", "npm": ""}


def find_packages(template: str) -> list[tuple[str, str, str]]:
    """Return kind, name and version of each package of a template. A sandbox without a network is made for it, and removed.

    Raises:
        NotFoundError: There is no such template.
        ExecutionFailedError: The program failed.
        SandlotError: The program printed something else than packages, because the image is hostile.
    """
    program = (resources.files("sandlot.images") / "packages.py").read_text(encoding="utf-8")
    with Sandbox.create(template=template, network="none") as sandbox:
        sandbox.commands.run([*payload.INTERPRETER_ARGV, "-c", program, _RESULT], user="root", check=True)
        found = sandbox.files.read(_RESULT)
    try:
        return [(str(kind), str(name), str(version)) for kind, name, version in json.loads(found)]
    except (ValueError, TypeError, RecursionError):
        raise SandlotError(f"The packages of the template {template} cannot be listed.", hint="Use an image that Sandlot can run.") from None


def document(template: str, packages: Iterable[tuple[str, str, str]], *, at: datetime) -> dict[str, Any]:
    """Return the bill of materials as JSON values. Pure, except for its random serial number.

    Args:
        template: Name of the template.
        packages: Kind (``deb``, ``pypi`` or ``npm``), name and version of each package.
        at: Time at which the packages were found.
    """
    found = [(name, version, _purl(kind, name, version)) for kind, name, version in packages if kind in _NAMESPACES]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": at.isoformat(), "component": {"type": "container", "name": template, "bom-ref": "template"}},
        "components": [{"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl} for name, version, purl in found],
    }


def _purl(kind: str, name: str, version: str) -> str:
    """Return the package URL (https://github.com/package-url/purl-spec). A scope of npm is a namespace."""
    return f"pkg:{kind}/{_NAMESPACES[kind]}{quote(name, safe='/')}@{quote(version, safe='')}"

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

from sandlot.images.packages import Description
from sandlot.link import payload
from sandlot.sdk import Sandbox, SandlotError

_RESULT: Final = "/tmp/packages.json"  # noqa: S108 - a path in a sandbox
_NAMESPACES: Final = {"deb": "debian/", "pypi": "", "npm": ""}


def find_packages(template: str) -> list[Description]:
    """Return the packages of a template. A sandbox without a network is made for it, and removed.

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
        return [_parse(*values) for values in json.loads(found)]
    except (ValueError, TypeError, RecursionError):
        raise SandlotError(f"The packages of the template {template} cannot be listed.", hint="Use an image that Sandlot can run.") from None


def _parse(kind: object, name: object, version: object, source: object, source_version: object, licences: Iterable[object]) -> Description:
    return Description(str(kind), str(name), str(version), str(source), str(source_version), tuple(map(str, licences)))


def document(template: str, packages: Iterable[Description], *, at: datetime) -> dict[str, Any]:
    """Return the bill of materials as JSON values. Pure, except for its random serial number.

    Args:
        template: Name of the template.
        packages: The packages. Those of another kind than ``deb``, ``pypi`` and ``npm`` are left out.
        at: Time at which the packages were found.
    """
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": at.isoformat(), "component": {"type": "container", "name": template, "bom-ref": "template"}},
        "components": [_component(each) for each in packages if each.kind in _NAMESPACES],
    }


def _component(package: Description) -> dict[str, Any]:
    """Return a package with its licences, and as its ancestor the source package from which Debian has built it."""
    purl = _purl(package.kind, package.name, package.version)
    component: dict[str, Any] = {"type": "library", "name": package.name, "version": package.version, "purl": purl, "bom-ref": purl}
    if package.licences:
        component["licenses"] = [{"license": {"name": name}} for name in package.licences]
    if package.source:
        source = _purl(package.kind, package.source, package.source_version)
        ancestor = {"type": "library", "name": package.source, "version": package.source_version, "purl": f"{source}?arch=source"}
        component["pedigree"] = {"ancestors": [ancestor]}
    return component


def _purl(kind: str, name: str, version: str) -> str:
    """Return the package URL (https://github.com/package-url/purl-spec). A scope of npm is a namespace."""
    return f"pkg:{kind}/{_NAMESPACES[kind]}{quote(name, safe='/')}@{quote(version, safe='')}"

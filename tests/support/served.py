"""The service as it is, with templates of a test's own: ``python -m tests.support.served`` is ``python -m sandlot.server --local``.

``SANDLOT_TEST_ROOTS`` names a folder; each folder in it, or link to a folder, is a template, ready to be a sandbox's root. Nothing else differs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, Principal
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import RootFs, TemplateRef
from sandlot.model.templates import TemplateDefaults
from sandlot.server import composition, process
from sandlot.server.__main__ import main

ROOTS = "SANDLOT_TEST_ROOTS"


class Folders:
    """Folders as templates.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def list(self, _principal: Principal) -> Sequence[TemplateInfo]:
        return [TemplateInfo(name=name, description="", digest=self._digest(name)) for name in self._names()]

    async def find(self, _principal: Principal, name: str) -> TemplateRef | None:
        return TemplateRef(LOCAL, name) if name in self._names() else None

    async def defaults(self, _ref: TemplateRef) -> TemplateDefaults:
        return TemplateDefaults()

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:  # noqa: ARG002 - templates are folders
        return ResolvedTemplate(root=RootFs(self._digest(ref.name), (self._folder / ref.name).resolve()), env={})

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        return await self.build(ref, images=False) if ref.name in self._names() and self._digest(ref.name) == ref.digest else None

    def _names(self) -> Sequence[str]:
        return sorted(path.name for path in self._folder.iterdir())

    def _digest(self, name: str) -> str:
        return hashlib.sha256(str(self._folder / name).encode()).hexdigest()


def use_folders() -> None:
    """Let the service of this process have the folders of ``SANDLOT_TEST_ROOTS`` as templates."""
    vars(process)["open_service"] = functools.partial(composition.open_service, templates=Folders(Path(os.environ[ROOTS])))


if __name__ == "__main__":
    use_folders()
    sys.exit(main(["--local"]))

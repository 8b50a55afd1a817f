"""The service as it is, with templates of a test's own: ``python -m tests.support.served`` is ``python -m sandlot.server --local``.

``SANDLOT_TEST_ROOTS`` names a folder; each folder in it, or link to a folder, is a template, ready to be a sandbox's root. Nothing else differs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from sandlot.core.ports import ResolvedTemplate
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import RootFs
from sandlot.server import compose, serve
from sandlot.server.__main__ import main

ROOTS = "SANDLOT_TEST_ROOTS"


class Folders:
    """Folders as templates.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> Collection[str]:
        return sorted(path.name for path in self._folder.iterdir())

    def all(self) -> Sequence[TemplateInfo]:
        return [TemplateInfo(name=name, description="", digest=self._digest(name)) for name in self.names()]

    def find(self, name: str) -> ResolvedTemplate:
        return self.base(name)

    def base(self, name: str) -> ResolvedTemplate:
        if name not in self.names():
            raise NotFoundError(f"There is no template {name!r}.", code=ErrorCode.TEMPLATE_NOT_FOUND)
        return ResolvedTemplate(root=RootFs((self._folder / name).resolve(), self._digest(name)), env={})

    def at(self, name: str, digest: str) -> ResolvedTemplate | None:
        return self.base(name) if name in self.names() and self._digest(name) == digest else None

    def _digest(self, name: str) -> str:
        return hashlib.sha256(str(self._folder / name).encode()).hexdigest()


if __name__ == "__main__":
    vars(serve)["open_service"] = functools.partial(compose.open_service, templates=Folders(Path(os.environ[ROOTS])))
    sys.exit(main(["--local"]))

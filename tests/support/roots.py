"""Root file systems of a test's own: odd images, with the guest that the product puts in, or with another in its place.

They lie beside the image cache, because their files are hard links to it: nothing is copied, and nothing may be written in
place - replace a file, never overwrite one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot.host.locked_folder import remove_tree
from sandlot.images import tree
from sandlot.images.recipe import Debian, Recipe, Step
from sandlot.images.store import ImageStore
from sandlot.link.payload import GUEST_ROOT
from tests.support.cache import CACHE_DIR
from tests.support.localservice import TEMPLATE

GUEST = GUEST_ROOT.strip("/")
BUSYBOX = Recipe(
    "busybox",
    debian=Debian(suite="bookworm", variant="extract", packages=("busybox-static",)),
    run=(Step(("/bin/busybox", "--install", "-s", "/bin")),),
)
"""An image with one program, Debian's static busybox, and without Python."""


def busybox_image() -> Path:
    """Return the tree of the image ``BUSYBOX``, which is built first if it is not in the image cache."""
    return ImageStore(CACHE_DIR, {BUSYBOX.name: BUSYBOX}).ensure(BUSYBOX.name).path


class Roots:
    """A folder of roots.

    Args:
        folder: Where they are; on the image cache's file system.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = ImageStore(CACHE_DIR).root(TEMPLATE).require_tree()
        """The root of the usual template, guest and all."""

    def add(self, name: str, image: Path | None = None) -> Path:
        """A new root: a copy of an image by hard links, or empty; with the guest.

        Args:
            name: What the template is called.
            image: The tree to copy; its own guest, where it has one, gives way to ours.
        """
        root = self.folder / name
        if image is None:
            root.mkdir(mode=0o755)
        else:
            subprocess.run(["cp", "-al", str(image), str(root)], check=True)  # a third of the time that Python takes
        if os.path.lexists(root / GUEST):
            remove_tree(root / GUEST)
        tree.link_tree(self.image / GUEST, root / GUEST)
        return root

    def add_image(self, name: str) -> None:
        """Add the usual template itself: a link, where :meth:`add` makes 13,000 hard links.

        Args:
            name: Name of the template.
        """
        (self.folder / name).symlink_to(self.image)

    def add_impostor(self, name: str, before: str = "", image: Path | None = None) -> Path:
        """Add a root whose guest is hostile (``impostor.py``).

        Args:
            name: Name of the template.
            before: Python code that the guest runs before it greets.
            image: Tree to copy. By default the root has the guest alone, which needs nothing else: an image has 13,000 files to link.
        """
        root = self.add(name, image)
        guest = root / GUEST
        (guest / "guest.zip").rename(guest / "real.zip")
        package = guest / "guest.zip" / "sandlot" / "guest"
        package.mkdir(parents=True)
        for folder in (package.parent, package):
            (folder / "__init__.py").write_text("")
        (package / "main.py").write_bytes(Path(__file__).with_name("impostor.py").read_bytes())
        (guest / "before.py").write_text(before)
        return root


def replace(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Put a file in a root, in the place of whatever has the name."""
    if os.path.lexists(path):
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


@contextmanager
def own_roots() -> Iterator[Roots]:
    """A folder for roots; gone afterwards."""
    ImageStore(CACHE_DIR).root(TEMPLATE)
    folder = Path(tempfile.mkdtemp(prefix="test-roots-", dir=CACHE_DIR))
    try:
        yield Roots(folder)
    finally:
        shutil.rmtree(folder)

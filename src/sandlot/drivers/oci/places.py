"""Where things of one sandbox are: in its folder on the host, and in the private view of its own processes.

Laws:
- A sandbox's *ref* is ``NNNN-RRRRRRRRRRRRRRRR``: its node and 16 random characters, always 21 long. Its folder, its control
  group and, through its folder, its loop device are derived from the ref alone, so that what a crash leaves can be found
  without any record.
- The runtime sees short, fixed paths below :data:`VIEW`, whatever the folder's real path is: a control socket's path may
  have 107 bytes only (unix(7)), and runsc would otherwise fall back to ``/run`` and ``/tmp`` of the host. They are bind
  mounts in a mount namespace of the sandbox's own (``host/stage``), over a ``/run`` that is empty there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandlot.host.hierarchies import GROUPS
from sandlot.model.ids import NODE_CHARS, IdSource, NodeId, new_sandbox_id

REF = re.compile(r"[a-z2-7]{4}-[a-z2-7]{16}")

VIEW_CGROUPS = "/sys/fs/cgroup"
VIEW_GROUP = PurePosixPath("/sandbox")
"""The sandbox's group in the tree that runsc is shown (``gvisor/plan.py``)."""

VIEW_MOUNT = "/run"
VIEW = f"{VIEW_MOUNT}/sandlot"
VIEW_FOLDER = f"{VIEW}/instance"
VIEW_ROOT = f"{VIEW}/root"
VIEW_DISK = f"{VIEW}/disk"
VIEW_PROGRAM = f"{VIEW}/program"
VIEW_LOWER = f"{VIEW}/lower"
VIEW_IDS = f"{VIEW}/ids"
VIEW_VOLUMES = f"{VIEW}/volumes"
VIEW_BOOT_ID = f"{VIEW}/boot_id"


def new_ref(node: NodeId, source: IdSource) -> str:
    """A fresh ref of this node."""
    return new_sandbox_id(node, source).removeprefix("sb-")


def is_ref(text: str, node: NodeId) -> bool:
    """Whether a name is a ref of this node."""
    return REF.fullmatch(text) is not None and text[:NODE_CHARS] == node


def node_group(node: NodeId) -> PurePosixPath:
    """The control group that all of a node's sandboxes are in."""
    return GROUPS / node


def sandboxes_folder(data_dir: Path) -> Path:
    """Where all folders of sandboxes are."""
    return data_dir / "sandboxes"


def runtimes_folder(data_dir: Path) -> Path:
    """Where builds of runtimes are kept, each in a folder named by its SHA-256."""
    return data_dir / "runtimes"


def volume_mounts(data_dir: Path) -> Path:
    """Below which the volumes are mounted on the host."""
    return data_dir / "volumes" / "mounted"


def saved_images(data_dir: Path) -> Iterator[Path]:
    """The folders of all snapshots that outlive their sandboxes."""
    return data_dir.glob("saved/*/image")


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one sandbox, and what is in it.

    Args:
        path: The folder, absolute; its last part is the ref.
    """

    path: Path

    @property
    def ref(self) -> str:
        """The sandbox's ref."""
        return self.path.name

    @property
    def record(self) -> Path:
        """What was intended, by the service (``record.py``)."""
        return self.path / "record.json"

    @property
    def live(self) -> Path:
        """Who runs, by the keeper."""
        return self.path / "live"

    @property
    def exit(self) -> Path:
        """How it ended, by the keeper."""
        return self.path / "exit"

    @property
    def config(self) -> Path:
        """The OCI bundle's configuration."""
        return self.path / "bundle" / "config.json"

    @property
    def runtime(self) -> Path:
        """The runtime's own state."""
        return self.path / "runtime"

    @property
    def runtime_log(self) -> Path:
        """What the runtime's command line said."""
        return self.path / "runtime.log"

    @property
    def panic_log(self) -> Path:
        """What the runtime said when it failed."""
        return self.path / "panic.log"

    @property
    def control(self) -> Path:
        """Runsc's control socket."""
        return self.runtime / f"runsc-{self.ref}.sock"

    @property
    def image(self) -> Path:
        """A snapshot that is being written."""
        return self.path / "image.new"

    @property
    def refreeze(self) -> Path:
        """There while a sandbox that is paused was thawed for a snapshot."""
        return self.path / "refreeze"

    @property
    def roomy(self) -> Path:
        """There while a sandbox's memory limit is higher than what is recorded, after a snapshot."""
        return self.path / "roomy"

    @property
    def stage_log(self) -> Path:
        """What the stage said when it failed."""
        return self.path / "stage.log"

    @property
    def disk_image(self) -> Path:
        """The disk, where it is a file system of its own."""
        return self.path / "disk.img"

    @property
    def disk(self) -> Path:
        """The disk, where the runtime itself limits it."""
        return self.path / "disk"

    @property
    def tmp(self) -> Path:
        """What the sandbox's ``/tmp`` starts with."""
        return self.path / "tmp"

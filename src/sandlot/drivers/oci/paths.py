"""Paths of one sandbox: in its folder on the host, and in the mount namespace of its processes.

Invariants:
- The *ref* of a sandbox is ``NNNN-RRRRRRRRRRRRRRRR``: its node and 16 random characters, always 21 characters long. The names of its folder and of
  its control group, and through the folder its loop device, are derived from the ref alone. So everything that a crash leaves is found without a
  record.
- The runtime sees short, fixed paths below :data:`VIEW`, whatever the real path of the folder is. The path of a control socket is limited to 107
  bytes (unix(7)); for a longer path, runsc would use ``/run`` and ``/tmp`` of the host. These paths are bind mounts in the sandbox's own mount
  namespace (``host/stage``), over a ``/run`` that is empty there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandlot.host.cgroup_layout import GROUPS
from sandlot.model.ids import NODE_CHARS, IdSource, NodeId, new_sandbox_id

REF = re.compile(r"[a-z2-7]{4}-[a-z2-7]{16}")

VIEW_CGROUPS = "/sys/fs/cgroup"
VIEW_GROUP = PurePosixPath("/sandbox")
"""The sandbox's control group in the tree that runsc sees (``gvisor/plan.py``)."""

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
    """Return a new random ref of a node."""
    return new_sandbox_id(node, source).removeprefix("sb-")


def is_ref(text: str, node: NodeId) -> bool:
    """Return whether a name is a ref of this node."""
    return REF.fullmatch(text) is not None and text[:NODE_CHARS] == node


def node_group(node: NodeId) -> PurePosixPath:
    """Return the control group that contains the groups of all sandboxes of a node."""
    return GROUPS / node


def sandboxes_folder(data_dir: Path) -> Path:
    """Return the folder that contains the folders of all sandboxes."""
    return data_dir / "sandboxes"


def runtimes_folder(data_dir: Path) -> Path:
    """Return the folder with the kept builds of runtimes, each in a subfolder named by its SHA-256."""
    return data_dir / "runtimes"


def volume_mounts(data_dir: Path) -> Path:
    """Return the folder below which volumes are mounted on the host."""
    return data_dir / "volumes" / "mounted"


def saved_images(data_dir: Path) -> Iterator[Path]:
    """Return the folders of all snapshots that outlive their sandboxes."""
    return data_dir.glob("saved/*/image")


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    """Folder of one sandbox and the paths in it.

    A later service reads these files, which an earlier service left: ``record.json``, ``live``, ``exit``, ``image.new``, ``refreeze`` and ``roomy``.

    Args:
        path: Absolute path of the folder. Its last part is the ref.
    """

    path: Path

    @property
    def ref(self) -> str:
        """The ref of the sandbox."""
        return self.path.name

    @property
    def record(self) -> Path:
        """Record of the service's intent for the sandbox (``record.py``)."""
        return self.path / "record.json"

    @property
    def live(self) -> Path:
        """The processes of the live sandbox, written by the keeper."""
        return self.path / "live"

    @property
    def exit(self) -> Path:
        """The exit code of the sandbox, written by the keeper."""
        return self.path / "exit"

    @property
    def config(self) -> Path:
        """The configuration of the OCI bundle."""
        return self.path / "bundle" / "config.json"

    @property
    def runtime(self) -> Path:
        """Folder of the runtime's state."""
        return self.path / "runtime"

    @property
    def runtime_log(self) -> Path:
        """Log of the runtime's command line."""
        return self.path / "runtime.log"

    @property
    def panic_log(self) -> Path:
        """Output of a runtime that crashed."""
        return self.path / "panic.log"

    @property
    def control(self) -> Path:
        """Control socket of runsc."""
        return self.runtime / f"runsc-{self.ref}.sock"

    @property
    def image(self) -> Path:
        """Folder of a snapshot that is being written."""
        return self.path / "image.new"

    @property
    def refreeze(self) -> Path:
        """Path of a marker file that exists while a paused sandbox is thawed for a snapshot."""
        return self.path / "refreeze"

    @property
    def roomy(self) -> Path:
        """Path of a marker file that exists while the memory limit is higher than the recorded limit, after a snapshot."""
        return self.path / "roomy"

    @property
    def stage_log(self) -> Path:
        """Error output of the stage."""
        return self.path / "stage.log"

    @property
    def disk_image(self) -> Path:
        """Image of the disk's file system. Missing if the runtime limits the disk itself."""
        return self.path / "disk.img"

    @property
    def disk(self) -> Path:
        """Folder of the disk. Missing if the disk has its own file system."""
        return self.path / "disk"

    @property
    def tmp(self) -> Path:
        """Initial content of the sandbox's ``/tmp``."""
        return self.path / "tmp"

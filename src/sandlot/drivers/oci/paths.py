"""Paths of one sandbox: in its folder on the host, and in the mount namespace of its processes.

Invariants:
- The *ref* of a sandbox is ``NNNN-RRRRRRRRRRRRRRRR``: the id of its node and 16 random characters, in total 21 characters. The names of the
  sandbox's folder and control group are derived from the ref alone, and the loop device is found through its image file in the folder. So everything
  that a crash leaves behind is found without a record.
- The runtime sees short, fixed paths below :data:`VIEW`, whatever the real path of the folder is. The reason is that the path of a control socket is
  limited to 107 bytes (unix(7)); for a longer path, runsc would use ``/run`` and ``/tmp`` of the host. The short paths are bind mounts in the
  sandbox's own mount namespace (``host/stage``), on top of an empty file system at ``/run``.
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
VIEW_IMAGE = f"{VIEW}/image"
VIEW_DISK = f"{VIEW}/disk"
VIEW_PROGRAM = f"{VIEW}/program"
VIEW_LOWER = f"{VIEW}/lower"
VIEW_IDS = f"{VIEW}/ids"
VIEW_VOLUMES = f"{VIEW}/volumes"
VIEW_BOOT_ID = f"{VIEW}/boot_id"


def new_ref(node: NodeId, source: IdSource) -> str:
    """Return a new random ref for a sandbox of a node."""
    return new_sandbox_id(node, source).removeprefix("sb-")


def is_ref(text: str, node: NodeId) -> bool:
    """Return whether a text is the ref of a sandbox of a node."""
    return REF.fullmatch(text) is not None and text[:NODE_CHARS] == node


def node_group(node: NodeId) -> PurePosixPath:
    """Return the control group that contains the groups of all sandboxes of a node."""
    return GROUPS / node


def sandboxes_folder(data_dir: Path) -> Path:
    """Return the folder that contains the folders of all sandboxes."""
    return data_dir / "sandboxes"


def runtimes_folder(data_dir: Path) -> Path:
    """Return the folder with the copies of runtime builds. Each copy is in a subfolder named by the SHA-256 of the build."""
    return data_dir / "runtimes"


def volume_mounts(data_dir: Path) -> Path:
    """Return the folder below which volumes are mounted on the host."""
    return data_dir / "volumes" / "mounted"


def saved_images(data_dir: Path) -> Iterator[Path]:
    """Return the folders of all saved snapshots. A saved snapshot remains when its source sandbox is removed."""
    return data_dir.glob("saved/*/image")


@dataclass(frozen=True, slots=True)
class SandboxFolder:
    """Folder of one sandbox and the paths in it.

    After a restart, the service reads files that the previous service left: ``record.json``, ``live``, ``exit``, ``image.new``, ``refreeze`` and
    ``roomy``.

    Args:
        path: Absolute path of the folder. The last part of the path is the ref of the sandbox.
    """

    path: Path

    @property
    def ref(self) -> str:
        """Ref of the sandbox: the id of its node and 16 random characters."""
        return self.path.name

    @property
    def record(self) -> Path:
        """Path of the file with the sandbox's record: its current step and its limits (``record.py``)."""
        return self.path / "record.json"

    @property
    def live(self) -> Path:
        """Path of the file with the identities of the live sandbox's processes, written by the keeper process."""
        return self.path / "live"

    @property
    def exit(self) -> Path:
        """Path of the file with the exit code of the sandbox, written by the keeper process."""
        return self.path / "exit"

    @property
    def config(self) -> Path:
        """Path of the ``config.json`` of the OCI bundle."""
        return self.path / "bundle" / "config.json"

    @property
    def runtime(self) -> Path:
        """Path of the folder in which the runtime stores its state."""
        return self.path / "runtime"

    @property
    def runtime_log(self) -> Path:
        """Path of the log file of the runtime's command line."""
        return self.path / "runtime.log"

    @property
    def panic_log(self) -> Path:
        """Path of the file with the output of a runtime that crashed."""
        return self.path / "panic.log"

    @property
    def control(self) -> Path:
        """Path of the control socket of runsc."""
        return self.runtime / f"runsc-{self.ref}.sock"

    @property
    def image(self) -> Path:
        """Path of the folder in which a snapshot is written, until the snapshot is complete."""
        return self.path / "image.new"

    @property
    def refreeze(self) -> Path:
        """Path of a marker file that exists while a paused sandbox is thawed for a snapshot."""
        return self.path / "refreeze"

    @property
    def roomy(self) -> Path:
        """Path of a marker file. It exists while the memory limit still has to be lowered to the recorded limit after a snapshot or restore."""
        return self.path / "roomy"

    @property
    def stage_log(self) -> Path:
        """Path of the file with the standard error of the stage, the process that sets up the sandbox."""
        return self.path / "stage.log"

    @property
    def disk_image(self) -> Path:
        """Path of the image file with the disk's file system. There is no such file if the runtime itself limits the disk."""
        return self.path / "disk.img"

    @property
    def disk(self) -> Path:
        """Path of the folder that is the sandbox's disk. There is no such folder if the disk has its own file system."""
        return self.path / "disk"

    @property
    def tmp(self) -> Path:
        """Path of the folder with the initial content of the sandbox's ``/tmp``."""
        return self.path / "tmp"

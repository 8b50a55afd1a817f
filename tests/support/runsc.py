"""A bare gVisor sandbox on a root, for tests that look at an image from the inside."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from sandlot.model.specs import RootFs


def inside(
    root: RootFs, env: Mapping[str, str], argv: tuple[str, ...], tmp_path: Path, *, uid: int = 1000, data: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a gVisor sandbox on a root, which stays as it is: what is written goes to memory."""
    home = "/root" if uid == 0 else "/home/user"
    binds = [{"destination": "/mnt", "type": "bind", "source": str(data), "options": ["ro"]}] if data is not None else []
    capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID"] if uid == 0 else []
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": uid},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in {"HOME": home, **env}.items()],
            "cwd": "/workspace",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "root": {"path": str(root.tree)},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            *binds,
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
    }
    bundle = tmp_path / f"bundle-{time.monotonic_ns()}"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
    flags = ["--network=none", "--ignore-cgroups", "--overlay2=root:memory", "--platform=systrap", f"--root={tmp_path / 'runsc'}"]
    done = subprocess.run(
        ["runsc", *flags, "run", f"--bundle={bundle}", f"images-{bundle.name[-15:]}"],
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done

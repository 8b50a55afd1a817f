"""Runs the program: reads its job from a file, makes the image and its index, and reports lines of JSON.

A line has one of the keys ``step`` (text for people), ``refused`` (the reason, with ``layer``, ``entry`` and ``is_limit``) and ``size_bytes`` (the
image is made).
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sandlot.builds.merge_program.files import Files
from sandlot.builds.merge_program.layers import CHUNK_BYTES, Blob, Budget, RefusedError, read_entries, verify
from sandlot.builds.merge_program.layout import Layout, apply_layout
from sandlot.builds.merge_program.output import list_folders, write_archive
from sandlot.host.image_index import write_index

_MAX_WARNINGS = 50


def main(path: str) -> None:
    """Run a job. Exits with status 1 if the image is refused.

    Args:
        path: File of the job, in JSON: the layers with ``path``, ``digest``, ``size_bytes`` and ``diff_id``, the limits, the layout, and both files
            to write.
    """
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        size_bytes = run(job, lambda line: _report({"step": line}))
    except RefusedError as error:
        _report({"refused": error.reason[:500], "layer": error.layer, "entry": ascii(error.entry)[1:-1][:200], "is_limit": error.is_limit})
        sys.exit(1)
    _report({"size_bytes": size_bytes})


def run(job: Mapping[str, Any], report: Callable[[str], object]) -> int:
    """Make the image and the index of a job. Return the size of all files.

    Raises:
        RefusedError: The image is refused. No complete file is left.
    """
    files, blobs = merge(job, report)
    report("writing the image")
    try:
        with Path(job["index"]).open("xb") as index:
            write_index(index, list_folders(files))
    except ValueError as error:
        raise RefusedError(str(error), is_limit=True) from None
    return _make_image(job, files, blobs)


def merge(job: Mapping[str, Any], report: Callable[[str], object]) -> tuple[Files, list[Blob]]:
    """Return the file system of a job, and its layers."""
    warned = 0

    def warn(text: str) -> None:
        nonlocal warned
        warned += 1
        if warned <= _MAX_WARNINGS:
            report(f"warning: {text}")

    blobs = [Blob(layer["path"], layer["digest"], layer["size_bytes"], layer["diff_id"]) for layer in job["layers"]]
    time_ns = job["time_s"] * 10**9
    files, budget = Files(time_ns, warn), Budget(job["max_bytes"], job["max_entries"])
    for blob in {blob.digest: blob for blob in blobs if blob.digest}.values():
        verify(blob)
    for number, blob in enumerate(blobs):
        report(f"reading layer {number + 1} of {len(blobs)}")
        files.apply(number, blob, read_entries(blob, budget))
    folders = {path: (mode, owner) for path, (mode, owner) in job["folders"].items()}
    apply_layout(files, Layout(folders, job["files"], job["home"], job["user"], job["guest"], time_ns), warn)
    if warned > _MAX_WARNINGS:
        report(f"warning: {warned - _MAX_WARNINGS} more warnings")
    return files, blobs


def _make_image(job: Mapping[str, Any], files: Files, blobs: list[Blob]) -> int:
    # Not `-T` alone: it would give all files the same time, and byte code contains the time of its source.
    argv = ["mkfs.erofs", "--quiet", "--tar=f", "-U", job["uuid"], "--mkfs-time", "-T", str(job["time_s"]), "-Enoinline_data", job["image"]]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=CHUNK_BYTES) as mkfs:
        assert mkfs.stdin is not None and mkfs.stderr is not None  # noqa: S101, PT018 - pipes
        fcntl.fcntl(mkfs.stdin, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
        size = None
        try:
            size = write_archive(files, blobs, mkfs.stdin)
            mkfs.stdin.close()
        except BrokenPipeError:  # mkfs.erofs has ended; its output says why
            size = None
        detail = mkfs.stderr.read(4000).decode(errors="replace").strip()
    if mkfs.returncode == 0 and size is not None:
        return size
    if "No space left" in detail:
        raise RefusedError("its root file system does not fit on the disk on which it is made", is_limit=True)
    raise RuntimeError(f"mkfs.erofs failed with status {mkfs.returncode}: {detail[-1000:]}")


def _report(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()

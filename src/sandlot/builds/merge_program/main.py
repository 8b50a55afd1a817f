"""Runs the program: reads its job from a file, makes the image and its index, and reports lines of JSON.

A line has one of the keys ``step`` (text for people), ``refused`` (the reason, with ``layer``, ``entry`` and ``is_limit``) and ``size_bytes`` (the
image is made).
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from sandlot.builds.merge_program.erofs import ImageWriter, read_image, unreadable_folders
from sandlot.builds.merge_program.files import Files
from sandlot.builds.merge_program.layers import CHUNK_BYTES, Blob, Budget, RefusedError, read_entries, verify
from sandlot.builds.merge_program.layout import Layout, apply_layout
from sandlot.builds.merge_program.output import list_folders, write_files
from sandlot.host.image_index import write_index
from sandlot.protocol import tar

_MAX_WARNINGS = 50


def main(path: str) -> None:
    """Run a job. Exits with status 1 if the image is refused.

    Args:
        path: File of the job, in JSON: the image below the layers (empty: there is none) and its UUID, the layers with ``path``, ``digest``,
            ``size_bytes`` and ``diff_id``, the limits, the layout, and both files to write.
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
    files, blobs, base_blocks = merge(job, report)
    report("writing the image")
    try:
        with Path(job["index"]).open("xb") as index:
            write_index(index, list_folders(files))
        with Path(job["image"]).open("xb", buffering=CHUNK_BYTES) as image:
            writer = ImageWriter(image, base_blocks)
            size = write_files(files, blobs, writer)
            writer.finish(files, UUID(job["uuid"]).bytes, job["time_s"])
    except ValueError as error:
        raise RefusedError(str(error), is_limit=True) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise RefusedError("its root file system does not fit on the disk on which it is made", is_limit=True) from None
        raise
    return size


def merge(job: Mapping[str, Any], report: Callable[[str], object]) -> tuple[Files, list[Blob], int]:
    """Return the file system of a job, its layers, and the number of blocks of the image below them; 0 if there is none."""
    warned = 0

    def warn(text: str) -> None:
        nonlocal warned
        warned += 1
        if warned <= _MAX_WARNINGS:
            report(f"warning: {text}")

    blobs = [Blob(layer["path"], layer["digest"], layer["size_bytes"], layer["diff_id"]) for layer in job["layers"]]
    time_ns = job["time_s"] * 10**9
    files, budget = Files(time_ns, warn), Budget(job["max_bytes"], job["max_entries"])
    base_blocks, guest = 0, None
    if job["base"]:
        report("reading the image of the template")
        base_blocks = read_image(Path(job["base"]), UUID(job["base_uuid"]).bytes, files)
        guest = files.root.children.pop(job["guest"].strip("/"))  # no layer can change it
    for blob in {blob.digest: blob for blob in blobs}.values():
        verify(blob)
    for number, blob in enumerate(blobs):
        report(f"reading layer {number + 1} of {len(blobs)}")
        files.apply(number, blob, read_entries(blob, budget))
    folders = {path: (mode, owner) for path, (mode, owner) in job["folders"].items()}
    apply_layout(files, Layout(folders, job["files"], job["home"], job["user"], job["guest"], time_ns), warn, guest)
    for folder in unreadable_folders(files):
        warn(f"programs may not be able to list the folder {tar.shown(folder)}: its names are too long for some versions of gVisor")
    if warned > _MAX_WARNINGS:
        report(f"warning: {warned - _MAX_WARNINGS} more warnings")
    return files, blobs, base_blocks


def _report(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()

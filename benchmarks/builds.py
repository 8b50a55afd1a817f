"""Builds of templates: the root image of an image of 200 MB, a build without changes, and a build with pip.

- ``merge``: processor time of the sandbox that makes a bootable root image from two stored layers of 213 MB and some 10,000 files, and the time
  until the image is there. The processor time is read every 20 ms until the sandbox is removed.
- ``again``: time until an unchanged Dockerfile is ready.
- ``cold``: time until a Dockerfile with ``FROM``, ``COPY``, ``RUN pip install`` and ``COPY`` is ready, without cached steps. The packages (17 wheels,
  30 MB) are in the package cache after the first build, which is not counted.

Each row has the median, the least and the largest value. Run ``python -m benchmarks.builds [merge|again|cold …] [--rounds N] [--json]`` as root. Each
part takes up to four minutes with 10 rounds on 2 processors.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import io
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from sandlot import Client, SandlotError
from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.images.store import BUILDER, ImageStore
from sandlot.model.images import Layer
from sandlot.model.templates import BuiltRoot
from sandlot.server.composition import RunningService, open_service
from sandlot.server.settings import Settings
from tests.support.cache import CACHE_DIR

PARTS: Final = ("merge", "again", "cold")
IMAGE_BYTES: Final = 213_000_000
"""Size of the files of the image, that of ``python:slim`` with its packages."""
GZIP: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
SAMPLE_S: Final = 0.02
START_S: Final = 60.0
DOCKERFILE: Final = """\
FROM base
WORKDIR /srv/app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV GREETING=hello
CMD ["gunicorn", "--bind", "0.0.0.0:8000", "app:app"]
"""
FILES: Final[Mapping[str, str]] = {
    "Dockerfile": DOCKERFILE,
    "requirements.txt": "flask\ngunicorn\nrequests\npandas\n",
    "app.py": "from flask import Flask\n\napp = Flask(__name__)\n\n\n@app.get('/')\ndef index():\n    return 'hello'\n",
}
READY: Final = "curl -sf localhost:8000"


class Rows:
    """Values by row."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, row: str) -> Iterator[None]:
        """Add the seconds that a block takes."""
        began_s = time.perf_counter()
        yield
        self.rows[row].append(time.perf_counter() - began_s)

    def table(self) -> str:
        """Return the results for people."""
        lines = [f"{'':52}{'median':>9}{'least':>9}{'largest':>9}{'n':>4}"]
        for row, values in self.rows.items():
            lines.append(f"{row:52}{statistics.median(values):9.2f}{min(values):9.2f}{max(values):9.2f}{len(values):4}")
        return "\n".join(lines)


# Root images ---------------------------------------------------------------------------------------------------------


async def merge(rows: Rows, rounds: int, folder: Path) -> None:
    """Make the root image of the same image again and again."""
    settings = Settings(data_dir=folder / "data", cache_dir=CACHE_DIR, pools=())
    settings.data_dir.mkdir(mode=0o700)
    images = ImageStore(CACHE_DIR)
    base = (await asyncio.to_thread(images.ensure, "base")).path
    await asyncio.to_thread(images.root_image, BUILDER)
    async with open_service(settings) as service:
        root = BuiltRoot(await _store_layers(service, await asyncio.to_thread(_halves, base)), IMAGE_BYTES)
        for number in range(rounds):
            builder = MergedRootImages(images, folder / f"cache-{number}")
            builder.connect(service.node)
            reading = asyncio.create_task(_read_cpu(service))
            try:
                with rows.timed("root image of 213 MB, until it is there, s"):
                    await builder.ensure(root, service.layers.open)
                rows.rows["root image of 213 MB, processor time, s"].append(await reading)
            finally:
                reading.cancel()
                await builder.aclose()
            shutil.rmtree(folder / f"cache-{number}")


async def _read_cpu(service: RunningService) -> float:
    """Wait for the sandbox in which a root image is made, and return its processor time in seconds when it is removed."""
    used_s = 0.0
    while not (live := service.internals.registry.live()):  # noqa: ASYNC110 - nothing tells that a sandbox was created
        await asyncio.sleep(SAMPLE_S)
    (sandbox,) = live
    while sandbox in service.internals.registry.live():
        if sandbox.instance is not None:
            with suppress(SandlotError, OSError):  # it is being removed
                used_s = max(used_s, (await sandbox.instance.usage()).cpu_s)
        await asyncio.sleep(SAMPLE_S)
    return used_s


def _halves(base: Path) -> list[bytes]:
    """Return two archives with files of an image, ``IMAGE_BYTES`` together."""
    halves: list[list[Path]] = [[], []]
    size = 0
    for path in sorted(base.rglob("*")):
        size_bytes = path.lstat().st_size
        if size + size_bytes <= IMAGE_BYTES:
            size += size_bytes
            halves[size > IMAGE_BYTES // 2].append(path)
    return [_archive(base, paths) for paths in halves]


def _archive(base: Path, paths: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in paths:
            archive.add(path, str(path.relative_to(base)), recursive=False)
    return buffer.getvalue()


async def _store_layers(service: RunningService, archives: list[bytes]) -> tuple[Layer, ...]:
    layers = []
    for archive in archives:
        with service.layers.begin() as plain:
            plain.append(archive)
            diff_id = (await plain.finish(GZIP)).diff_id
        with service.layers.begin() as writer:
            await writer.write(await asyncio.to_thread(gzip.compress, archive, 6, mtime=0))
            layers.append(await writer.finish(GZIP, diff_id))
    return tuple(layers)


# Builds --------------------------------------------------------------------------------------------------------------


@contextmanager
def serving(folder: Path) -> Iterator[Client]:
    """Run a service without pools."""
    env = {**os.environ, "SANDLOT_DATA_DIR": str(folder), "SANDLOT_POOLS": "none"}
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "sandlot.server"], env=env, stdout=log, stderr=log)
    try:
        client = Client(data_dir=folder, autostart=False)
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            try:
                client.templates.list()
                break
            except (SandlotError, OSError):
                time.sleep(0.1)
        yield client
    finally:
        process.terminate()
        process.wait()


def build(rows: Rows, parts: list[str], rounds: int, folder: Path) -> None:
    """Build the application, again without a change, and again without cached steps."""
    context, data = folder / "context", folder / "service"
    context.mkdir()
    data.mkdir(mode=0o700)
    for name, text in FILES.items():
        (context / name).write_text(text)
    with serving(data) as client:
        client.templates.build("bench-app", context=context, ready_command=READY)
        for part, row in (("again", "unchanged Dockerfile, until ready, s"), ("cold", "FROM, COPY, RUN pip, COPY, until ready, s")):
            for _ in range(rounds if part in parts else 0):
                with rows.timed(row):
                    client.templates.build("bench-app", context=context, ready_command=READY, no_cache=part == "cold")


def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # the output is that of the benchmark
    rows, folder = Rows(), Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    try:
        if "merge" in args.parts:
            asyncio.run(merge(rows, args.rounds, folder))
        if {"again", "cold"} & set(args.parts):
            build(rows, args.parts, args.rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write((json.dumps(rows.rows) if args.json else rows.table()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

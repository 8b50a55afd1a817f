"""Limits of builds of templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.model.network import NetworkPolicy
from sandlot.model.specs import GIB, MIB


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Limits of builds, which the operator sets.

    Args:
        builds: Maximum number of builds that run at once on the node.
        builds_per_key: Maximum number of builds of one owner that run at once. Further builds wait.
        waiting_per_key: Maximum number of builds of one owner that wait.
        build_s: Maximum seconds of one build.
        log_lines: Maximum lines of output in the log of a build. Further output is dropped.
        lines_per_s: Lines of output per second that the log takes on average.
        output_bytes: Output in bytes after which a build fails.
        context_bytes: Maximum size in bytes of a build context without compression.
        context_entries: Maximum number of files of a build context.
        layer_bytes: Maximum size in bytes of the files that a build adds to its base.
        layer_entries: Maximum number of these files.
        cache_bytes: Maximum size in bytes of the step cache of one owner. 0: no step cache.
        node_cache_bytes: Maximum size in bytes of the step cache of all owners of the node.
        cache_s: Seconds until a cached step is removed.
        cached_step_s: Seconds that a step must have taken to be cached.
        network: Network policy of builds. None: the default of sandboxes.
    """

    builds: int = 4
    builds_per_key: int = 2
    waiting_per_key: int = 20
    build_s: float = 1800.0
    log_lines: int = 10_000
    lines_per_s: float = 200.0
    output_bytes: int = 256 * MIB
    context_bytes: int = 2 * GIB
    context_entries: int = 100_000
    layer_bytes: int = 10 * GIB
    layer_entries: int = 500_000
    cache_bytes: int = 5 * GIB
    node_cache_bytes: int = 20 * GIB
    cache_s: float = 7 * 24 * 3600.0
    cached_step_s: float = 2.0
    network: NetworkPolicy | None = None


CHUNK_BYTES: Final = 1 * MIB
"""Bytes that are read, hashed or written at once."""

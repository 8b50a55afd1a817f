"""Identifiers: fixed length, DNS-label safe, and carrying the node that made them.

Laws:
- A sandbox id is ``sb-NNNN-RRRRRRRRRRRRRRRR``: 4 characters of node, 16 random ones (80 bits), always 24 long.
  runsc matches ids by prefix, so ids of one kind never differ in length.
- The alphabet is lower-case base 32 without padding (RFC 4648), safe in host names, paths and cgroup names.
- Randomness comes from the caller's ``IdSource``, so that tests are repeatable.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable
from typing import NewType

SandboxId = NewType("SandboxId", str)
NodeId = NewType("NodeId", str)
SnapshotId = NewType("SnapshotId", str)
"""``snap-NNNN-RRRRRRRRRRRRRRRR``: node and 16 random characters, lower-case base 32."""
VolumeId = NewType("VolumeId", str)
"""``vol-NNNN-RRRRRRRRRRRRRRRR``: node and 16 random characters, lower-case base 32."""
FileId = NewType("FileId", str)
"""``file-`` and 16 characters of lower-case base 32."""
WebhookId = NewType("WebhookId", str)
"""``wh-`` and 16 characters of lower-case base 32."""
ProcessId = NewType("ProcessId", str)
"""32 hexadecimal digits: the request id (16 bytes) of the call that started the process or cell."""

IdSource = Callable[[int], bytes]
"""Gives that many random bytes; :func:`secrets.token_bytes` outside tests."""

NODE_CHARS = 4
RANDOM_CHARS = 16
_BITS_PER_CHAR = 5

SANDBOX_ID = re.compile(r"sb-[a-z2-7]{4}-[a-z2-7]{16}")
SNAPSHOT_ID = re.compile(r"snap-[a-z2-7]{4}-[a-z2-7]{16}")
VOLUME_ID = re.compile(r"vol-[a-z2-7]{4}-[a-z2-7]{16}")
CONTEXT_ID = re.compile(r"ctx-[0-9a-f]{16}")
FILE_ID = re.compile(r"file-[a-z2-7]{16}")
WEBHOOK_ID = re.compile(r"wh-[a-z2-7]{16}")
NODE_ID = re.compile(r"[a-z2-7]{4}")
PROCESS_ID = re.compile(r"[0-9a-f]{32}")


def _characters(count: int, source: IdSource) -> str:
    raw = source((count * _BITS_PER_CHAR + 7) // 8)
    return base64.b32encode(raw).decode("ascii").lower().rstrip("=")[:count]


def new_node_id(source: IdSource = secrets.token_bytes) -> NodeId:
    """A node id (4 characters), made once for every state directory."""
    return NodeId(_characters(NODE_CHARS, source))


def new_sandbox_id(node: NodeId, source: IdSource = secrets.token_bytes) -> SandboxId:
    """A sandbox id of this node, 24 characters."""
    return SandboxId(f"sb-{node}-{_characters(RANDOM_CHARS, source)}")


def new_snapshot_id(node: NodeId, source: IdSource = secrets.token_bytes) -> SnapshotId:
    """A snapshot id of this node, 26 characters."""
    return SnapshotId(f"snap-{node}-{_characters(RANDOM_CHARS, source)}")


def new_volume_id(node: NodeId, source: IdSource = secrets.token_bytes) -> VolumeId:
    """A volume id of this node, 25 characters."""
    return VolumeId(f"vol-{node}-{_characters(RANDOM_CHARS, source)}")


def new_file_id(source: IdSource = secrets.token_bytes) -> FileId:
    """An id of a file of the file store, 21 characters."""
    return FileId(f"file-{_characters(RANDOM_CHARS, source)}")


def new_webhook_id(source: IdSource = secrets.token_bytes) -> WebhookId:
    """An id of a webhook, 19 characters."""
    return WebhookId(f"wh-{_characters(RANDOM_CHARS, source)}")


def new_process_id(source: IdSource = secrets.token_bytes) -> ProcessId:
    """A process id: 16 random bytes in hexadecimal, which is also the request id on the link."""
    return ProcessId(source(16).hex())


def new_context_id(source: IdSource = secrets.token_bytes) -> str:
    """An id of a context: ``ctx-`` and 8 random bytes in hexadecimal."""
    return f"ctx-{source(8).hex()}"


def node_of(sandbox: SandboxId) -> NodeId:
    """The node that a sandbox lives on."""
    return NodeId(sandbox[3 : 3 + NODE_CHARS])

"""Ids of sandboxes, nodes, snapshots, volumes, files, webhooks, agents, templates, processes and contexts.

Invariants:
- A sandbox id is ``sb-NNNN-RRRRRRRRRRRRRRRR``: 4 characters of the node and 16 random characters (80 bits), always 24 characters long.
  runsc matches ids by prefix, so ids of one kind never differ in length.
- The alphabet is lower-case base 32 without padding (RFC 4648), which is valid in DNS labels, paths and cgroup names.
- Random bytes come from the caller's ``IdSource``, so that tests are repeatable.
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
AgentId = NewType("AgentId", str)
"""``agent_`` and 16 characters of lower-case base 32."""
AgentSessionId = NewType("AgentSessionId", str)
"""``sess_`` and 16 characters of lower-case base 32."""
AgentEventId = NewType("AgentEventId", str)
"""``sevt_`` and 16 characters of lower-case base 32."""
TemplateId = NewType("TemplateId", str)
"""``tmpl-`` and 16 characters of lower-case base 32."""
ProcessId = NewType("ProcessId", str)
"""32 hexadecimal digits: the request id (16 bytes) of the call that started the process or cell."""

IdSource = Callable[[int], bytes]
"""Function that returns as many random bytes as its argument says; :func:`secrets.token_bytes` outside of tests."""

NODE_CHARS = 4
RANDOM_CHARS = 16
_BITS_PER_CHAR = 5

SANDBOX_ID = re.compile(r"sb-[a-z2-7]{4}-[a-z2-7]{16}")
SNAPSHOT_ID = re.compile(r"snap-[a-z2-7]{4}-[a-z2-7]{16}")
VOLUME_ID = re.compile(r"vol-[a-z2-7]{4}-[a-z2-7]{16}")
CONTEXT_ID = re.compile(r"ctx-[0-9a-f]{16}")
FILE_ID = re.compile(r"file-[a-z2-7]{16}")
WEBHOOK_ID = re.compile(r"wh-[a-z2-7]{16}")
AGENT_ID = re.compile(r"agent_[a-z2-7]{16}")
AGENT_SESSION_ID = re.compile(r"sess_[a-z2-7]{16}")
TEMPLATE_ID = re.compile(r"tmpl-[a-z2-7]{16}")
NODE_ID = re.compile(r"[a-z2-7]{4}")
PROCESS_ID = re.compile(r"[0-9a-f]{32}")


def _characters(count: int, source: IdSource) -> str:
    raw = source((count * _BITS_PER_CHAR + 7) // 8)
    return base64.b32encode(raw).decode("ascii").lower().rstrip("=")[:count]


def new_node_id(source: IdSource = secrets.token_bytes) -> NodeId:
    """Create a node id of 4 characters. Each state directory has its own node id."""
    return NodeId(_characters(NODE_CHARS, source))


def new_sandbox_id(node: NodeId, source: IdSource = secrets.token_bytes) -> SandboxId:
    """Create a sandbox id of 24 characters."""
    return SandboxId(f"sb-{node}-{_characters(RANDOM_CHARS, source)}")


def new_snapshot_id(node: NodeId, source: IdSource = secrets.token_bytes) -> SnapshotId:
    """Create a snapshot id of 26 characters."""
    return SnapshotId(f"snap-{node}-{_characters(RANDOM_CHARS, source)}")


def new_volume_id(node: NodeId, source: IdSource = secrets.token_bytes) -> VolumeId:
    """Create a volume id of 25 characters."""
    return VolumeId(f"vol-{node}-{_characters(RANDOM_CHARS, source)}")


def new_file_id(source: IdSource = secrets.token_bytes) -> FileId:
    """Create the id of a stored file, 21 characters."""
    return FileId(f"file-{_characters(RANDOM_CHARS, source)}")


def new_webhook_id(source: IdSource = secrets.token_bytes) -> WebhookId:
    """Create a webhook id of 19 characters."""
    return WebhookId(f"wh-{_characters(RANDOM_CHARS, source)}")


def new_agent_id(source: IdSource = secrets.token_bytes) -> AgentId:
    """Create an agent id of 22 characters."""
    return AgentId(f"agent_{_characters(RANDOM_CHARS, source)}")


def new_agent_session_id(source: IdSource = secrets.token_bytes) -> AgentSessionId:
    """Create the id of a session of an agent, 21 characters."""
    return AgentSessionId(f"sess_{_characters(RANDOM_CHARS, source)}")


def new_agent_event_id(source: IdSource = secrets.token_bytes) -> AgentEventId:
    """Create the id of an event of a session, 21 characters."""
    return AgentEventId(f"sevt_{_characters(RANDOM_CHARS, source)}")


def new_template_id(source: IdSource = secrets.token_bytes) -> TemplateId:
    """Create the id of a template of a user, 21 characters."""
    return TemplateId(f"tmpl-{_characters(RANDOM_CHARS, source)}")


def new_process_id(source: IdSource = secrets.token_bytes) -> ProcessId:
    """Create a process id: 16 random bytes in hexadecimal. The same 16 bytes are the id of the call that starts the process."""
    return ProcessId(source(16).hex())


def new_context_id(source: IdSource = secrets.token_bytes) -> str:
    """Create a context id: ``ctx-`` and 8 random bytes in hexadecimal."""
    return f"ctx-{source(8).hex()}"


def node_of(sandbox: SandboxId) -> NodeId:
    """Return the id of the node that created a sandbox, which is a part of the sandbox id."""
    return NodeId(sandbox[3 : 3 + NODE_CHARS])

"""Errors that a connection raises."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer violated the protocol. A host then ends the sandbox of the guest. A guest ignores all bytes up to the next HELLO of the host."""


class CannotSend(Exception):  # noqa: N818 - the request is at fault, not the link
    """A stream or message cannot be sent. Nothing was sent, and the connection stays usable."""


class TooMany(CannotSend):
    """This side of the link has the maximum number of streams open. The caller can retry when a stream has ended."""


class TooLarge(CannotSend):
    """The message is longer than allowed. The caller can send long content as bytes on a channel instead."""

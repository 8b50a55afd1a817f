"""Errors of a connection."""

from __future__ import annotations


class ProtocolError(Exception):
    """The other end violated the protocol. A host then ends the sandbox of the guest; a guest ignores the host until its next HELLO."""


class CannotSend(Exception):  # noqa: N818 - the request is at fault, not the link
    """A stream or message cannot be sent. Nothing was sent, and the connection stays usable."""


class TooMany(CannotSend):
    """The maximum number of streams is open. Retry when a stream has ended."""


class TooLarge(CannotSend):
    """The message is longer than allowed. Long content is sent as bytes of a channel instead."""

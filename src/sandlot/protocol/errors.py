"""Errors of a connection."""

from __future__ import annotations


class ProtocolError(Exception):
    """The other end violated the protocol. The host ends that sandbox; the guest waits for the next HELLO."""


class CannotSend(Exception):  # noqa: N818 - the request is at fault, not the link
    """The connection cannot send this now. Nothing was sent, and the connection goes on."""


class TooMany(CannotSend):
    """As many streams are open as are allowed at once; try again when one has ended."""


class TooLarge(CannotSend):
    """The message is longer than allowed; send it as bytes of a channel."""

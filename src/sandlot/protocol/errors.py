"""What can go wrong on the wire."""

from __future__ import annotations


class ProtocolError(Exception):
    """The far side broke a law of the link. The host ends that sandbox; the guest waits for the next HELLO."""


class CannotSend(Exception):  # noqa: N818 - the owner's request is at fault, not the link
    """This end asked for what the link does not carry now; nothing was sent and the connection is as good as before."""


class TooMany(CannotSend):
    """As many streams are open as are allowed at once: try again when one is over."""


class TooLarge(CannotSend):
    """The message is longer than the wire carries: send it as bytes of a channel."""

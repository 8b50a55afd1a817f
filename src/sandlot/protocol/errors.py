"""What can go wrong on the wire."""


class ProtocolError(Exception):
    """The far side broke a law of the link. The host ends that sandbox; the guest waits for the next HELLO."""

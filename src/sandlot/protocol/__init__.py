"""Host<->guest bytes, without I/O: frames, values, connection state, and the schema of one generation.

Standard library only, cheap to import (no dataclasses, no enum, no typing at run time): the guest imports it too.
``values`` stands alone, because it also runs on an image's python, 3.8 or newer.

The eight laws of the link, and where they live:

1. Host to guest: frames of at most 4,096 bytes, one non-blocking write each (``frames.HOST_FRAME_MAX``; the I/O shell writes).
2. HELLO with a fresh 128-bit nonce; the host discards until the echo, the guest resets at HELLO (``connection``).
3. Who holds the pipes open is the driver's business; nothing here knows about end of file.
4. Neither end ever blocks: credit for each stream (``streams``), round robin between them (``outbox``).
5. Either end opens streams: odd ids are the host's, even ids the guest's (``table``).
6. Calls carry host-chosen ids (``schema.CALL_ID_BYTES``) that the guest remembers.
7. QUIESCE and QUIESCED at a frame boundary; asleep until ``guest.wake`` (``connection``, ``schema``).
8. Output is addressed by byte offset (``schema``: ``process.attach``, ``kernel.attach``).

Everything that both ends must agree on is frozen in ``schemas/<generation>.json`` by ``scripts/schema.py``.
"""

"""The protocol between host and guest, without I/O: frames, encoded values, the state of a connection, and the schema of the calls.

The guest imports this package too. It therefore uses the standard library only and is cheap to import: no dataclasses, enum or typing at
run time. ``values`` imports nothing of Sandlot, because it also runs on the python of an image, 3.8 or newer.

Rules of the link, each with the module that enforces it:

- Bounded writes: a frame from the host has at most 4,096 bytes and is one non-blocking write (``frames.HOST_FRAME_MAX``).
- Handshake: HELLO carries a new 128-bit nonce. The host discards everything before the echo; the guest resets at HELLO (``connection``).
- End of file: the driver decides who holds the pipes open; nothing here knows about it.
- Flow control: neither end ever blocks. Each stream has credit (``streams``), and streams take turns (``send_queue``).
- Streams: either end opens them. The host's ids are odd, the guest's even (``stream_table``).
- Repeated calls: each call has an id chosen by the host (``schema.CALL_ID_BYTES``), which the guest remembers.
- Sleep: QUIESCE and QUIESCED at a frame boundary; asleep until ``guest.wake`` (``connection``, ``schema``).
- Output offsets: output is addressed by byte offset (``process.attach`` and ``kernel.attach`` in ``schema``).

Everything that both ends must agree on is frozen in ``schemas/<generation>.json`` by ``scripts/schema.py``.
"""

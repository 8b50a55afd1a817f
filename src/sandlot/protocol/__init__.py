"""The protocol between host and guest, without I/O: frames, encoded values, the state of a connection, and the schema of the calls.

The guest imports this package too. It therefore uses the standard library only and is cheap to import: no dataclasses, enum or typing at
run time. ``values`` imports nothing of Sandlot, because it also runs on the python of an image, 3.8 or newer.

Rules of the link, each with the module that enforces it:

- Bounded writes: a frame from the host has at most 4,096 bytes and is one non-blocking write (``frames.HOST_FRAME_MAX``).
- Handshake: HELLO carries a new 128-bit nonce. The host discards everything before the echo, and the guest drops all streams at a new
  HELLO (``connection``).
- Flow control: neither end ever blocks. Each stream has credit (``streams``), and streams take turns (``send_queue``).
- Streams: either end opens them. The host's ids are odd, the guest's even (``stream_table``).
- Repeated calls: the host gives each call an id (``schema.CALL_ID_BYTES``). The guest remembers the ids and executes no call twice.
- Sleep: a guest is quiesced at a frame boundary, by QUIESCE and QUIESCED. A quiesced guest serves only ``guest.wake`` (``connection``, ``schema``).
- Output offsets: a reader names the first byte of output to send by its offset (``process.attach`` and ``kernel.attach`` in ``schema``).

``schemas/<generation>.json``, written by ``scripts/schema.py``, is the frozen copy of everything that both ends must agree on.
"""

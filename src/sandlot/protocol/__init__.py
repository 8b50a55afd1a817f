"""The protocol between host and guest, without I/O: frames, encoded values, the state of a connection, and the schema of the calls.

The guest imports this package too. Therefore the package uses only the standard library, and does not import dataclasses, enum or typing at run
time, which would slow the start of the guest. The module ``values`` imports nothing of Sandlot, because it also runs on the Python of an image,
which may be as old as 3.8.

Rules of the link, each with the module that enforces it:

- Bounded writes: a frame from the host has at most 4,096 bytes and is one non-blocking write (``frames.HOST_FRAME_MAX``).
- Handshake: HELLO carries a new 128-bit nonce, which the guest returns in WELCOME. The host discards everything before this WELCOME, and the guest
  drops all streams when a new HELLO arrives (``connection``).
- Flow control: neither side ever blocks. Each stream has credit (``streams``), and streams take turns (``send_queue``).
- Streams: either side can open streams. The ids of the host's streams are odd, the ids of the guest's streams are even (``stream_table``).
- Repeated calls: the host gives each call an id (``schema.CALL_ID_BYTES``). If the host repeats a call that changes the sandbox, the guest
  recognizes the id and does not execute the call again (``schema``).
- Sleep: a guest is quiesced at a frame boundary, by QUIESCE and QUIESCED. A quiesced guest serves only ``guest.wake`` (``connection``, ``schema``).
- Output offsets: to read output that began earlier, the host passes the offset of the first byte to send (``process.attach`` and
  ``kernel.attach`` in ``schema``).

``schemas/<generation>.json``, written by ``scripts/schema.py``, is the frozen copy of everything that both sides must agree on.
"""

"""The program that makes a root image inside a sandbox. It is sent there as data, and imports nothing of Sandlot but itself and ``protocol.tar``.

- ``layers`` reads layers: compression, digests, limits and the entries of their archives.
- ``files`` is the file system that the layers give together.
- ``layout`` adds what every sandbox needs.
- ``output`` writes the file system to ``mkfs.erofs``, and its index.
- ``main`` runs these, and reports steps and the result as lines of JSON.
"""

"""The program that makes a root image inside a sandbox.

It is sent there as data, with the modules that ``merge_sandbox`` lists, and imports no others of Sandlot.

- ``layers`` reads layers: compression, digests, limits and the entries of their archives.
- ``files`` is the file system that the layers give together.
- ``layout`` adds what every sandbox needs.
- ``erofs`` reads and writes images.
- ``output`` writes the files of the file system, and lists its folders.
- ``main`` runs these, and reports steps and the result as lines of JSON.
"""

"""Kernels: the programs that run cells, with one folder for each language.

The guest starts a kernel with a socket for messages (``docs/design/0011-kernels.md``); its output goes to pipes of the guest. Kernels are
shipped as sources: those for Python and JavaScript run on interpreters of the image, that for bash on the guest's interpreter.
"""

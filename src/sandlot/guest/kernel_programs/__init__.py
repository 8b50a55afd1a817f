"""The programs that run cells, one folder for each language.

The guest starts them with a socket that carries messages (``docs/design/0011-kernels.md``); their output goes to pipes of the guest. They
are shipped as sources: those of Python and JavaScript run on the image's interpreters, that of bash on the guest's.
"""

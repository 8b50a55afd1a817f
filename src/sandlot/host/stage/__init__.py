"""The program between the service and the runtime of a sandbox: it sets up the sandbox's environment, starts the runtime, and keeps the sandbox.

The program runs separately (``launcher.py``), with ``python -SI`` from the folder of this package. It imports only this package and built-in parts
of the standard library: it is started for every sandbox, and the keeper keeps its memory.
"""

"""The program between the service and the runtime of a sandbox: sets up the environment, starts the runtime, and waits until the runtime ends.

The service starts this program for every sandbox (``launcher.py``), with ``python -SI`` from the folder of this package. To start quickly and to use
little memory while the sandbox runs, the program imports only this package and built-in parts of the standard library.
"""

"""The program between the service and the runtime of a sandbox: it sets up the sandbox's environment, starts the runtime, and waits for its end.

The service starts this program for every sandbox (``launcher.py``), with ``python -SI`` from the folder of this package. To start quickly and to use
little memory as long as the sandbox runs, the program imports only this package and built-in parts of the standard library.
"""

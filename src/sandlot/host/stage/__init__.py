"""The program between the service and a sandbox's runtime: it makes the place, starts the runtime and keeps the sandbox.

It is run as a program of its own (``launch.py``), by ``python -SI`` from this room's folder, and imports nothing but what is here
and built-in parts of the standard library: it is started for every sandbox, and its memory is what a keeper costs.
"""

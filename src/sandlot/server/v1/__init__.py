"""The native API, version 1: one module of routes for each kind of thing, ``schemas`` for what they take and give."""

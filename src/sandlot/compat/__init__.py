"""Other sandboxes' clients, served unchanged: one sub-room for each vendor, that knows its wire and nothing of the others.

Laws:
- A door translates and nothing else: what it is asked for is done by core, by the same rules as for the API.
- Everything under its prefix speaks the vendor's words, failures of the frame around it included.
- What a door does not support is refused (501), never ignored. ``COVERAGE.md`` beside it says which calls there are.
"""

"""E2B's envd, the daemon in each of its sandboxes: health, file contents, and two services of Connect RPCs.

``routes.router`` has the routes below the prefix, ``routes.root_router`` those of file contents at the root of the port, where signed URLs lead.
"""

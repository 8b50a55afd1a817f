"""What E2B's clients ask of the daemon that its sandboxes have inside: health, files, and two services of Connect RPCs.

The door takes from here ``routes.router`` (below the prefix) and ``routes.ROOT`` (the same files at the root of the port, where signed URLs lead).
"""

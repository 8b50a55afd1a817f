"""Compatibility APIs: the clients of other vendors run unchanged. Each vendor has one package, which knows nothing of the others.

Invariants:
- A package translates and nothing else. Its operations are those of the node, with the same rules as for the native API.
- Every response below a vendor's prefix has the vendor's format, including errors of the middleware.
- Unsupported calls and options are refused, never ignored. ``COVERAGE.md`` in each package lists the calls and their tests.
"""

"""Names of the standard library without the modules that carry them: ``collections`` takes longer to import than the protocol.

``_collections`` is the C half that ``collections`` itself re-exports; CPython has had it since 2.4.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import OrderedDict, deque
else:
    from _collections import OrderedDict, deque

__all__ = ["OrderedDict", "deque"]

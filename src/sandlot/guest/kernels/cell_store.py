"""Store of the cells that the guest remembers, by the id of the ``kernel.execute`` call that submitted each cell."""

from __future__ import annotations

from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.kernels.cell import Cell
    from sandlot.guest.loop import Loop
    from sandlot.guest.rpc import RpcServer

MAX_CELLS = 64
MAX_BYTES = 16 * 1024 * 1024
"""Maximum total memory in bytes of all remembered cells."""


class CellStore:
    """Cells that wait, cells that run, and ended cells to which a client can still attach.

    If the store has more than ``MAX_CELLS`` cells, or the cells use more than ``MAX_BYTES``, the store forgets the oldest cells that have ended and
    have no follower. ``MAX_BYTES`` includes output that threads and child processes of a cell write after the end of the cell.

    Args:
        loop: The guest's loop.
        rpc: Server that refuses calls with the id of a forgotten cell. The store passes these ids to the server.
    """

    __slots__ = ("_cells", "_is_trim_scheduled", "_loop", "_rpc")

    def __init__(self, loop: Loop, rpc: RpcServer) -> None:
        self._loop = loop
        self._rpc = rpc
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._is_trim_scheduled = False

    def add(self, cell: Cell) -> None:
        """Add a new cell, and forget old cells if a limit of the store is exceeded."""
        self._cells[cell.id] = cell
        cell.on_late = self.trim_soon
        self.trim_soon()

    def get(self, id_: str, *, of_context: str | None = None) -> Cell | None:
        """Return the cell with an id. Return None if the store has no such cell.

        Args:
            id_: Id of the cell.
            of_context: Id of the context that the cell must belong to; None accepts a cell of any context.
        """
        cell = self._cells.get(id_)
        return cell if cell is not None and of_context in {None, cell.kernel} else None

    def clear(self) -> None:
        """Remove all cells. Later calls may use the ids of these cells again, unlike the ids of cells that were removed because of a limit."""
        self._cells.clear()

    def trim_soon(self) -> None:
        """Schedule the removal of ended cells beyond ``MAX_CELLS`` and ``MAX_BYTES``. Responses that are due now are sent first."""
        if not self._is_trim_scheduled:
            self._is_trim_scheduled = True
            self._loop.call_soon(self._trim)

    def _trim(self) -> None:
        self._is_trim_scheduled = False
        ended = [cell for cell in self._cells.values() if cell.result is not None and not cell.followers]
        kept_bytes = sum(cell.kept_bytes for cell in self._cells.values())
        count = len(self._cells)
        for cell in ended:
            if count <= MAX_CELLS and kept_bytes <= MAX_BYTES:
                return
            kept_bytes -= cell.kept_bytes
            count -= 1
            del self._cells[cell.id]
            self._rpc.forget_result(cell.id, "kernel.execute")

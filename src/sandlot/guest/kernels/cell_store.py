"""The cells that are remembered, by the id of the call that submitted each cell."""

from __future__ import annotations

from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.kernels.cell import Cell
    from sandlot.guest.loop import Loop
    from sandlot.guest.rpc import RpcServer

MAX_CELLS = 64
MAX_BYTES = 16 * 1024 * 1024
"""Maximum memory of all remembered cells."""


class CellStore:
    """Cells that run, wait, or have ended and are remembered: at most ``MAX_CELLS`` and ``MAX_BYTES``.

    Beyond these limits, the oldest cells that have ended and have no followers are forgotten. Output that threads and children of a
    cell write after its end counts as well.

    Args:
        loop: The guest's loop.
        rpc: Refuses the ids of forgotten cells.
    """

    __slots__ = ("_cells", "_is_trim_scheduled", "_loop", "_rpc")

    def __init__(self, loop: Loop, rpc: RpcServer) -> None:
        self._loop = loop
        self._rpc = rpc
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._is_trim_scheduled = False

    def add(self, cell: Cell) -> None:
        """Remember a new cell."""
        self._cells[cell.id] = cell
        cell.on_late = self.trim_soon
        self.trim_soon()

    def get(self, id_: str, *, of_context: str | None = None) -> Cell | None:
        """Return a remembered cell, or None.

        Args:
            id_: Id of the cell.
            of_context: Id of the context that the cell must belong to; None for any context.
        """
        cell = self._cells.get(id_)
        return cell if cell is not None and of_context in {None, cell.kernel} else None

    def clear(self) -> None:
        """Forget all cells. Their ids may be reused."""
        self._cells.clear()

    def trim_soon(self) -> None:
        """Forget cells beyond the limits in the next turn of the loop, after pending responses were sent."""
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

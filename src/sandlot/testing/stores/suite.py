"""Suites of the behaviours that Sandlot's core expects of a store."""

from __future__ import annotations

from sandlot.testing.stores.blobs import BlobsSuite, StreamedBlobsSuite
from sandlot.testing.stores.durability import DurabilitySuite
from sandlot.testing.stores.hooks import HooksSuite
from sandlot.testing.stores.rows import RowsSuite
from sandlot.testing.stores.saved import SavedSuite
from sandlot.testing.stores.transactions import TransactionsSuite
from sandlot.testing.stores.volumes import VolumesSuite

__all__ = ["BlobsSuite", "DurabilitySuite", "StoreSuite", "StreamedBlobsSuite"]


class StoreSuite(RowsSuite, SavedSuite, VolumesSuite, HooksSuite, TransactionsSuite):
    """Behaviours of every store. Subclass it, name the class ``Test...`` and give it a fixture ``bench`` whose store is empty."""

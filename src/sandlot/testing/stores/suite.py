"""The behaviours of a store, each a test. One that passes them can stand behind Sandlot's port of what survives a restart."""

from __future__ import annotations

from sandlot.testing.stores.blobs import BlobsSuite
from sandlot.testing.stores.hooks import HooksSuite
from sandlot.testing.stores.laws import LawsSuite
from sandlot.testing.stores.rows import RowsSuite
from sandlot.testing.stores.saved import SavedSuite
from sandlot.testing.stores.volumes import VolumesSuite

__all__ = ["BlobsSuite", "StoreSuite"]


class StoreSuite(RowsSuite, SavedSuite, VolumesSuite, HooksSuite, LawsSuite):
    """All behaviours. Subclass it, name the class ``Test...`` and give it a fixture ``bench``."""

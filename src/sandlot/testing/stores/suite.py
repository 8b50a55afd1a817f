"""Suites that test the behaviours which Sandlot's core expects of a store."""

from __future__ import annotations

from sandlot.testing.stores.agents import AgentsSuite
from sandlot.testing.stores.blobs import BlobsSuite, StreamedBlobsSuite
from sandlot.testing.stores.durability import DurabilitySuite
from sandlot.testing.stores.rows import RowsSuite
from sandlot.testing.stores.snapshots import SnapshotsSuite
from sandlot.testing.stores.templates import TemplatesSuite
from sandlot.testing.stores.transactions import TransactionsSuite
from sandlot.testing.stores.volumes import VolumesSuite
from sandlot.testing.stores.webhooks import WebhooksSuite

__all__ = ["BlobsSuite", "DurabilitySuite", "StoreSuite", "StreamedBlobsSuite"]


class StoreSuite(RowsSuite, SnapshotsSuite, VolumesSuite, WebhooksSuite, AgentsSuite, TemplatesSuite, TransactionsSuite):
    """Tests for every store. Name the subclass ``Test...``, and define a fixture ``harness`` whose store is empty."""

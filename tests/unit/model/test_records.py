"""Records: the table of events."""

from __future__ import annotations

from sandlot.model.records import EVENT_DATA, EVENT_TYPES


def test_every_field_of_an_event_is_described() -> None:
    assert {field for event in EVENT_TYPES.values() for field in event.data} == set(EVENT_DATA)

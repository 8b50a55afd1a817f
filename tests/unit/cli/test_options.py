"""Value types of options."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import typer

from sandlot.cli.options import (
    KeyValue,
    PortMapping,
    VolumeMount,
    When,
    as_dict,
    as_mounts,
    parse_key_value,
    parse_ports,
    parse_size_bytes,
    parse_volume,
    parse_when,
)
from sandlot.sdk import Mount


def test_values_are_parsed(subtests: pytest.Subtests) -> None:
    parsed: tuple[tuple[Callable[[str], object], str, object], ...] = (
        (parse_key_value, "a=b=c", KeyValue("a", "b=c")),
        (parse_key_value, "a=", KeyValue("a", "")),
        (parse_size_bytes, "512M", 512 << 20),
        (parse_size_bytes, "1024", 1024),
        (parse_ports, "80", PortMapping(80, 80)),
        (parse_ports, "0:65535", PortMapping(0, 65535)),
        (parse_volume, "data:/data", VolumeMount("data", "/data", read_only=False)),
        (parse_volume, "data:/data:ro", VolumeMount("data", "/data", read_only=True)),
        (parse_when, "never", When(None)),
        (parse_when, "2999-01-01T00:00:00Z", When(datetime(2999, 1, 1, tzinfo=UTC))),
    )
    for parse, text, expected in parsed:
        with subtests.test(text=text):
            assert parse(text) == expected


def test_period_counts_from_now() -> None:
    at = parse_when("30d").at
    assert at is not None
    assert abs(at - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)


def test_other_texts_are_refused(subtests: pytest.Subtests) -> None:
    for parse, texts in (
        (parse_key_value, ("a", "=b", "")),
        (parse_size_bytes, ("much", "", "-1")),
        (parse_ports, ("0", "x", "80:", "65536", "-1:80", "80:0", "٣")),
        (parse_volume, ("data", "data:data", ":/data", "")),
        (parse_when, ("soon", "", "d", "٣d", "99999999999w")),
    ):
        for text in texts:
            with subtests.test(parse=parse.__name__, text=text), pytest.raises(typer.BadParameter):
                parse(text)


def test_repeated_options_become_mappings() -> None:
    assert as_dict([KeyValue("a", "1"), KeyValue("b", "2"), KeyValue("a", "3")]) == {"a": "3", "b": "2"}
    assert as_dict(None) == {}
    assert as_mounts([VolumeMount("v", "/x", read_only=True)]) == {"/x": Mount("v", "/x", read_only=True)}
    assert as_mounts(None) is None
    with pytest.raises(typer.BadParameter):
        as_mounts([VolumeMount("a", "/x", read_only=True), VolumeMount("b", "/x", read_only=True)])

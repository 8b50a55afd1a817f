"""The network of the guest: steps of its lifecycle, and resolv.conf."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.net import network
from sandlot.guest.net.capture import CaptureListener
from sandlot.guest.net.dns_server import DnsServer
from sandlot.guest.net.network import GuestNetwork, write_resolv_conf
from tests.support.guest import JoinedLink


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps of a guest's network, instead of sockets."""
    recorded: list[str] = []

    def record(owner: object, name: str, step: str) -> None:
        monkeypatch.setattr(owner, name, lambda *_args: recorded.append(step))

    record(DnsServer, "open", "dns")
    record(CaptureListener, "open", "connections")
    record(CaptureListener, "suspend", "no connections")
    record(network, "write_resolv_conf", "resolv.conf")
    return recorded


def test_network_is_opened_with_a_card(steps: list[str]) -> None:
    made = GuestNetwork(Loop(), JoinedLink().router, has_card=True)

    made.on_wake(is_first=True)
    assert steps == ["resolv.conf", "dns", "connections"]

    made.suspend()
    made.resume()
    assert steps[3:] == ["no connections", "dns", "connections"]


def test_without_a_card_nothing_is_opened_or_written(steps: list[str]) -> None:
    made = GuestNetwork(Loop(), JoinedLink().router, has_card=False)

    for is_first in (True, False):
        made.on_wake(is_first=is_first)
    made.resume()

    assert steps == []


def test_later_wakes_leave_resolv_conf_as_it_is(steps: list[str]) -> None:
    made = GuestNetwork(Loop(), JoinedLink().router, has_card=True)
    made.on_wake(is_first=True)
    made.suspend()
    steps.clear()

    made.on_wake(is_first=False)

    assert steps == ["dns", "connections"]


def test_local_domains_are_replaced() -> None:
    made = GuestNetwork(Loop(), JoinedLink().router, has_card=True)
    table = made._table  # noqa: SLF001 - what the DNS server answers from
    for domains, resolving in ((["corp.internal"], ["db.corp.internal"]), (["printer.local"], ["printer.local"]), ([], [])):
        made.set_local_domains(domains)
        assert [name for name in ("db.corp.internal", "printer.local", "metadata.internal") if table.resolves(name)] == resolving


def link_to_nowhere(path: Path) -> None:
    path.symlink_to("../run/systemd/resolve/stub-resolv.conf")


def link_to_another_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("kept")
    path.symlink_to(other)


def other_file(path: Path) -> None:
    path.write_text("nameserver 127.0.0.53\n" * 10)


BEFORE: list[Callable[[Path], object]] = [lambda _path: None, link_to_nowhere, link_to_another_file, other_file, os.mkfifo]


@pytest.mark.parametrize("before", BEFORE, ids=["missing", "dangling link", "link", "file", "fifo"])
def test_resolv_conf_is_replaced(tmp_path: Path, before: Callable[[Path], object]) -> None:
    path = tmp_path / "resolv.conf"
    before(path)

    write_resolv_conf(str(path))

    assert not path.is_symlink()
    assert path.read_text() == "nameserver 192.0.2.1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    if (other := tmp_path / "other").exists():
        assert other.read_text() == "kept"


def test_image_without_etc_is_accepted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_resolv_conf(str(tmp_path / "etc" / "resolv.conf"))
    assert "resolv.conf" in capfd.readouterr().err

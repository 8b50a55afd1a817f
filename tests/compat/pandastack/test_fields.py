"""What PandaStack's client asks of a new sandbox and a new volume, seen inside: the fields whose effect no other test here sees."""

from __future__ import annotations

import time

import pytest
from pandastack import Client

from tests.compat.pandastack.conftest import client_of
from tests.support.tcpservice import TcpService


@pytest.fixture(scope="module")
def client(service: TcpService) -> Client:
    return client_of(service, "fields")


def test_template_determines_the_image(client: Client) -> None:
    has = "python3 -c 'import pandas; print(1)'"
    with client.sandboxes.create(template="base") as base, client.sandboxes.create(template="code-interpreter") as other:
        assert (base.exec(has).exit_code, other.exec(has).stdout) == (1, "1\n")


def test_ttl_ends_a_sandbox_unless_it_is_persistent(client: Client) -> None:
    kept = client.sandboxes.create(template="base", persistent=True, ttl_seconds=1)
    assert (kept.persistent, kept.lifecycle()["ttl_seconds"]) == (True, 1)
    brief = client.sandboxes.create(template="base", ttl_seconds=1)
    while brief.id in {each.id for each in client.sandboxes.list()}:
        time.sleep(0.1)
    assert kept.exec("echo here").stdout == "here\n"
    assert kept.set_persistent(False)["persistent"] is False
    while kept.id in {each.id for each in client.sandboxes.list()}:
        time.sleep(0.1)


def test_ports_are_public_where_the_key_may_have_public_ports(service: TcpService, client: Client) -> None:
    public = Client(api_url=f"{service.url}/pandastack", api_key=service.key("public", "--public-ports"), max_create_retry_seconds=0)
    for of, is_public in ((public, True), (client, False)):
        with of.sandboxes.create(template="base") as made:
            assert service.client.sandboxes.get(made.id).public_ports is is_public


def test_volume_has_the_given_size(client: Client) -> None:
    fill = "head -c 100M /dev/zero > /mnt/{name}/full; stat -c %s /mnt/{name}/full"
    sizes = {"small": 64, "large": 160}
    for name, size_mb in sizes.items():
        client.volumes.create(name, size_mb=size_mb)
    with client.sandboxes.create(template="base", volumes=[{"name": name} for name in sizes]) as made:
        small, large = (made.exec(fill.format(name=name)) for name in sizes)
        assert "No space left" in small.stderr
        assert int(small.stdout) < 64 << 20
        assert (int(large.stdout), large.stderr) == (100 << 20, "")
    for name in sizes:
        client.volumes.delete(name)

"""A service of each isolation type in a network namespace with public addresses, servers outside, and clients in its sandboxes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.internet import RESOLVER, Internet, internet
from tests.support.internet_service import COPIED_NETWORK, NETNS, RESOLV_CONF
from tests.support.localservice import EACH_ISOLATION, LocalService, local_service
from tests.support.roots import Roots

COPIED = "gvisor with a copied network"
"""Isolation ``gvisor`` as with a release of runsc whose control socket was not tested."""


@pytest.fixture(scope="module")
def net() -> Iterator[Internet]:
    with internet() as made:
        yield made


@pytest.fixture(scope="module", params=[*EACH_ISOLATION, pytest.param(COPIED, marks=pytest.mark.soak)])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Settings of the service. A module may replace this fixture."""
    return {}


@pytest.fixture(scope="module")
def roots() -> Roots | None:
    """Templates of the service. A module may replace this fixture."""
    return None


@pytest.fixture(scope="module")
def service(net: Internet, isolation: str, settings: dict[str, str], roots: Roots | None) -> Iterator[LocalService]:
    with tempfile.TemporaryDirectory() as folder:
        resolv_conf = Path(folder) / "resolv.conf"
        resolv_conf.write_text(f"nameserver {RESOLVER}\noptions timeout:2 attempts:1\n")
        env = {NETNS: net.inside.path, RESOLV_CONF: str(resolv_conf), **settings, **({COPIED_NETWORK: "1"} if isolation == COPIED else {})}
        templates = None if roots is None else roots.folder
        name = "gvisor" if isolation == COPIED else isolation
        with local_service(env, isolation=name, roots=templates, program="tests.support.internet_service", preloaded=False) as running:
            yield running

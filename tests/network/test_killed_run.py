"""The harness of these tests: a killed run of the tests leaves nothing on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.testing.drivers.leftovers import leftovers, wait_until_empty
from tests.meta.tree import ROOT
from tests.support.traces import settle

PROGRAM = """
import json, tempfile, time
from pathlib import Path
from tests.support.internet import internet
from tests.support.internet_service import NETNS, RESOLV_CONF
from tests.support.localservice import local_service

with internet() as net, tempfile.NamedTemporaryFile() as resolv_conf:
    env = {NETNS: net.inside.path, RESOLV_CONF: resolv_conf.name}
    with local_service(env, isolation="gvisor", program="tests.support.internet_service", preloaded=False) as service:
        service.create()
        print(json.dumps([str(service.data_dir), service.client.service.version().node]), flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_service_of_a_killed_run_ends_with_its_sandboxes() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        try:
            data_dir, node = json.loads(run.stdout.readline())
            assert leftovers(Path(data_dir), node)
        finally:
            run.kill()
    assert wait_until_empty(lambda: leftovers(Path(data_dir), node)) == ()
    settle(Path(data_dir).exists, False)

"""The service in a network namespace of the tests: ``python -m tests.support.internet_service`` is ``python -m sandlot.server``.

``SANDLOT_TEST_NETNS`` is the path of the namespace, ``SANDLOT_TEST_RESOLV_CONF`` that of the file that the service sees as ``/etc/resolv.conf``.
With ``SANDLOT_TEST_ROOTS``, the service has the templates of ``served.py``. With ``SANDLOT_TEST_COPIED_NETWORK``, gVisor copies the network of its
sandboxes from a namespace of the host (``command_line.py``). If the tests are killed, the service ends with its sandboxes (``guard.py``).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from sandlot.drivers.oci import driver
from sandlot.host.stage.syscalls import CLONE_NEWNET, CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount, setns, unshare
from sandlot.server.__main__ import main
from tests.support.command_line import open_without_control
from tests.support.guard import end_with_parent
from tests.support.served import ROOTS, use_folders

NETNS, RESOLV_CONF = "SANDLOT_TEST_NETNS", "SANDLOT_TEST_RESOLV_CONF"
COPIED_NETWORK = "SANDLOT_TEST_COPIED_NETWORK"


def enter() -> None:
    """Move this process into the network namespace, and into a mount namespace with the file."""
    fd = os.open(os.environ[NETNS], os.O_RDONLY | os.O_CLOEXEC)
    setns(fd, CLONE_NEWNET)
    os.close(fd)
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_SLAVE)
    mount(os.environ[RESOLV_CONF], "/etc/resolv.conf", "", MS_BIND)


if __name__ == "__main__":
    end_with_parent(Path(os.environ["SANDLOT_DATA_DIR"]))
    enter()
    if COPIED_NETWORK in os.environ:
        vars(driver)["gvisor"] = partial(open_without_control, "gvisor")
    if ROOTS in os.environ:
        use_folders()
    sys.exit(main(sys.argv[1:]))

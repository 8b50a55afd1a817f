"""System calls without a name in Python: an error of the kernel is an OSError."""

from __future__ import annotations

import errno

import pytest

from sandlot.host.checks import calls


def test_an_error_of_the_kernel_is_told() -> None:
    with pytest.raises(OSError, match="unshare") as refused:
        calls.unshare(0x1)
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="prctl"):
        calls.prctl(99999)


def test_no_new_privileges_can_be_read_back() -> None:
    calls.prctl(39)  # PR_GET_NO_NEW_PRIVS: an answer, not an error

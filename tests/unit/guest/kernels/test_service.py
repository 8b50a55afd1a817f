"""Marks of kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from sandlot.guest.kernels.service import Kernels
from sandlot.guest.kernels.services import KernelServices


def test_marks_of_kernels_stay_unique_in_a_copy() -> None:
    kernels = Kernels(cast("KernelServices", SimpleNamespace()))
    before = {kernels.new_number() for _ in range(3)}

    kernels.part()

    assert kernels.new_number() not in before

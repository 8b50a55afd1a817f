"""Wakes of a kernel: common random number generators are reseeded, and the callbacks of cells are called."""

from __future__ import annotations

import re

from tests.support.kernels import Process, errors_of, text_of


def wake(kernel: Process, entropy: bytes = b"e", **more: object) -> None:
    kernel.send({"op": "wake", "entropy": entropy * 64, "env": {}, **more})


def test_imported_libraries_are_reseeded(kernel: Process) -> None:
    kernel.run("import sys, types; seeds = []; named = {'numpy.random': 'seed', 'torch': 'manual_seed'}")
    kernel.run("sys.modules.update({name: types.SimpleNamespace(**{seed: seeds.append}) for name, seed in named.items()})")
    wake(kernel, b"\xff")
    wake(kernel, b"\x01")
    kernel.run("del sys.modules['numpy.random'], sys.modules['torch']")
    wake(kernel)
    assert kernel.text("print(seeds == [[2**32 - 1] * 16, 2**63 - 1, [0x01010101] * 16, 0x0101010101010101 >> 1])") == "True\n"


def test_names_of_temporary_files_are_reseeded(kernel: Process) -> None:
    kernel.run("import tempfile; before = tempfile._get_candidate_names()")
    wake(kernel)
    assert kernel.text("print(tempfile._get_candidate_names() is before)") == "False\n"


def test_openssl_is_reseeded(kernel: Process) -> None:
    kernel.run("import ssl, _ssl; added = []; _add = _ssl.RAND_add; _ssl.RAND_add = lambda *given: (added.append(given), _add(*given))")
    wake(kernel, b"s")
    assert kernel.text("print(added == [(b's' * 64, 64.0)], len(ssl.RAND_bytes(8)))") == "True 8\n"


def test_replaced_generator_does_not_prevent_the_other_reseeds(kernel: Process) -> None:
    kernel.run("import random; kept = random.seed; random.seed = None")
    wake(kernel)
    assert kernel.text("random.seed = kept; print('well')") == "well\n"


def test_wake_removes_variables_and_applies_the_time_zone(kernel: Process) -> None:
    kernel.run("import os, time; os.environ.update(GOES='1', STAYS='1')")
    wake(kernel, gone=["GOES", "NEVER_THERE"], env={"TZ": "Etc/GMT-5"})
    assert kernel.text("print('GOES' in os.environ, os.environ['STAYS'], time.localtime(0).tm_hour)") == "False 1 5\n"
    wake(kernel, gone=["TZ"])
    assert kernel.text("print('TZ' in os.environ)") == "False\n"


def test_each_callback_gets_its_own_entropy(kernel: Process) -> None:
    kernel.run(
        "from sandlot_kernel import on_wake\ncalls = []\n@on_wake\ndef one(entropy): calls.append(entropy)\non_wake(lambda e: calls.append(e))"
    )
    wake(kernel, b"1")
    wake(kernel, b"2")
    assert kernel.text("print(len(calls), len(set(calls)), {len(each) for each in calls}, one.__name__)") == "4 4 {64} one\n"


def test_redefined_callback_replaces_the_earlier_one(kernel: Process) -> None:
    for number in range(3):
        kernel.run(f"counted = []\n@sandlot_kernel.on_wake\ndef again(entropy): counted.append({number})" if number else "import sandlot_kernel")
    wake(kernel)
    assert kernel.text("print(counted)") == "[2]\n"


def test_failed_callback_is_reported_by_the_next_cell_only(kernel: Process) -> None:
    kernel.run("import sandlot_kernel\ndef broken(entropy): raise ValueError('no seed')\ndef leaves(entropy): raise SystemExit")
    kernel.run("for each in (broken, leaves): sandlot_kernel.on_wake(each)")
    wake(kernel)
    outcome = kernel.run("print('on')")
    assert errors_of(outcome) == []
    assert text_of(outcome, 1) == "on\n"
    assert "sandlot_kernel.on_wake: broken failed: ValueError: no seed" in text_of(outcome, 2)
    assert "leaves failed: SystemExit" in text_of(outcome, 2)
    assert text_of(kernel.run("print('on')"), 2) == ""
    kernel.run(
        "broken = leaves = None\ndef broken(entropy): pass\nsandlot_kernel.on_wake(broken)\ndef leaves(entropy): pass\nsandlot_kernel.on_wake(leaves)"
    )


def test_callback_that_does_not_end_is_interrupted(kernel: Process) -> None:
    kernel.run("import sandlot_kernel, time\ndef endless(entropy):\n    while True: time.sleep(0.01)\nsandlot_kernel.on_wake(endless)")
    wake(kernel)
    outcome = kernel.run("print('on')")
    assert re.search(r"endless took longer than 2 s and was interrupted", text_of(outcome, 2))
    assert text_of(outcome, 1) == "on\n"
    kernel.run("def endless(entropy): pass\nsandlot_kernel.on_wake(endless)")


def test_callback_that_is_not_callable_is_refused(kernel: Process) -> None:
    assert errors_of(kernel.run("import sandlot_kernel; sandlot_kernel.on_wake(5)")) == ["TypeError"]

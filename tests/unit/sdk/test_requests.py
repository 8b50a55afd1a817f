"""Bodies, sizes and paths of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.errors import InvalidRequestError
from sandlot.sdk import requests


def test_what_is_not_given_is_not_sent() -> None:
    body = requests.sandbox_body(
        template=None, snapshot=None, name=None, metadata=None, envs=None, timeout=None, persistent=False, idle_timeout=None, on_timeout=None,
        auto_resume=None, limits={}, isolation=None, network=None, volumes=None, file_ids=None, cwd=None,
        public_ports=False, mask_request_host=None,
    )  # fmt: skip
    assert body == {}


def test_limits_are_sent_in_bytes_and_in_part() -> None:
    assert requests.limits_body(cpus=0.5, memory="512M", disk=None, pids=None) == {"cpus": 0.5, "memory_bytes": 512 << 20}
    assert requests.limits_body(cpus=None, memory=None, disk="1.5G", pids=9) == {"disk_bytes": 3 << 29, "pids": 9}
    with pytest.raises(InvalidRequestError):
        requests.limits_body(cpus=None, memory="lots", disk=None, pids=None)


def test_no_time_limit_is_said() -> None:
    body = requests.process_body("x", envs=None, cwd=None, user=None, timeout=None, background=False, stdin=None, stdin_open=False)
    assert body == {"command": "x", "timeout": None}


@given(st.binary(max_size=200))
def test_standard_input_is_sent_whole(data: bytes) -> None:
    inline, rest = requests.split_stdin(data, inline_bytes=100)
    assert (inline.encode() if inline is not None else rest) == data
    assert inline is None or len(data) <= 100


def test_what_json_cannot_carry_is_refused(subtests: pytest.Subtests) -> None:
    for value in ("\udcff", float("nan"), float("inf"), b"bytes", object()):
        with subtests.test(value=value), pytest.raises(InvalidRequestError):
            requests.encode_body({"x": value})
    assert requests.encode_body({"x": "é\u2028"}) == '{"x":"é\u2028"}'.encode()


@given(st.text())
def test_a_segment_is_one(text: str) -> None:
    assert "/" not in requests.path_segment(text)
    assert "?" not in requests.path_segment(text)
    assert requests.path_segment(text)


def test_a_url_of_the_service_begins_as_this_client_reaches_it(subtests: pytest.Subtests) -> None:
    for base in ("https://outside", "https://outside/"):
        with subtests.test(base=base):
            given = "http://inside:8080/v1/signed/files/content?a=b%2Fc&d=e"
            assert requests.rebase_url(given, base) == "https://outside/v1/signed/files/content?a=b%2Fc&d=e"
            assert requests.rebase_url(given, None) == given


def test_limit_out_of_range_is_refused_with_the_text_form_as_hint(subtests: pytest.Subtests) -> None:
    for memory, disk, name in ((512, None, "memory"), ("2000T", None, "memory"), (None, 5, "disk")):
        with subtests.test(memory=memory, disk=disk):
            with pytest.raises(InvalidRequestError) as caught:
                requests.limits_body(cpus=None, memory=memory, disk=disk, pids=None)
            assert '"512M"' in caught.value.hint
            assert dict(caught.value.fields) == {"field": name}

"""Loopback URLs in the output of programs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.web.printed_urls import EDGE_CHARACTERS, MAX_URL_BYTES, MAX_URLS, LoopbackUrl, LoopbackUrlScanner, find_loopback_urls

FLASK = " * Running on all addresses (0.0.0.0)\n * Running on http://127.0.0.1:5000\n * Running on http://192.0.2.2:5000\nPress CTRL+C to quit\n"
VITE = "\n  \x1b[32m\x1b[1mVITE\x1b[22m v8.4.0\x1b[39m\n\n  \x1b[32m➜\x1b[39m  \x1b[1mLocal\x1b[22m:   \x1b[36mhttp://localhost:\x1b[1m5173\x1b[22m/\x1b[39m\n"
HTTP_SERVER = "Serving HTTP on 0.0.0.0 port 8000 (http://0.0.0.0:8000/) ...\n"
JUPYTER = "    Or copy and paste one of these URLs:\n        http://localhost:8888/lab?token=3f2a\n        http://127.0.0.1:8888/lab?token=3f2a\n"
JUPYTER_URLS = [
    ("http://localhost:8888/lab?token=3f2a", 8888, "/lab?token=3f2a"),
    ("http://127.0.0.1:8888/lab?token=3f2a", 8888, "/lab?token=3f2a"),
]


@pytest.mark.parametrize(
    "text, found",
    [
        (FLASK, [("http://127.0.0.1:5000", 5000, "")]),
        (VITE, [("http://localhost:5173/", 5173, "/")]),
        (HTTP_SERVER, [("http://0.0.0.0:8000/", 8000, "/")]),
        (JUPYTER, JUPYTER_URLS),
        ("HTTP://LOCALHOST:3000", [("HTTP://LOCALHOST:3000", 3000, "")]),
        ("http://[::1]:9000/x#top and http://[::]:9000", [("http://[::1]:9000/x#top", 9000, "/x#top"), ("http://[::]:9000", 9000, "")]),
        ("Open http://localhost/.", [("http://localhost/", 80, "/")]),
        ("see <http://localhost:80/a>, 'http://localhost:81/b' or **http://localhost:82/c**!", [
            ("http://localhost:80/a", 80, "/a"), ("http://localhost:81/b", 81, "/b"), ("http://localhost:82/c", 82, "/c"),
        ]),
    ],
)  # fmt: skip
def test_urls_that_servers_print_are_found(text: str, found: list[tuple[str, int, str]]) -> None:
    assert find_loopback_urls(text) == [LoopbackUrl(*each) for each in found]


@pytest.mark.parametrize(
    "text",
    [
        "http://example.com:8000/",
        "http://192.0.2.2:8000/",
        "https://localhost:8443/",  # a preview does not speak TLS to the program
        "http://localhost.example.com/",
        "http://localhost-8000.example.com/",
        "http://127.0.0.1.example.com:80/",
        "http://localhost:8000@example.com/",
        "http://localhost:user@example.com/",
        "http://localhost:0/",
        "http://localhost:65536/",
        "http://localhost:800000/",
        "xhttp://localhost:8000/",
        "localhost:8000",
        "http://localhost:8000/" + "x" * MAX_URL_BYTES,
    ],
)
def test_other_addresses_are_left_alone(text: str) -> None:
    assert find_loopback_urls(text) == []


def test_a_url_is_found_once_and_ten_at_most() -> None:
    text = "".join(f"http://localhost:{port}/\n" for port in range(1000, 1100) for _ in range(2))
    assert [each.port for each in find_loopback_urls(text, text)] == list(range(1000, 1000 + MAX_URLS))


def test_the_beginning_and_the_end_of_long_output_are_searched() -> None:
    filler = "x\n" * EDGE_CHARACTERS
    text = f"http://localhost:1/\n{filler}http://localhost:2/\n{filler}http://localhost:3/"
    assert [each.port for each in find_loopback_urls(text)] == [1, 3]


def test_a_url_that_is_cut_off_in_long_output_is_left_out() -> None:
    url = "http://localhost:8000/"
    for kept in range(len(url)):
        text = " " * (EDGE_CHARACTERS - kept) + url + " " * (3 * EDGE_CHARACTERS)
        assert find_loopback_urls(text) == []


@given(st.lists(st.integers(0, 400), max_size=12))
def test_cuts_between_pieces_change_nothing(cuts: list[int]) -> None:
    data = (FLASK + VITE + JUPYTER).encode()
    scanner, found = LoopbackUrlScanner(), []
    for start, end in itertools.pairwise([0, *sorted(cut % len(data) for cut in cuts), len(data)]):
        found += scanner.feed(data[start:end])
    assert [*found, *scanner.end()] == find_loopback_urls(FLASK, VITE, JUPYTER)


def test_a_url_does_not_continue_in_another_stream_or_behind_a_gap() -> None:
    scanner = LoopbackUrlScanner((1, 2))
    assert scanner.feed(b"http://local", 1) == []
    assert scanner.feed(b"host:8000/\n", 2) == []
    scanner.skip(1)
    assert scanner.feed(b"host:8000/\n", 1) == []
    assert [each.port for each in scanner.feed(b"http://localhost:8000/ \n", 1)] == [8000]


def test_a_line_without_end_takes_bounded_memory() -> None:
    scanner = LoopbackUrlScanner()
    for _ in range(100):
        assert scanner.feed(b"http://localhost:1" * 1000) == []
    assert len(scanner._rest[0]) == MAX_URL_BYTES  # noqa: SLF001 - the bound itself

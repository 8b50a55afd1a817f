"""Progress lines of a build, and their frequency."""

from __future__ import annotations

from sandlot.images.progress import DETAIL_EVERY_S, OutputParser, ProgressReporter

PACKAGE = "Get:1 http://mirror.example/debian bookworm/main amd64 libc6 amd64 2.36-9 [2759 kB]"


def test_step_is_always_reported_and_a_detail_at_most_every_two_seconds() -> None:
    now = [100.0]
    said: list[str] = []
    reporter = ProgressReporter("base", said.append, lambda: now[0])
    reporter.step("a")
    reporter.step("b")
    reporter.detail("too early")
    now[0] += DETAIL_EVERY_S
    reporter.detail("c")
    reporter.detail("too early")
    assert said == ["base: a", "base: b", "base: c"]


def test_packages_are_counted_against_the_number_that_apt_announced() -> None:
    parser = OutputParser()
    assert parser.feed("0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.") is None
    assert parser.feed(PACKAGE) == "downloading Debian packages, 1 of 2"
    assert parser.feed(PACKAGE) == "downloading Debian packages, 2 of 2"
    assert parser.feed("Setting up libc6:amd64 (2.36-9) ...") == "setting up Debian packages, 1 of 2"
    parser.feed("0 upgraded, 7 newly installed, 0 to remove and 0 not upgraded.")
    assert parser.feed(PACKAGE) == "downloading Debian packages, 1 of 7"

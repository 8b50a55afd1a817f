"""Results of runs in the form that a model reads."""

from __future__ import annotations

import base64

from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.faults import Fault
from sandlot.toolset import output
from sandlot.toolset.backend import FileInfo, RichResult, RunResult
from sandlot.toolset.output import MAX_IMAGES, error_result, list_text, run_is_error, run_text, shorten, shown_images
from tests.support.cases import cases
from tests.unit.toolset.test_images import png

PNG = base64.b64encode(png(2, 2)).decode()


@cases(
    "run, text",
    [
        (RunResult("ok", 0), "(no output)"),
        (RunResult("ok", 0, stdout="a\nb\n"), "a\nb"),
        (RunResult("exited", 3, stdout="a\n", stderr="b\n", fault=Fault.CODE), "a\n[stderr]\nb\n[exit code 3]"),
        (RunResult("exited", 0, stderr="warning\n"), "warning"),
        (RunResult("ok", 0, stdout="a\n", results=[RichResult({"text/plain": "42"}, main=True)]), "a\n42"),
        (RunResult("ok", 0, results=[RichResult({"text/html": "<b>x</b>"})]), "<b>x</b>"),
        (RunResult("ok", 0, results=[RichResult({"text/html": "<table>", "text/plain": "   a\n0  1"})]), "   a\n0  1"),
        (RunResult("ok", 0, results=[RichResult({"image/png": PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"})]), "(no output)"),
        (RunResult("ok", 0, results=[RichResult({"image/png": PNG, "text/plain": "[<Line2D>]"})]), "[<Line2D>]"),
        (RunResult("ok", 0, results=[RichResult({"application/pdf": "x"})]), "[a value of type application/pdf]"),
        (RunResult("ok", 0, results_omitted=7), "[7 more results are left out]"),
        (RunResult("error", 1, stdout="a", error="Traceback\nValueError: x\n", fault=Fault.CODE), "a\nTraceback\nValueError: x"),
        (
            RunResult("timeout", 124, stdout="a", fault=Fault.CODE),
            "a\n[timed out after 60 s; pass a longer `timeout`, or run it in the background]",
        ),
        (
            RunResult("oom", 137, fault=Fault.LIMIT),
            "[killed: the memory limit of the sandbox was reached; use less memory; fault: limit]",
        ),
        (RunResult("pids", 137, fault=Fault.LIMIT), "[killed: it started more processes than the sandbox allows; fault: limit]"),
        (RunResult("died", 137, fault=Fault.CODE), "[the interpreter ended; its variables are lost]"),
        (RunResult("lost", 137, fault=Fault.LOST), "[the outcome is unknown, because the sandbox or the service ended; fault: lost]"),
        (RunResult("signalled", 139, fault=Fault.CODE), "[exit code 139]"),
    ],
)
def test_text_of_a_run_has_output_values_and_its_end(run: RunResult, text: str) -> None:
    assert run_text(run, 60) == text


@cases("fault, is_error", [(None, False), (Fault.CODE, False), (Fault.LIMIT, True), (Fault.LOST, True), (Fault.REQUEST, True)])
def test_only_a_program_that_failed_is_no_error_of_the_tool(fault: Fault | None, is_error: bool) -> None:  # noqa: FBT001 - a value of the table
    assert run_is_error(RunResult("exited", 1, fault=fault)) is is_error


def test_middle_of_long_text_is_left_out_with_its_length() -> None:
    text = "a" * 50 + "b" * 100 + "c" * 50
    short = shorten(text, 100, "Look there.")
    assert short == "a" * 50 + "\n\n[... 100 characters are left out here. Look there.]\n\n" + "c" * 50
    assert shorten("x" * 100, 100, "") == "x" * 100


def test_odd_limit_keeps_as_many_characters_as_it_says() -> None:
    short = shorten("x" * 200, 101, "")
    assert short.count("x") == 101


def test_images_are_shown_up_to_a_number_and_only_if_models_accept_them() -> None:
    bad = RichResult({"image/png": base64.b64encode(b"<script>").decode()})
    fake = RichResult({"image/png": "\0" * 100})
    images, problems = shown_images([bad, fake, RichResult({"text/plain": "x"}), *[RichResult({"image/jpeg": PNG})] * (MAX_IMAGES + 1)])
    assert [each.media_type for each in images] == ["image/png"] * MAX_IMAGES  # the type follows from the content
    assert [each.data for each in images] == [PNG] * MAX_IMAGES
    assert len(problems) == 3
    assert "not a PNG" in problems[0]
    assert str(MAX_IMAGES) in problems[2]


def test_images_are_shown_up_to_a_total_size() -> None:
    large = RichResult({"image/png": base64.b64encode(png(2, 2) + bytes(3_000_000)).decode()})
    images, problems = shown_images([large] * 3)
    assert (len(images), problems) == (2, ("[an image is not shown: all images together are too large]",))


def test_each_fault_class_has_a_sentence_for_the_model() -> None:
    assert output._FAULT_NOTES.keys() == set(Fault)  # noqa: SLF001 - the table


@cases(
    "error, words, ended",
    [
        (SandboxEndedError("Sandbox sb-1 has ended.", fields={"reason": "oom"}, fault=Fault.LIMIT), ["has ended", "limit", "files, variables"], True),
        (NotFoundError("There is no sandbox x.", code=ErrorCode.SANDBOX_NOT_FOUND), ["no sandbox x", "sandbox_not_found"], True),
        (LimitError("The disk is full.", code=ErrorCode.DISK_FULL, hint="Delete files."), ["The disk is full. Delete files.", "limit"], False),
        (NotFoundError("There is no x.", code=ErrorCode.PATH_NOT_FOUND), ["There is no x.", "Change the arguments"], False),
    ],
)
def test_error_says_what_failed_and_what_to_do(error: SandlotError, words: list[str], ended: bool) -> None:  # noqa: FBT001 - a value of the table
    result = error_result(error)
    assert result.is_error
    assert result.sandbox_ended is ended
    assert [word for word in words if word not in result.text] == []
    assert result.structured["error"]["code"] == error.code
    assert result.fault == error.fault


def test_names_of_files_cannot_add_lines() -> None:
    files = [FileInfo("a\nb", "file", 1234567), FileInfo("d", "directory"), FileInfo("l", "symlink", target="a\x1b[0m")]
    assert list_text(files, more=False) == "a\\nb  1,234,567 bytes\nd/\nl -> a\\x1b[0m"
    assert list_text([], more=False) == "(the directory is empty)"
    assert "more entries" in list_text(files, more=True)

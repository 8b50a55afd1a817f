"""Notebooks from the execution log: cells, outputs, and what hostile content becomes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sandlot.model.errors import UnsupportedError
from sandlot.sdk import Client, ExceptionInfo, ExecutionInfo, ExecutionResults, Result, Sandbox
from sandlot.sdk.notebook import MAX_DEPTH, build
from tests.unit.sdk.scripted import SANDBOX, Reply, Script

PNG = base64.b64encode(b"\x89PNG").decode()


def run(**fields: Any) -> ExecutionInfo:  # noqa: ANN401 - a field's value
    values = {"id": "a" * 32, "sandbox": "sb-1", "kind": "code", "status": "ok", "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    return ExecutionInfo(**{**values, "language": "python", "code": "x", "execution_count": 3, **fields})


def built(info: ExecutionInfo, results: ExecutionResults | None = None) -> dict[str, Any]:
    text = build([(info, results)])
    nbformat.validate(json.loads(text))
    (cell,) = json.loads(text)["cells"]
    found: dict[str, Any] = cell
    return found


def shown(data: dict[str, str], **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    cell = built(run(), ExecutionResults("a" * 32, results=(Result(data, **fields),)))
    found: dict[str, Any] = cell["outputs"][0]
    return found


def test_cell_has_code_output_results_and_exception() -> None:
    error = ExceptionInfo("ValueError", "no", ("Traceback", "ValueError: no"))
    results = ExecutionResults("a" * 32, 3, (Result({"text/plain": "<Figure>", "image/png": PNG}), Result({"text/plain": "1"}, main=True)), 2, error)
    cell = built(run(stdout="out\n", stderr="err\n", error="ValueError: no"), results)
    assert (cell["source"], cell["execution_count"], cell["metadata"]) == ("x", 3, {"tags": ["raises-exception"]})
    assert cell["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "out\n"},
        {"output_type": "stream", "name": "stderr", "text": "err\n"},
        {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": PNG}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}, "execution_count": 3},
        {"output_type": "stream", "name": "stderr", "text": "[2 results omitted: the execution log does not keep them]\n"},
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["Traceback", "ValueError: no"]},
    ]


def test_exception_without_traceback_is_that_of_the_run() -> None:
    (output,) = built(run(error="NameError: name 'x' is not defined"))["outputs"]
    assert (output["ename"], output["evalue"], output["traceback"]) == ("NameError", "name 'x' is not defined", [])


@pytest.mark.parametrize(
    "language, source",
    [
        ("python", "x\ny"),
        ("bash", "%%bash\nx\ny"),
        ("javascript", "%%script node\nx\ny"),
        ("r", "x\ny"),
        ("typescript", "x\ny"),
        ("go", "# This is go code.\n# \n# x\n# y"),
    ],
)
def test_code_of_each_language_is_code_for_the_notebook(language: str, source: str) -> None:
    assert built(run(language=language, code="x\ny"))["source"] == source


@pytest.mark.parametrize(
    "languages, name", [(["r", "r"], "ir"), (["typescript"], "deno"), (["r", "python"], "python3"), (["bash"], "python3"), ([], "python3")]
)
def test_notebook_names_the_kernel_of_its_only_language(languages: list[str], name: str) -> None:
    text = build([(run(id=f"{number:032x}", language=language, code="x"), None) for number, language in enumerate(languages)])
    notebook = json.loads(text)
    nbformat.validate(notebook)
    assert notebook["metadata"]["kernelspec"]["name"] == name


def test_shortened_code_is_a_comment() -> None:
    code = "x = 1\n" * 5000 + "[... 7 bytes omitted ...]\n" + "y = 1\n" * 5000
    for language, mark in (("python", "# "), ("r", "# "), ("typescript", "// ")):
        assert all(line.startswith(mark) for line in built(run(language=language, code=code))["source"].splitlines()), language
    assert built(run(code="print('''\n[... 7 bytes omitted ...]\n''')"))["source"].startswith("print")


def test_json_is_a_value_and_other_content_is_text() -> None:
    data = {"application/json": "[1]", "application/vnd.sandlot.chart.v1+json": "{}", "text/json": "[2]", "image/svg+xml": "<svg/>"}
    assert shown(data)["data"] == {**data, "application/json": [1], "application/vnd.sandlot.chart.v1+json": {}}


@pytest.mark.parametrize(
    "data",
    [
        {"image/png": "no base64!"},
        {"image/png": "AAA"},
        {"application/pdf": "\x00"},
        {"application/json": "{"},
        {"application/json": "NaN"},
        {"application/json": "1" * 5000},
        {"application/json": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)},
        {"application/json": "[" * 100_000},
        {"": "x"},
        {"text/html<script>": "x"},
        {"../../etc": "x"},
        {"text/plain\n": "x"},
        {"text": "x"},
    ],
)
def test_content_that_its_type_does_not_allow_is_left_out(data: dict[str, str]) -> None:
    assert shown({**data, "text/plain": "kept"})["data"] == {"text/plain": "kept"}


def test_html_is_data_of_an_output_and_nothing_is_trusted() -> None:
    html = "<script>alert(1)</script>"
    text = build([(run(code=html, language="html"), ExecutionResults("a" * 32, results=(Result({"text/html": html}),)))])
    (cell,) = json.loads(text)["cells"]
    assert cell["cell_type"] == "code"
    assert cell["outputs"][0]["data"] == {"text/html": html}
    assert "trusted" not in text
    assert "signature" not in text


def test_lone_surrogates_leave_a_file_that_can_be_read(tmp_path: Path) -> None:
    text = build([(run(code="'\ud800'", stdout="\udfff"), None)])
    (tmp_path / "n.ipynb").write_text(text, encoding="utf-8")
    assert json.loads((tmp_path / "n.ipynb").read_text(encoding="utf-8"))["cells"][0]["source"] == "'?'"


def test_notebook_has_the_code_of_the_sandbox_oldest_first(service: Script, client: Client, tmp_path: Path) -> None:
    at = "2026-01-01T00:00:00Z"
    common = {"sandbox": SANDBOX["id"], "created_at": at, "argv": None, "stdout": "", "status": "ok"}
    service.say(
        Reply(body=SANDBOX),
        Reply(
            body={
                "executions": [
                    {**common, "id": "c" * 32, "kind": "code", "language": "python", "code": "second", "results_bytes": 9},
                    {**common, "id": "b" * 32, "kind": "command", "argv": ["true"]},
                    {**common, "id": "a" * 32, "kind": "code", "language": "python", "code": "first"},
                ],
                "next_cursor": None,
            }
        ),
        Reply(
            body={"id": "c" * 32, "execution_count": 2, "results": [{"data": {"text/plain": "1"}, "main": True}], "results_omitted": 0, "error": None}
        ),
    )
    path = Sandbox.connect(SANDBOX["id"], client=client).export_notebook(tmp_path / "run.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert [(cell["source"], len(cell["outputs"])) for cell in cells] == [("first", 0), ("second", 1)]
    assert [seen.path for seen in service.seen][1:] == ["/v1/executions", f"/v1/executions/{'c' * 32}/results"]


def test_missing_package_is_named_before_anything_is_read(service: Script, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnsupportedError) as error:
        client.executions.notebook("sb-1")
    assert "sandlot[notebook]" in error.value.hint
    assert service.seen == []

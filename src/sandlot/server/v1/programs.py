"""Programs: schemas and routes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError

from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.faults import Fault
from sandlot.model.languages import LANGUAGES, AvailableLanguage
from sandlot.model.output_capture import COPIES
from sandlot.model.programs import (
    DEFAULT_CONCURRENCY,
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TOLERANCE,
    MAX_BATCH_ITEMS,
    MAX_CASES,
    MAX_CONCURRENCY,
    MAX_OUTPUT_BYTES,
    MAX_TIMEOUT_S,
    BatchItem,
    Case,
    Comparison,
    ProgramParams,
    ProgramResult,
    check_batch,
)
from sandlot.model.sandboxes import AUTO
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.model.streams import Stream
from sandlot.server.v1.common import Problem, documented_response
from sandlot.server.v1.sandboxes import LimitsRequest
from sandlot.web import errors, streaming
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response
from sandlot.web.request_id import get_request_id

LANGUAGE_NAMES = ", ".join(f"`{each.name}`" for each in LANGUAGES)

router = APIRouter(prefix="/v1/programs", tags=["programs"], route_class=JsonRoute)


class EncodedBytes(RequestModel):
    """Binary content of a file."""

    content: Text = Field(description="Content in base64.")
    encoding: Literal["base64"] = Field(description="Encoding of `content`.")


class CaseRequest(RequestModel):
    """One test case of a program: an input, and optionally the output that the program must write for it."""

    stdin: Text = Field(default="", description="Complete standard input.", examples=["21"])
    expected_output: Text | None = Field(
        default=None, description="Expected standard output. Without it, the output is not compared.", examples=["42"]
    )
    comparison: Literal["trimmed", "exact", "numeric"] | None = Field(default=None, description="Comparison; default: that of the program.")
    tolerance: float | None = Field(default=None, description="Tolerance of `numeric`; default: that of the program.")


class RunProgramRequest(RequestModel):
    """Program to run in a new sandbox."""

    language: Text = Field(description=f"{LANGUAGE_NAMES}, or an alias of one of these.", examples=["python"])
    code: Text = Field(description="Code of at most 4 MiB.", examples=["print(int(input()) * 2)"])
    stdin: Text = Field(default="", description="Complete standard input.", examples=["21"])
    cases: list[CaseRequest] = Field(
        default_factory=list,
        description=f"Test cases with which the program is run one after the other, up to {MAX_CASES}, instead of `stdin` and `expected_output`. The "
        "program is compiled once. Each case has its own working directory below /workspace, its own timeout and its own output limit.",
        max_length=MAX_CASES,
    )
    check_types: bool = Field(default=False, description="Check the types of a TypeScript program; a type error is a `compile_error`.")
    timeout: float = Field(default=DEFAULT_COMMAND_TIMEOUT_S, description=f"Seconds until the program is killed, up to {MAX_TIMEOUT_S:g}.")
    files: dict[Text, Text | EncodedBytes] = Field(
        default_factory=dict, description="Path -> text, or bytes in base64. Relative paths are below /workspace, the working directory."
    )
    env: Metadata = Field(default_factory=dict, description="Environment variables, added to those of the template.")
    expected_output: Text | None = Field(
        default=None, description="Expected standard output. Without it, the output is not compared.", examples=["42"]
    )
    comparison: Literal["trimmed", "exact", "numeric"] = Field(
        default="trimmed",
        description="`trimmed`: ignore white space at the end of lines and empty lines at the end. `exact`: compare all characters. "
        "`numeric`: compare word by word; numbers are equal within `tolerance`.",
    )
    tolerance: float = Field(
        default=DEFAULT_TOLERANCE,
        description="Largest difference of two equal numbers; relative if the absolute value of the expected number is above 1.",
    )
    output_bytes: int = Field(
        default=DEFAULT_OUTPUT_BYTES, description=f"Bytes of one stream after which the program is killed, up to {MAX_OUTPUT_BYTES}."
    )
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="Limits of the sandbox; by default those of the template.")
    template: Text | None = Field(
        default=None,
        description="Template of the sandbox. Default: the template of the language in `GET /v1/programs/languages`.",
    )
    isolation: Text = Field(default=AUTO, description="Driver that isolates the sandbox, or `auto` for the default of the service.")

    def params(self) -> ProgramParams:
        """Return the parameters of the operation."""
        return ProgramParams(
            language=self.language,
            code=self.code,
            stdin=self.stdin.encode(),
            timeout_s=self.timeout,
            files={path: content_of(path, content) for path, content in self.files.items()},
            env=self.env,
            expected_output=self.expected_output,
            comparison=Comparison(self.comparison),
            tolerance=self.tolerance,
            output_bytes=self.output_bytes,
            limits=self.limits.change(),
            template=self.template,
            isolation=self.isolation,
            cases=tuple(
                Case(case.stdin.encode(), case.expected_output, None if case.comparison is None else Comparison(case.comparison), case.tolerance)
                for case in self.cases
            ),
            check_types=self.check_types,
        )


class RunProgramBatchRequest(RequestModel):
    """Programs to run, each in a new sandbox. The items are validated one by one: an invalid item does not affect the others."""

    items: Annotated[list[dict[str, Any]], Field(max_length=MAX_BATCH_ITEMS)] = Field(
        description="Programs, each with the fields of `POST /v1/programs`."
    )
    concurrency: int = Field(default=DEFAULT_CONCURRENCY, description=f"Number of programs that run at the same time, up to {MAX_CONCURRENCY}.")


class CaseResultResponse(ResponseModel):
    """Result of one case of a program."""

    status: str = Field(description="`completed`, `wrong_answer`, `compile_error`, `runtime_error`, `timeout`, `memory_exceeded` or `output_limit`.")
    fault: Fault | None = Field(description="Cause of a failure; null if the status is `completed`.")
    language: str
    stdout: str
    stderr: str
    exit_code: int = Field(description="As in a shell: 128 + signal if a signal ended the program; 124 if its timeout ended the program.")
    signal: int | None = Field(description="Signal that ended the program.")
    timed_out: bool = Field(description="True if the timeout of the program ended it.")
    duration_s: float
    cpu_s: float | None = Field(description="CPU time, in steps of 10 ms with gVisor; null if unknown.")
    peak_bytes: int | None = Field(description="Largest resident memory of one of its processes; null if unknown.")
    detail: str = Field(description="Details for people, such as the exceeded limit.")
    execution: str | None = Field(description="Id of the execution in the execution log.")


class ProgramResultResponse(CaseResultResponse):
    """Result of a program. With cases, the fields are those of the first case that is not completed, or of the last; durations are sums."""

    compile_output: str = Field(description="Output of the compiler or of the syntax check after a `compile_error`.")
    cases: list[CaseResultResponse] = Field(description="Results of the cases, in their order; empty after a `compile_error`.")

    @classmethod
    def of(cls, result: ProgramResult) -> ProgramResultResponse:
        """Return the response for the result of a program."""
        cases = [CaseResultResponse(**_result_fields(case)) for case in result.cases]
        return cls(**_result_fields(result), compile_output=result.compile_output, cases=cases)


class LanguageResponse(ResponseModel):
    """A language of programs."""

    name: str
    title: str = Field(description="Name to display.")
    aliases: list[str] = Field(description="Other names that requests may use.")
    extensions: list[str] = Field(description="Extensions of files with programs; the usual one first.")
    template: str | None = Field(description="Template of programs whose request names none; null if no template has the compiler or interpreter.")
    version: str | None = Field(description="Version of the compiler or interpreter in the template; null until the template is built.")
    has_context: bool = Field(description="True if contexts run code of the language.")

    @classmethod
    def of(cls, available: AvailableLanguage) -> LanguageResponse:
        """Return the response for a language."""
        language = available.language
        return cls(
            name=language.name,
            title=language.title,
            aliases=list(language.aliases),
            extensions=list(language.extensions),
            template=available.template,
            version=available.version,
            has_context=language.context is not None,
        )


class LanguagesResponse(ResponseModel):
    """All languages of programs."""

    languages: list[LanguageResponse]


class ProgramBatchItemResponse(ResponseModel):
    """Result or error of one program. Exactly one of `result` and `error` is set."""

    index: int = Field(description="Position in the batch, from 0.")
    result: ProgramResultResponse | None
    error: Problem | None

    @classmethod
    def of(cls, done: BatchItem, request_id: str) -> ProgramBatchItemResponse:
        """Return the response for a batch item."""
        if isinstance(done.outcome, SandlotError):
            return cls(index=done.index, result=None, error=Problem(**errors.problem_document(done.outcome, request_id)))
        return cls(index=done.index, result=ProgramResultResponse.of(done.outcome), error=None)


class ProgramBatchResponse(ResponseModel):
    """Results and errors of all programs, in their order."""

    items: list[ProgramBatchItemResponse]


_BATCH = documented_response(ProgramBatchResponse, "All results and errors, or one line for each with `Accept: application/x-ndjson`.")
_BATCH[200]["content"] = {streaming.NDJSON_MEDIA_TYPE: {"itemSchema": {"$ref": "#/components/schemas/ProgramBatchItemResponse"}}}


@router.post("", responses=documented_response(ProgramResultResponse, "Result of the program."))
async def run(body: RunProgramRequest, request: Request) -> Response:
    """Run a program in a new sandbox, which is removed when the program ends. If the client disconnects, the program is killed."""
    work = get_node(request).programs.run(get_principal(request), body.params())
    return json_response(ProgramResultResponse.of(await cancel_on_disconnect(request, work)))


@router.post(
    "/batch",
    responses=_BATCH,
)
async def run_batch(body: RunProgramBatchRequest, request: Request) -> Response:
    """Run programs, each in a new sandbox, several at a time. A program that fails or is invalid does not affect the others."""
    node, principal = get_node(request), get_principal(request)
    check_batch(len(body.items), body.concurrency)
    runs = await node.programs.run_batch(principal, [_parsed(item) for item in body.items], concurrency=body.concurrency)
    request_id = get_request_id(request.scope)
    if streaming.NDJSON_MEDIA_TYPE in request.headers.get("accept", ""):
        return streaming.ndjson_response(request, _lines(runs, request_id), runs.aclose)
    return await cancel_on_disconnect(request, _collect(node.buffers.of(principal.owner), runs, request_id))


@router.get("/languages", responses=documented_response(LanguagesResponse, "All languages."))
async def list_languages(request: Request) -> Response:
    """List the languages of programs, with the versions that were probed when the images of templates were built."""
    found = await get_node(request).languages.list(get_principal(request))
    return json_response(LanguagesResponse(languages=[LanguageResponse.of(each) for each in found]))


async def _lines(runs: Stream[BatchItem], request_id: str) -> AsyncIterator[Mapping[str, Any]]:
    async for done in runs:
        yield ProgramBatchItemResponse.of(done, request_id).model_dump(mode="json")


async def _collect(buffers: BufferBudget, runs: Stream[BatchItem], request_id: str) -> Response:
    """Collect all items in one response. Results for which the service has no memory become errors."""
    held = 0
    items: dict[int, ProgramBatchItemResponse] = {}
    try:
        async with aclosing(runs):
            async for done in runs:
                outcome = done.outcome
                if isinstance(outcome, ProgramResult):
                    size = COPIES * outcome.held_bytes
                    if buffers.try_take(size):
                        held += size
                    else:
                        outcome = _buffers_full()
                items[done.index] = ProgramBatchItemResponse.of(BatchItem(done.index, outcome), request_id)
        return json_response(ProgramBatchResponse(items=[items[index] for index in sorted(items)]))
    finally:
        buffers.give(held)


def _result_fields(result: ProgramResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in CaseResultResponse.model_fields}


def _buffers_full() -> UnavailableError:
    return UnavailableError(
        "The result of the program was dropped: this key's share of the service's memory for client data is used up.",
        code=ErrorCode.BUSY,
        hint="Send `Accept: application/x-ndjson`, or use smaller batches or a smaller `output_bytes`.",
    )


def content_of(path: str, content: str | EncodedBytes) -> bytes:
    """Return the bytes of a file.

    Raises:
        InvalidRequestError: The content is not valid base64.
    """
    if isinstance(content, str):
        return content.encode()
    try:
        return base64.b64decode(content.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(
            f"The content of file {path[:64]!r} is not valid base64.",
            hint="Encode the content in base64, or pass it as text.",
            fields={"field": "files"},
        ) from None


def _parsed(item: Mapping[str, Any]) -> ProgramParams | SandlotError:
    """Return the parameters of an item, or the reason why the item is invalid."""
    try:
        return RunProgramRequest.model_validate(item).params()
    except ValidationError as error:
        return errors.validation_error([{**found, "loc": ("body", *found["loc"])} for found in error.errors(include_url=False, include_input=False)])
    except SandlotError as error:
        return error

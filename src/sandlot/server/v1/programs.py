"""Programs that are run once: a request for one, and one for many."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError

from sandlot.core.node import Node
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.faults import Fault
from sandlot.model.output_capture import COPIES
from sandlot.model.programs import (
    DEFAULT_CONCURRENCY,
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TOLERANCE,
    MAX_CONCURRENCY,
    MAX_ITEMS,
    MAX_OUTPUT_BYTES,
    MAX_TIMEOUT_S,
    BatchItem,
    Comparison,
    OneShotParams,
    Result,
    check_batch,
)
from sandlot.model.sandboxes import AUTO
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S, DEFAULT_TEMPLATE, Limits
from sandlot.model.streams import Stream
from sandlot.server.v1.common import Problem, documented_response
from sandlot.server.v1.sandboxes import LimitsRequest
from sandlot.web import errors, streaming
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response
from sandlot.web.request_id import get_request_id

router = APIRouter(prefix="/v1/programs", tags=["programs"])


class EncodedBytes(RequestModel):
    """A file that is no text."""

    content: Text = Field(description="In base64.")
    encoding: Literal["base64"] = Field(description="How ``content`` carries the bytes.")


class RunProgramRequest(RequestModel):
    """A program to run once."""

    language: Text = Field(description="python, bash or javascript, or another word for one of these.", examples=["python"])
    code: Text = Field(description="At most 4 MiB.", examples=["print(int(input()) * 2)"])
    stdin: Text = Field(default="", description="All of its standard input.", examples=["21"])
    timeout: float = Field(default=DEFAULT_COMMAND_TIMEOUT_S, description=f"Seconds until it is killed, up to {MAX_TIMEOUT_S:g}.")
    files: dict[Text, Text | EncodedBytes] = Field(
        default_factory=dict, description="Path -> text, or bytes in base64. A path that is not absolute is below /workspace, where the program runs."
    )
    env: Metadata = Field(default_factory=dict, description="Its environment, beside the template's.")
    expected_output: Text | None = Field(default=None, description="Of its standard output; without it nothing is graded.", examples=["42"])
    comparison: Literal["trimmed", "exact", "numeric"] = Field(
        default="trimmed",
        description="trimmed: white space at the end of lines and empty lines at the end are no difference. exact: every character counts. "
        "numeric: word by word, and two numbers are equal within the tolerance.",
    )
    tolerance: float = Field(
        default=DEFAULT_TOLERANCE, description="Of numeric: a number may be off by so much, or by so much of the expected one where that is above 1."
    )
    output_bytes: int = Field(
        default=DEFAULT_OUTPUT_BYTES, description=f"What it may write to either stream, up to {MAX_OUTPUT_BYTES}; beyond that it is killed."
    )
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="Of its sandbox.")
    template: Text = Field(default=DEFAULT_TEMPLATE, description="What its sandbox starts from.")
    isolation: Text = Field(default=AUTO, description="A driver that the operator allows, or auto.")

    def shot(self) -> OneShotParams:
        """What core makes of it."""
        return OneShotParams(
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
            limits=self.limits.merged(Limits()),
            template=self.template,
            isolation=self.isolation,
        )


class RunProgramBatchRequest(RequestModel):
    """Many programs to run once. One that makes no sense fails alone, so they are looked at one by one."""

    items: Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)] = Field(description="Each as for POST /v1/programs.")
    concurrency: int = Field(default=DEFAULT_CONCURRENCY, description=f"How many run at once, up to {MAX_CONCURRENCY}.")


class ProgramResultResponse(ResponseModel):
    """What a program came to."""

    status: str = Field(description="completed, wrong_answer, runtime_error, timeout, memory_exceeded or output_limit.")
    fault: Fault | None = Field(description="Cause of a failure; null if the status is `completed`.")
    language: str
    stdout: str
    stderr: str
    exit_code: int = Field(description="As in a shell: 128 + signal if a signal ended the program; 124 if its timeout ended the program.")
    signal: int | None = Field(description="Signal that ended the program.")
    timed_out: bool = Field(description="True if the timeout of the program ended it.")
    duration_s: float
    cpu_s: float | None = Field(description="Processor time; null where nobody knows.")
    peak_bytes: int | None = Field(description="The largest resident memory that one of its processes had; null where nobody knows.")
    detail: str = Field(description="For a person: which limit ended it, for example.")
    execution: str | None = Field(description="Its id in the log of runs.")

    @classmethod
    def of(cls, result: Result) -> ProgramResultResponse:
        """What is told of it."""
        return cls(
            status=result.status,
            fault=result.fault,
            language=result.language,
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            signal=result.signal,
            timed_out=result.timed_out,
            duration_s=result.duration_s,
            cpu_s=result.cpu_s,
            peak_bytes=result.peak_bytes,
            detail=result.detail,
            execution=result.execution,
        )


class ProgramBatchItemResponse(ResponseModel):
    """What became of one item: exactly one of ``result`` and ``error``."""

    index: int = Field(description="Which item, from 0.")
    result: ProgramResultResponse | None
    error: Problem | None

    @classmethod
    def of(cls, done: BatchItem, request_id: str) -> ProgramBatchItemResponse:
        """What is told of it."""
        if isinstance(done.outcome, SandlotError):
            return cls(index=done.index, result=None, error=Problem(**errors.problem_document(done.outcome, request_id)))
        return cls(index=done.index, result=ProgramResultResponse.of(done.outcome), error=None)


class ProgramBatchResponse(ResponseModel):
    """What became of all items, in their order."""

    items: list[ProgramBatchItemResponse]


_BATCH = documented_response(ProgramBatchResponse, "All ended; with 'Accept: application/x-ndjson' a line for each as it ends.")
_BATCH[200]["content"] = {streaming.NDJSON_MEDIA_TYPE: {"itemSchema": {"$ref": "#/components/schemas/ProgramBatchItemResponse"}}}


@router.post("", responses=documented_response(ProgramResultResponse, "It ended, however."))
async def run(body: RunProgramRequest, request: Request) -> Response:
    """Run a program in a sandbox of its own that is removed with it. It is killed when its client goes away."""
    work = get_node(request).programs.run(get_principal(request), body.shot())
    return json_response(ProgramResultResponse.of(await cancel_on_disconnect(request, work)))


@router.post(
    "/batch",
    responses=_BATCH,
)
async def run_batch(body: RunProgramBatchRequest, request: Request) -> Response:
    """Run programs, each in a sandbox of its own, a few at a time. One that fails or makes no sense spoils no other's result."""
    node = get_node(request)
    check_batch(len(body.items), body.concurrency)
    runs = await node.programs.run_batch(get_principal(request), [_parsed(item) for item in body.items], concurrency=body.concurrency)
    request_id = get_request_id(request.scope)
    if streaming.NDJSON_MEDIA_TYPE in request.headers.get("accept", ""):
        return streaming.ndjson_response(request, _told(runs, request_id), runs.aclose)
    return await cancel_on_disconnect(request, _together(node, runs, request_id))


async def _told(runs: Stream[BatchItem], request_id: str) -> AsyncIterator[Mapping[str, Any]]:
    async for done in runs:
        yield ProgramBatchItemResponse.of(done, request_id).model_dump(mode="json")


async def _together(node: Node, runs: Stream[BatchItem], request_id: str) -> Response:
    """All results in one answer, as far as there is memory for them."""
    held = 0
    answers: dict[int, ProgramBatchItemResponse] = {}
    try:
        async with aclosing(runs):
            async for done in runs:
                outcome = done.outcome
                if isinstance(outcome, Result):
                    size = COPIES * outcome.held_bytes
                    if node.buffers.try_take(size):
                        held += size
                    else:
                        outcome = _no_room()
                answers[done.index] = ProgramBatchItemResponse.of(BatchItem(done.index, outcome), request_id)
        return json_response(ProgramBatchResponse(items=[answers[index] for index in sorted(answers)]))
    finally:
        node.buffers.give(held)


def _no_room() -> UnavailableError:
    return UnavailableError(
        "It was run, but the service holds as much data for its clients as it may, so that its result was not kept.",
        code=ErrorCode.BUSY,
        hint="Take the results as they come (Accept: application/x-ndjson), make smaller batches or use a smaller output_bytes.",
    )


def content_of(path: str, content: str | EncodedBytes) -> bytes:
    """A file's bytes.

    Raises:
        InvalidRequestError: It is no base64 where it says so.
    """
    if isinstance(content, str):
        return content.encode()
    try:
        return base64.b64decode(content.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"The file {path[:100]!r} is not in base64.", fields={"field": "files"}) from None


def _parsed(item: Mapping[str, Any]) -> OneShotParams | SandlotError:
    """An item as core takes it, or why it does not."""
    try:
        return RunProgramRequest.model_validate(item).shot()
    except ValidationError as error:
        return errors.validation_error([{**found, "loc": ("body", *found["loc"])} for found in error.errors(include_url=False, include_input=False)])
    except SandlotError as error:
        return error

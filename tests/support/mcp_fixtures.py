"""Tools, resources and prompts with the names that the MCP conformance suite expects, for a server on our own transport."""

from __future__ import annotations

import base64
import json
import warnings
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from sandlot.mcp.http_sessions import Sessions

NOTE = "Of the conformance suite."
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\0\0\0\0").decode()
FORM = {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
_CHOICES = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"}]
_VALUES = ["option1", "option2", "option3"]
ENUMS = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": _VALUES},
        "titledSingle": {"type": "string", "oneOf": _CHOICES},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _VALUES}},
        "titledMulti": {"type": "array", "items": {"anyOf": _CHOICES}},
    },
}


def create_http_server(_sessions: Sessions) -> Server[Any]:
    """Return the server of the suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        server = MCPServer("conformance")
        _add_contents(server)
        _add_requests(server)
        _add_questions(server)
        _add_rounds(server)
        _add_resources(server)
        _add_prompts(server)
        low: Server[Any] = server._lowlevel_server  # noqa: SLF001 - the only way to mount it on another transport
        for method in ("resources/subscribe", "resources/unsubscribe"):
            low.add_request_handler(method, types.SubscribeRequestParams, _accept)
        low.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _accept)
    return low


async def _accept(_context: ServerRequestContext[Any, Any], _params: Any) -> types.EmptyResult:  # noqa: ANN401 - any parameters
    return types.EmptyResult()


def _image() -> types.ImageContent:
    return types.ImageContent(data=PIXEL, mime_type="image/png")


def _embedded(uri: str, text: str, kind: str = "text/plain") -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=kind, text=text))


def _add_contents(server: MCPServer) -> None:
    @server.tool(description=NOTE)
    def test_simple_text() -> str:
        return "This is a simple text response for testing."

    @server.tool(description=NOTE, structured_output=False)
    def test_image_content() -> list[types.ImageContent]:
        return [_image()]

    @server.tool(description=NOTE, structured_output=False)
    def test_audio_content() -> list[types.AudioContent]:
        return [types.AudioContent(data=SILENCE, mime_type="audio/wav")]

    @server.tool(description=NOTE, structured_output=False)
    def test_embedded_resource() -> list[types.EmbeddedResource]:
        return [_embedded("test://embedded-resource", "This is an embedded resource content.")]

    @server.tool(description=NOTE, structured_output=False)
    def test_multiple_content_types() -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
        text = types.TextContent(text="Multiple content types test:")
        return [text, _image(), _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")]

    @server.tool(description=NOTE)
    def test_error_handling() -> str:
        raise RuntimeError("This tool intentionally returns an error for testing")


def _add_requests(server: MCPServer) -> None:
    @server.tool(description=NOTE)
    async def test_tool_with_logging(context: Context[Any, Any]) -> str:
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await context.session.send_log_message("info", text, related_request_id=context.request_id)
        return "logged"

    @server.tool(description=NOTE)
    async def test_tool_with_progress(context: Context[Any, Any]) -> str:
        for done in (0, 50, 100):
            await context.report_progress(done, 100)
        return "reported"

    @server.tool(description=NOTE)
    async def test_sampling(prompt: str, context: Context[Any, Any]) -> str:
        message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
        result = await context.session.create_message([message], max_tokens=100, related_request_id=context.request_id)
        return f"LLM response: {result.content.text if isinstance(result.content, types.TextContent) else ''}"


async def _ask(context: Context[Any, Any], message: str, schema: dict[str, Any]) -> str:
    result = await context.session.elicit_form(message, schema, related_request_id=context.request_id)
    return f"action={result.action}, content={json.dumps(result.content)}"


def _add_questions(server: MCPServer) -> None:
    @server.tool(description=NOTE)
    async def test_elicitation(message: str, context: Context[Any, Any]) -> str:
        return f"User response: {await _ask(context, message, FORM)}"

    @server.tool(description=NOTE)
    async def test_elicitation_sep1034_defaults(context: Context[Any, Any]) -> str:
        return f"Elicitation completed: {await _ask(context, 'Review the defaults', DEFAULTS)}"

    @server.tool(description=NOTE)
    async def test_elicitation_sep1330_enums(context: Context[Any, Any]) -> str:
        return f"Elicitation completed: {await _ask(context, 'Choose', ENUMS)}"

    @server.tool(description=NOTE)
    async def test_missing_capability(context: Context[Any, Any]) -> str:
        if not context.session.check_client_capability(types.ClientCapabilities(sampling=types.SamplingCapability())):
            data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "The client does not support sampling.", data)
        return "supported"


def _question(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sampling(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


ROUNDS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "test_input_required_result_elicitation": ([{"user_name": _question("What is your name?", "name")}], False),
    "test_input_required_result_sampling": ([{"capital_question": _sampling("What is the capital of France?")}], False),
    "test_input_required_result_list_roots": ([{"client_roots": types.ListRootsRequest()}], False),
    "test_input_required_result_request_state": ([{"confirm": _question("Please confirm", "ok", "boolean")}], True),
    "test_input_required_result_tampered_state": ([{"confirm": _question("Please confirm", "ok", "boolean")}], True),
    "test_input_required_result_multiple_inputs": (
        [
            {
                "user_name": _question("What is your name?", "name"),
                "greeting": _sampling("Generate a greeting"),
                "client_roots": types.ListRootsRequest(),
            }
        ],
        True,
    ),
    "test_input_required_result_multi_round": (
        [{"step1": _question("Step 1: What is your name?", "name")}, {"step2": _question("Step 2: What is your favorite color?", "color")}],
        True,
    ),
    "test_input_required_result_capabilities": (
        [{"user_name": _question("What is your name?", "name"), "greeting": _sampling("Generate a greeting")}],
        False,
    ),
}
"""Tool -> requests of each round, and whether the result has a state."""
_CAPABILITIES = {
    "elicitation/create": types.ClientCapabilities(elicitation=types.ElicitationCapability()),
    "sampling/createMessage": types.ClientCapabilities(sampling=types.SamplingCapability()),
    "roots/list": types.ClientCapabilities(roots=types.RootsCapability()),
}


def _add_rounds(server: MCPServer) -> None:
    for name, (rounds, has_state) in ROUNDS.items():
        server.tool(name=name, description=NOTE, structured_output=False)(_bound(rounds, has_state=has_state))


def _bound(rounds: list[dict[str, Any]], *, has_state: bool) -> Any:  # noqa: ANN401 - a tool
    async def tool(context: Context[Any, Any]) -> str | types.InputRequiredResult:
        return _next_round(context, rounds, has_state=has_state)

    return tool


def _next_round(context: Context[Any, Any], rounds: list[dict[str, Any]], *, has_state: bool) -> str | types.InputRequiredResult:
    answers = context.input_responses or {}
    number = int(context.request_state or 0) if has_state else 0
    wanted = {name: request for name, request in rounds[number].items() if _is_supported(context, request)}
    if all(name in answers for name in wanted):
        number += 1
        if number == len(rounds):
            return f"state-ok: {sorted(answers)} {[each.model_dump_json() for each in answers.values()]}"
        wanted = rounds[number]
    return types.InputRequiredResult(input_requests=wanted, request_state=str(number) if has_state else None)


def _is_supported(context: Context[Any, Any], request: Any) -> bool:  # noqa: ANN401 - a request
    return bool(context.session.check_client_capability(_CAPABILITIES[request.method]))


def _add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return base64.b64decode(PIXEL)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:  # noqa: A002 - the name in the URI
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        return "Watched."

    @server.completion()  # type: ignore[no-untyped-call,untyped-decorator]
    async def complete(
        _ref: types.PromptReference | types.ResourceTemplateReference, _argument: types.CompletionArgument, _context: types.CompletionContext | None
    ) -> types.Completion:
        return types.Completion(values=["test"], total=1, has_more=False)


def _add_prompts(server: MCPServer) -> None:
    @server.prompt(description=NOTE)
    def test_simple_prompt() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(description=NOTE)
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(description=NOTE)
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803 - the name of the suite
        return [UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")), UserMessage("Please process the resource.")]

    @server.prompt(description=NOTE)
    def test_prompt_with_image() -> list[UserMessage]:
        return [UserMessage(_image()), UserMessage("Please analyze the image.")]

    @server.prompt(description=NOTE)
    def test_input_required_result_prompt(context: Context[Any, Any]) -> str | types.InputRequiredResult:
        if "user_context" in (context.input_responses or {}):
            return "The context was provided."
        return types.InputRequiredResult(input_requests={"user_context": _question("What context should the prompt use?", "context")})

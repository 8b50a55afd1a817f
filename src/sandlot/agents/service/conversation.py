"""The conversation with a model, and the events that show it. Pure.

Invariants:
- Each call of a tool that a model made has a result in the next message, also if the run was interrupted. Models refuse other conversations.
- A response of a model is stored within the limits of an event: longer texts are shortened, and longer arguments are refused.
- The ids of calls are unique in a session. An id that a model has used before is replaced.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_ai.messages import (
    BinaryContent,
    FinishReason,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from sandlot.agents.service.limits import MAX_MODEL_TEXT_CHARS
from sandlot.model.agents import AgentEventRecord
from sandlot.toolset.output import Image, Text, ToolResult, shorten

Event = tuple[str, Mapping[str, Any]]
Block = Mapping[str, Any]

USER_MESSAGE: Final = "user.message"
TOOL_USE: Final = "agent.tool_use"
TOOL_RESULT: Final = "agent.tool_result"

MAX_NAME_CHARS: Final = 128
"""Length of the name of a tool that is stored. No tool has a name of this length."""
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

INTERRUPTED: Final = "Error: the run was interrupted before this call ended. It is not known what it has done."
LOST: Final = "Error: the service was restarted before this call ended. It is not known what it has done."


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool.

    Args:
        id: Id that the model gave to the call.
        name: Name of the tool.
        arguments: Arguments, as JSON text or parsed.
        problem: Reason why the call is refused; None to run it.
    """

    id: str
    name: str
    arguments: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """Response of a model.

    Args:
        message: Message for the conversation.
        events: Events that show it.
        calls: Calls of tools.
        refused: True if the model, or a filter of its endpoint, refused to answer.
        cut_off: True if the response reached the maximum of its tokens.
    """

    message: ModelResponse
    events: tuple[Event, ...]
    calls: tuple[Call, ...]
    refused: bool
    cut_off: bool


def text_block(text: str) -> Block:
    """Return a block of text of an event."""
    return {"type": "text", "text": text}


def user_message(text: str) -> tuple[Event, str]:
    """Return the event of a user's message and the stored message."""
    return (USER_MESSAGE, {"content": [text_block(text)]}), dump(ModelRequest([UserPromptPart(text)]))


def read_reply(response: ModelResponse, known_calls: set[str]) -> ModelReply:
    """Return the response of a model within the limits of events.

    Args:
        response: Response of the model.
        known_calls: Ids of the calls of the conversation so far, to which those of the response are added.
    """
    parts: list[Any] = []
    events: list[Event] = []
    calls: list[Call] = []
    for part in response.parts:
        if isinstance(part, TextPart):
            text = shorten(part.content, MAX_MODEL_TEXT_CHARS, "The rest of the message is not stored.")
            parts.append(part if text == part.content else replace(part, content=text))
            if text.strip():
                events.append(("agent.message", {"content": [text_block(text)]}))
        elif isinstance(part, ThinkingPart):
            parts.append(part)
            events.append(("agent.thinking", {}))
        elif isinstance(part, ToolCallPart):
            call, kept = _call(part, known_calls)
            calls.append(call)
            parts.append(kept)
            events.append((TOOL_USE, {"tool_use_id": call.id, "name": call.name, "input": kept.args_as_dict()}))
        else:
            parts.append(part)
    reason: FinishReason | None = response.finish_reason
    message = replace(response, parts=parts)
    return ModelReply(message, tuple(events), tuple(calls), refused=reason == "content_filter", cut_off=reason == "length" and not calls)


def _call(part: ToolCallPart, known_calls: set[str]) -> tuple[Call, ToolCallPart]:
    if part.tool_call_id in known_calls or not _CALL_ID.fullmatch(part.tool_call_id):
        part = replace(part, tool_call_id=f"call_{secrets.token_hex(12)}")
    known_calls.add(part.tool_call_id)
    part = replace(part, tool_name=part.tool_name[:MAX_NAME_CHARS])
    text = part.args_as_json_str()
    if len(text) > MAX_MODEL_TEXT_CHARS:
        size = f"{len(text):,} characters; {MAX_MODEL_TEXT_CHARS:,} are allowed"
        problem = f"Error: the arguments have {size}. Nothing was run. Write large content in parts."
        return Call(part.tool_call_id, part.tool_name, None, problem), replace(part, args={})
    # JSON that cannot be parsed would be refused by some endpoints when the conversation is sent again.
    return Call(part.tool_call_id, part.tool_name, part.args or {}), replace(part, args=part.args_as_dict())


def result_event(call_id: str, result: ToolResult, files: Mapping[Image, str]) -> Event:
    """Return the event of the result of a call.

    Args:
        call_id: Id of the call.
        result: The result.
        files: Image of the result -> id of the stored file.
    """
    content: list[Block] = []
    for each in result.content:
        if isinstance(each, Text):
            content.append(text_block(each.text))
        elif each in files:
            content.append({"type": "image", "source": {"type": "file", "file_id": files[each], "media_type": each.media_type}})
    return TOOL_RESULT, {"tool_use_id": call_id, "content": content, "is_error": result.is_error}


def failed_event(call_id: str, why: str) -> Event:
    """Return the event of a call that was not run to its end."""
    return TOOL_RESULT, {"tool_use_id": call_id, "content": [text_block(why)], "is_error": True}


def result_part(call: Call, result: ToolResult) -> ToolReturnPart:
    """Return the result of a call for the model, with its images."""
    content: list[UserContent] = [
        each.text if isinstance(each, Text) else BinaryContent(base64.b64decode(each.data), media_type=each.media_type) for each in result.content
    ]
    return ToolReturnPart(call.name, content[0] if len(content) == 1 else content, call.id)


def failed_part(call: Call, why: str) -> ToolReturnPart:
    """Return the result of a call that was not run to its end."""
    return ToolReturnPart(call.name, why, call.id)


def call_ids(messages: Sequence[ModelMessage]) -> set[str]:
    """Return the ids of all calls of a conversation."""
    return {part.tool_call_id for message in messages for part in message.parts if isinstance(part, ToolCallPart)}


def open_calls(messages: Sequence[ModelMessage]) -> tuple[Call, ...]:
    """Return the calls of the last message that have no result."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse):
        return ()
    return tuple(Call(part.tool_call_id, part.tool_name, part.args) for part in last.parts if isinstance(part, ToolCallPart))


def close_calls(calls: Sequence[Call], events: Sequence[AgentEventRecord], why: str) -> tuple[list[Event], str]:
    """Return the events and the message that give a result to each open call.

    Args:
        calls: Open calls.
        events: Stored events of the session; they have the results of the calls that had ended.
        why: Text of the result of the other calls.
    """
    ended = {each.data.get("tool_use_id"): each.data for each in events if each.type == TOOL_RESULT}
    parts = [failed_part(call, _text(ended[call.id]) if call.id in ended else why) for call in calls]
    return [failed_event(call.id, why) for call in calls if call.id not in ended], dump(ModelRequest(parts))


def _text(data: Mapping[str, Any]) -> str:
    return "\n".join(block["text"] for block in data.get("content", ()) if block.get("type") == "text") or "(no output)"


def dump(message: ModelMessage) -> str:
    """Return a message in the form in which it is stored."""
    return ModelMessagesTypeAdapter.dump_json([message]).decode()


def load(stored: Sequence[str]) -> list[ModelMessage]:
    """Return a conversation from its stored messages."""
    return [message for each in stored for message in ModelMessagesTypeAdapter.validate_json(each)]


def with_instructions(messages: Sequence[ModelMessage], system: str) -> list[ModelMessage]:
    """Return the conversation with the system prompt, which the last request carries."""
    last = messages[-1]
    if not system or not isinstance(last, ModelRequest):
        return list(messages)
    return [*messages[:-1], replace(last, instructions=system)]


def error_event(kind: str, message: str, retry: str, server: str | None = None) -> Event:
    """Return the event of a run that failed.

    Args:
        kind: ``model_request_failed_error``, ``model_rate_limited_error``, ``model_overloaded_error``, ``tool_use_limit_reached_error``,
            ``mcp_connection_failed_error`` or ``unknown_error``.
        message: Description for people.
        retry: ``exhausted`` if another message may succeed, ``terminal`` if not.
        server: Name of the MCP server that failed; None for other errors.
    """
    named = {} if server is None else {"mcp_server_name": server}
    return "session.error", {"error": {"type": kind, "message": message, "retry_status": {"type": retry}, **named}}


def idle_event(reason: str) -> Event:
    """Return the event of the end of a run.

    Args:
        reason: ``end_turn``, ``budget_reached``, ``retries_exhausted`` or ``refusal``.
    """
    return "session.status_idle", {"stop_reason": {"type": reason}}

"""Results of tools in the form of the protocol."""

from __future__ import annotations

from mcp import types

from sandlot.mcp.server import MAX_IMAGE_CHARS, call_result
from sandlot.toolset.output import Image, Text, ToolResult


def test_images_that_would_exceed_the_limit_of_clients_become_texts() -> None:
    images = [Image("image/png", "a" * (MAX_IMAGE_CHARS - 10)), Image("image/png", "b" * 100), Image("image/jpeg", "c" * 10)]
    content = call_result(ToolResult((Text("done"), *images), {})).content
    assert [type(each) for each in content] == [types.TextContent, types.ImageContent, types.TextContent, types.ImageContent]
    assert isinstance(content[2], types.TextContent)
    assert "(image/png, 75 bytes) is not shown" in content[2].text
    assert sum(len(each.data) for each in content if isinstance(each, types.ImageContent)) == MAX_IMAGE_CHARS

"""URIs of files."""

from __future__ import annotations

from sandlot.mcp.resources import FileUri, parse_uri
from tests.support.cases import cases


@cases(
    "uri, file",
    [
        ("sandlot://sb-1/files/workspace/a.txt", FileUri("sb-1", "/workspace/a.txt")),
        ("sandlot://name/files/a%20b%2Fc", FileUri("name", "/a b/c")),
        ("sandlot://sb-1/files//etc/passwd", FileUri("sb-1", "/etc/passwd")),
        ("sandlot://sb-1/files/", None),
        ("sandlot://sb-1/other/a", None),
        ("sandlot:///files/a", None),
        ("sandlot://../files/a", None),
        ("file:///etc/passwd", None),
        ("", None),
    ],
)
def test_uri_names_a_sandbox_and_an_absolute_path(uri: str, file: FileUri | None) -> None:
    assert parse_uri(uri) == file


def test_uri_of_a_file_is_parsed_again() -> None:
    file = FileUri("sb-1", "/ä b/%41?#\n.txt")
    assert parse_uri(str(file)) == file

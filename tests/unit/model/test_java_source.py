"""File names and main classes of Java programs."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.java_source import MAX_SEARCHED_CHARS, Source, find_java_source
from tests.support.cases import cases

MAIN = "public static void main(String[] args) {}"


@cases(
    "code, name, main",
    [
        (f"public class Main {{ {MAIN} }}", "Main", "Main"),
        ("class Solution { static void main(String... args) {} }", "Solution", "Solution"),
        (f"package a.b.c;\nimport java.util.*;\npublic class Main {{ {MAIN} }}", "Main", "a.b.c.Main"),
        (f"public class Shape {{}}\nclass Program {{ {MAIN} }}", "Shape", "Program"),
        (f"class Program {{ {MAIN} }}\npublic final class Shape {{}}", "Shape", "Program"),
        (f"class A {{ {MAIN} }} public class B {{ {MAIN} }}", "B", "B"),
        (f"class A {{}} class B {{ {MAIN} }} class C {{}}", "B", "B"),
        ("class A { void main(int depth) {} } class B { static void main(String[] args) {} }", "B", "B"),
        (f"class Outer {{ static class Inner {{ {MAIN} }} void run() {{ class Local {{ {MAIN} }} }} {MAIN} }}", "Outer", "Outer"),
        (f"class First {{ class Inner {{ {MAIN} }} }} class Last {{ {MAIN} }}", "Last", "Last"),
        (f"// public class No {{\n/* class No {{ {MAIN} }} */ class Yes {{ {MAIN} }}", "Yes", "Yes"),
        (f'class A {{ String s = "}} class No {{ {MAIN} }}"; char c = \'{{\'; String q = "\\"{{"; {MAIN} }}', "A", "A"),
        (f'class A {{ String s = """\n  public class No {{ " \\""" {MAIN}\n"""; {MAIN} }} class B {{}}', "A", "A"),
        ("public enum Main { ONE; public static void main(String[] args) {} }", "Main", "Main"),
        ("record Point(int x, int y) {} interface Run { static void main(String[] args) {} }", "Run", "Run"),
        ("abstract class Base { public static void main(String[] args) {} } public class Main extends Base {}", "Main", "Base"),
        ("public class Main extends Base {} class Other {}", "Main", "Main"),
        ("@Deprecated\n@SuppressWarnings({})\npublic\nclass Main {}", "Main", "Main"),
        ("public sealed interface Shape permits A {}\nrecord A() implements Shape { public static void main(String[] a) {} }", "Shape", "A"),
        ('void main() { System.out.println("compact source file"); }', "Main", "Main"),
        ("", "Main", "Main"),
        ("}}} class A { static void main(String[] a) {} }", "A", "A"),
        ("class /* public class", "Main", "Main"),
    ],
)
def test_file_has_the_name_of_the_public_class_and_the_class_with_main_runs(code: str, name: str, main: str) -> None:
    assert find_java_source(code) == Source(f"{name}.java", main)


PIECES = ("class ", "public ", "static ", "A", "{", "}", ";", '"', '"""', "'", "\\", "/*", "*/", "//", "\n", "package ", ".", "void main(")


@given(st.lists(st.sampled_from(PIECES)))
def test_any_text_has_names(pieces: list[str]) -> None:
    source = find_java_source("".join(pieces))
    assert source.filename != ".java"
    assert source.entry


@cases(
    "piece",
    [
        "\n",
        " ",
        "public ",
        "public\n",
        "class  \n",
        "static ",
        "package a",
        "package a.",
        "void main ",
        "/*",
        '"',
        '\\"',
        '"""',
        '"""\n\\"""\n',
        "'",
        "{",
        "{}",
        ";",
        "a;",
    ],
)
def test_time_of_a_search_is_limited(piece: str) -> None:
    code = piece * (10 * MAX_SEARCHED_CHARS // len(piece)) + "class A { static void main(String[] a) {} }"
    cut = code[: MAX_SEARCHED_CHARS - 1] + "\\"  # ends within an escape
    started_s = time.process_time()
    assert find_java_source(code) == find_java_source(code[:MAX_SEARCHED_CHARS])
    find_java_source(cut)
    assert time.process_time() - started_s < 2, "a search that takes quadratic time"

"""A live sandbox has one writer: its supervisor. Code outside of ``core/lifecycle`` assigns no field of a sandbox."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sandlot.core.sandbox import Deadline, Sandbox

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "core/manager.py": {"idempotency_key", "resume_operation"},  # before the supervisor begins
    "core/records/sandboxes.py": {
        "deadline",
        "ended_at",
        "exit",
        "idempotency_key",
        "ref",
        "waits_for_disk",
    },  # while the object is made from a record
    "core/registry.py": {"spec"},  # after the end: the environment is forgotten
}
"""File -> fields of a sandbox that the file may change, each for the reason given."""
CHANGING = {"become", "deadline.extend", "deadline.set"}
"""Methods that change a sandbox."""


def is_sandbox(node: ast.expr, names: set[str]) -> bool:
    """Return True if an expression is a sandbox: by an annotation, by its construction, or by its name."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in names or name in {"sandbox", "_sandbox"}


def names_of_sandboxes(tree: ast.AST) -> set[str]:
    """Return the names in a file that are annotated as a sandbox or that are assigned one."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None and ast.unparse(node.annotation).split(" |")[0] == "Sandbox":
            target = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            names.add(target)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "Sandbox":
            names.update(ast.unparse(target) for target in node.targets)
    return names


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the single targets of an assignment."""
    if isinstance(node, ast.Assign):
        pending = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        pending = [node.target]
    elif isinstance(node, ast.Delete):
        pending = list(node.targets)
    else:
        pending = []
    while pending:
        target = pending.pop()
        if isinstance(target, ast.Tuple | ast.List):
            pending += target.elts
        else:
            yield target


def changes(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the field of each change of a sandbox in a file."""
    tree = ast.parse(source)
    names = names_of_sandboxes(tree)
    for node in ast.walk(tree):
        for target in targets(node):
            if isinstance(target, ast.Attribute):
                if target.attr in Sandbox.__slots__ and is_sandbox(target.value, names):
                    yield target.lineno, target.attr
                elif isinstance(target.value, ast.Attribute) and target.value.attr == "deadline" and target.attr in Deadline.__slots__:
                    yield target.lineno, "deadline"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, method = node.func.value, node.func.attr
            if is_sandbox(owner, names) and method in CHANGING:
                yield node.lineno, method
            elif isinstance(owner, ast.Attribute) and is_sandbox(owner.value, names) and f"{owner.attr}.{method}" in CHANGING:
                yield node.lineno, owner.attr


def test_only_the_lifecycle_changes_a_sandbox() -> None:
    offenders = []
    for file in sorted((ROOT / "src/sandlot").rglob("*.py")):
        name = str(file.relative_to(ROOT / "src/sandlot"))
        if not name.startswith("core/lifecycle/") and name != "core/sandbox.py":
            offenders += [f"{name}:{line} {field}" for line, field in changes(file.read_text("utf-8")) if field not in ALLOWED.get(name, set())]
    assert offenders == []


def test_every_exception_is_used() -> None:
    for name, fields in ALLOWED.items():
        assert {field for _, field in changes((ROOT / "src/sandlot" / name).read_text("utf-8"))} == fields, name


def test_changes_of_a_sandbox_are_found() -> None:
    source = """
async def change(child: Sandbox, parent: Sandbox | None):
    child.spec, other = 1, 2
    parent.mount_pins += 1
    self.sandbox.state = 3
    child.deadline.extend(5)
    child.become(State.RUNNING)
    made = Sandbox(spec)
    made.name = "x"
    del child.ref
    child.deadline.monotonic_s = 0
    child.request_end(reason)
    config.spec = 4
"""
    assert sorted(field for _, field in changes(source)) == [
        "become",
        "deadline",
        "deadline",
        "mount_pins",
        "name",
        "ref",
        "spec",
        "state",
    ]

"""The guest's own interpreter: Debian's python3.11, made relocatable by copying. Nothing is patched.

The interpreter is Debian's binary with its libraries and dynamic loader. It runs in any image, even in an image without Python or with another C
library. The interpreter has only the part of the standard library that the guest may need, as byte code in one uncompressed zip. So few files are
opened when the guest starts. This saves time, because opening a file takes a round trip to gVisor's file server.

Invariants:
- The Debian suite is fixed, so that every host builds the same interpreter, whatever Debian release the host runs.
- The guest can import the modules in :data:`ROOTS` and all modules that they import. :func:`check_imports` refuses a guest that imports others.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandlot.images import command_lines
from sandlot.images.command import CommandRunner, output_of
from sandlot.images.recipe import Debian
from sandlot.model.errors import HostError, InternalError

GENERATION = 1
"""Part of the interpreter's key. Raise this number when a change of this module makes it build another interpreter from the same packages."""

DEBIAN = Debian(suite="bookworm", variant="extract", packages=("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"))
VERSION = "3.11"

ROOTS = (
    *("_posixsubprocess", "abc", "array", "ast", "base64", "binascii", "bisect", "builtins", "codecs", "collections", "collections.abc"),
    *(
        "contextlib",
        "copy",
        "ctypes",
        "encodings.ascii",
        "encodings.idna",
        "encodings.latin_1",
        "encodings.utf_8",
        "enum",
        "errno",
        "fcntl",
        "fnmatch",
    ),
    *(
        "__future__",
        "functools",
        "gc",
        "hashlib",
        "heapq",
        "hmac",
        "io",
        "itertools",
        "json",
        "linecache",
        "marshal",
        "math",
        "mmap",
        "operator",
        "os",
    ),
    *("posixpath", "pty", "queue", "random", "re", "reprlib", "resource", "secrets", "select", "selectors", "shlex", "shutil", "signal"),
    *("socket", "stat", "string", "struct", "subprocess", "sys", "tempfile", "termios", "textwrap", "threading", "time", "token", "tokenize"),
    *("traceback", "tty", "types", "typing", "unicodedata", "warnings", "weakref", "zipimport", "zlib"),
)
"""Modules that the guest may import. asyncio, dataclasses and argparse are left out, because each would double the guest's start-up time."""

_LEFT_OUT = frozenset({"_hashlib", "_bz2", "_lzma", "_ssl", "bz2", "lzma", "_compression"})
"""Optional modules that hashlib and shutil try to import. They are left out, because each depends on another C library."""

_CLOSURE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
left_out = sys.argv[1].split(',')
for name, module in sorted(sys.modules.items()):
    spec = getattr(module, '__spec__', None)
    # Frozen modules are not needed, because the binary contains them. An alias such as os.path has the spec of another module (posixpath).
    if spec is not None and spec.has_location and spec.origin != 'frozen' and spec.name == name and name not in left_out:
        print('MODULE', name, int(hasattr(module, '__path__')), spec.origin)
"""

_COMPILE = """
import _imp, marshal, os, sys
from _frozen_importlib_external import MAGIC_NUMBER
source_folder, target_folder, seen_as = sys.argv[1:]
for folder, _, names in os.walk(source_folder):
    for name in names:
        path = os.path.join(folder, name)
        inside = os.path.relpath(path, source_folder)
        with open(path, 'rb') as file:
            source = file.read()
        code = compile(source, seen_as + '/' + inside, 'exec', dont_inherit=True, optimize=0)
        target = os.path.join(target_folder, inside) + 'c'
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # PEP 552: the flags value 1 marks a hash-based file that is not checked against its source.
        checksum = _imp.source_hash(int.from_bytes(MAGIC_NUMBER[:2], 'little'), source)
        with open(target, 'wb') as file:
            file.write(MAGIC_NUMBER + (1).to_bytes(4, 'little') + checksum + marshal.dumps(code))
"""


def key(architecture: str) -> str:
    """Return the key of the interpreter: the SHA-256, in hexadecimal, of everything that it is built from.

    Args:
        architecture: Debian's name of the machine's architecture, such as ``amd64``.
    """
    inputs = [GENERATION, architecture, DEBIAN.suite, DEBIAN.packages, ROOTS, sorted(_LEFT_OUT), _COMPILE]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def argv_in(folder: Path) -> tuple[str, ...]:
    """Return the command that starts a built interpreter on the host.

    Args:
        folder: Folder of the interpreter, at any path of the host.
    """
    return (str(folder / "lib/ld.so"), "--library-path", str(folder / "lib"), str(folder / "bin/python3"), "-SI")


def assemble(debian: Path, target: Path, scratch: Path, runner: CommandRunner) -> None:
    """Assemble the interpreter from extracted Debian packages.

    Args:
        debian: Folder with the extracted packages of :data:`DEBIAN`.
        target: Empty folder to fill. It becomes ``/.sandlot`` in sandboxes.
        scratch: Folder for temporary files.
        runner: Runs the interpreter, to list and compile the standard library.

    Raises:
        HostError: The packages contain no dynamic loader, or the interpreter does not run.
    """
    loader, libraries = loader_of(debian)
    python = command_lines.own_program_argv(debian, loader, libraries, Path(f"usr/bin/python{VERSION}"))
    modules, extensions = _closure((*python, "-SI"), runner)

    (target / "bin").mkdir(mode=0o755)
    (target / "lib" / f"python{VERSION}" / "lib-dynload").mkdir(mode=0o755, parents=True)
    shutil.copyfile(loader, target / "lib/ld.so")
    shutil.copyfile(debian / f"usr/bin/python{VERSION}", target / "bin/python3")
    for extension in extensions:
        shutil.copyfile(extension, target / "lib" / f"python{VERSION}" / "lib-dynload" / extension.name)
    for name, library in _needed_libraries((debian / f"usr/bin/python{VERSION}", *extensions), loader, libraries).items():
        shutil.copyfile(library, target / "lib" / name)

    sources = scratch / "stdlib"
    for inside, path in modules.items():
        (sources / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, sources / inside)
    archive = f"lib/python{VERSION.replace('.', '')}.zip"
    compile_zip((*python, "-SI"), sources, target / archive, f"/.sandlot/{archive}", runner)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" or path.name == "ld.so" else 0o644)
    runner.run("starting the guest's interpreter", (*argv_in(target), "-c", f"import {', '.join(ROOTS)}"), env={})


def compile_zip(python: tuple[str, ...], sources: Path, archive: Path, seen_as: str, runner: CommandRunner) -> None:
    """Compile a folder of Python sources into an uncompressed zip of byte code. The same sources give the same bytes.

    Args:
        python: Command of the interpreter that will import from the zip.
        sources: Folder with the sources.
        archive: Path of the zip to write.
        seen_as: Path of the zip inside sandboxes, for tracebacks.
        runner: Runs the interpreter, to compile the sources.
    """
    compiled = sources.with_name(f"{sources.name}-compiled")
    runner.run("compiling the guest", (*python, "-c", _COMPILE, str(sources), str(compiled), seen_as), env={"PYTHONHASHSEED": "0"})
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_STORED) as into:
        for path in sorted(compiled.rglob("*.pyc")):
            entry = zipfile.ZipInfo(path.relative_to(compiled).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            into.writestr(entry, path.read_bytes())
    archive.chmod(0o644)


def available_modules(folder: Path) -> frozenset[str]:
    """Return the names of the modules that a built interpreter can import, without the modules that are built into its binary.

    Args:
        folder: Folder of the interpreter.
    """
    with zipfile.ZipFile(folder / f"lib/python{VERSION.replace('.', '')}.zip") as archive:
        names = [name.removesuffix(".pyc").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()]
    extensions = [path.name.partition(".")[0] for path in (folder / "lib" / f"python{VERSION}" / "lib-dynload").iterdir()]
    return frozenset([*names, *extensions])


def unknown_imports(sources: Mapping[str, bytes], known: Iterable[str]) -> dict[str, list[str]]:
    """Return the imported modules that are not known, each with the names of the files that import it.

    Imports under ``if TYPE_CHECKING`` and imports of ``sandlot`` modules are ignored.

    Args:
        sources: Source text by file name.
        known: Names of modules that can be imported.
    """
    known = {"__future__", "sandlot", *known}
    found: dict[str, list[str]] = {}
    for file, source in sorted(sources.items()):
        for name in _imports(ast.parse(source, file)):
            if name not in known and name.partition(".")[0] != "sandlot":
                found.setdefault(name, []).append(file)
    return found


def check_imports(sources: Mapping[str, bytes], folder: Path, *, beside: Iterable[str] = ()) -> None:
    """Check that the guest's sources import only modules that the guest's interpreter has.

    Args:
        sources: Source text by file name.
        folder: Folder of the built interpreter.
        beside: Names of the guest's own modules that its sources may import.

    Raises:
        InternalError: A source imports a module that the interpreter does not have.
    """
    builtin = output_of((*argv_in(folder), "-c", "import sys; print(*sys.builtin_module_names)")).split()
    unknown = unknown_imports(sources, {*builtin, *available_modules(folder), *ROOTS, *beside})
    if unknown:
        imports = "; ".join(f"{name} ({', '.join(files)})" for name, files in unknown.items())
        raise InternalError(
            f"The guest imports modules that its interpreter does not have: {imports}.", hint="Add the module to ROOTS in images/interpreter.py."
        )


def loader_of(root: Path) -> tuple[Path, list[Path]]:
    """Return the paths of a Debian tree's dynamic loader and of its library folders.

    ``lib64/ld-linux*`` is not used, because it is an absolute link, which leads out of the tree.

    Args:
        root: Folder that contains the tree.

    Raises:
        HostError: The tree has no dynamic loader.
    """
    found = sorted(root.glob("lib/*-linux-gnu*/ld-linux*.so.*")) or sorted(root.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*"))
    if not found:
        raise HostError(
            "The Debian packages contain no dynamic loader.",
            hint="Check that the machine's apt sources offer libc6 of bookworm.",
        )
    triple = found[0].parent.name
    return found[0], [folder for folder in (root / "lib" / triple, root / "usr/lib" / triple) if folder.is_dir()]


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
        return [name for child in node.orelse for name in _imports(child)]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    return [name for child in ast.iter_child_nodes(node) for name in _imports(child)]


def _closure(python: tuple[str, ...], runner: CommandRunner) -> tuple[dict[str, Path], list[Path]]:
    """Return all modules that an import of :data:`ROOTS` loads: the source files, by path in the zip, and the files of extension modules."""
    modules: dict[str, Path] = {}
    extensions: list[Path] = []

    def read(line: str) -> None:
        tag, *rest = line.split(maxsplit=3)
        if tag != "MODULE":
            return
        name, package, file = rest
        if file.endswith(".so"):
            extensions.append(Path(file))
        elif file.endswith(".py"):
            inside = name.replace(".", "/") + ("/__init__.py" if package == "1" else ".py")
            modules[inside] = Path(file)

    runner.run("listing the guest's standard library", (*python, "-c", _CLOSURE, ",".join(sorted(_LEFT_OUT)), *ROOTS), env={}, on_line=read)
    return modules, extensions


def _needed_libraries(binaries: Iterable[Path], loader: Path, libraries: list[Path]) -> dict[str, Path]:
    """Find the shared libraries that some binaries need (ld.so(8), --list).

    Returns:
        Path of each library. The keys are the names under which the binaries refer to the libraries, such as ``libz.so.1``.
    """
    found: dict[str, Path] = {}
    for binary in binaries:
        text = output_of((str(loader), "--library-path", ":".join(map(str, libraries)), "--list", str(binary)))
        for name, path in re.findall(r"^\s*(\S+) => (\S+) \(0x", text, re.MULTILINE):
            if not name.startswith("/"):
                found[name] = Path(path)
    return found

"""Recipes: their content, and the key of the image that they build."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.images import recipe as recipes
from sandlot.images import recipe_files
from sandlot.images.recipe import Debian, Npm, Recipe, Step
from sandlot.images.store import ImageStore
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.languages import LANGUAGES
from sandlot.model.specs import User
from sandlot.protocol import schema

DEBIAN = '[debian]\nsuite = "bookworm"\npackages = ["busybox-static"]\n'


def test_every_key_of_a_recipe_is_read() -> None:
    text = """
        description = "d"
        internal = true
        from = "base"
        [python]
        lock = "x.lock"
        [env]
        A = "1"
        [files]
        "/etc/a" = "b"
        [[run]]
        argv = ["true"]
        [[run]]
        argv = ["id", "-u"]
        user = "user"
    """
    assert recipe_files.parse("x", text, {"x.lock": "six==1"}) == Recipe(
        name="x",
        description="d",
        parent="base",
        lock="six==1",
        env={"A": "1"},
        files={"/etc/a": "b"},
        run=(Step(("true",)), Step(("id", "-u"), User.USER)),
        internal=True,
    )


def test_internal_recipes_are_no_templates(tmp_path: Path) -> None:
    internal = {name for name, recipe in recipe_files.shipped().items() if recipe.internal}
    assert internal == {"builder"}
    assert internal.isdisjoint(recipe_files.builtin_templates())
    store = ImageStore(tmp_path)
    assert store.names() == sorted(store.recipes) == sorted(recipe_files.builtin_templates())
    with pytest.raises(NotFoundError) as error:
        recipes.lineage(recipe_files.shipped(), "nothing")
    assert "builder" not in error.value.hint


def test_debian_table_is_read() -> None:
    text = '[debian]\nsuite = "bookworm"\nvariant = "extract"\npackages = ["a1", "g++"]\nexclude = ["/x/*"]\ninclude = ["/x/y"]\n'
    assert recipe_files.parse("x", text, {}).debian == Debian("bookworm", "extract", ("a1", "g++"), ("/x/*",), ("/x/y",))


@pytest.mark.parametrize(
    "text, word",
    [
        ("", "neither"),
        ("[debian]\npackages = []", "no `suite`"),
        ("x = ", "TOML"),
        ('fron = "base"', "fron"),
        (DEBIAN + "packags = []", "packags"),
        ("from = 1", "text"),
        ('[debian]\nsuite = "Bookworm!"', "suite"),
        ('[debian]\nsuite = "bookworm"\nvariant = "tiny"', "variant"),
        ('[debian]\nsuite = "bookworm"\npackages = ["--hook=x"]', "Debian package"),
        ('[debian]\nsuite = "bookworm"\npackages = [1]', "text"),
        ('[debian]\nsuite = "bookworm"\nexclude = ["etc"]', "absolute"),
        ('from = "base"\n[python]\nlock = "nowhere.lock"', "nowhere.lock"),
        ('from = "base"\n[files]\n"/../etc/passwd" = ""', "without '..'"),
        ('from = "base"\n[files]\n"etc/passwd" = ""', "absolute"),
        ('from = "base"\n[env]\n"A=B" = ""', "environment"),
        ('from = "base"\nlanguages = ["c++"]', "c++"),
        ('from = "base"\n[[run]]\nargv = []', "argv"),
        ('from = "base"\n[[run]]\nargv = ["true"]\nuser = "daemon"', "user"),
        ('from = "base"\n[[run]]\nargv = ["true"]\nsudo = true', "sudo"),
    ],
)
def test_invalid_recipe_is_refused_with_the_name_of_the_key(text: str, word: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(word)):
        recipe_files.parse("x", text, {})


def test_debian_packages_of_a_child_are_added_to_those_of_its_parent() -> None:
    base = recipe_files.parse(
        "base", DEBIAN + 'exclude = ["/d/*"]\n[env]\nA = "1"\nB = "1"\n[files]\n"/a" = "base"\n[python]\nlock = "a.lock"', {"a.lock": "a==1"}
    )
    text = 'from = "base"\n[debian]\npackages = ["busybox-static", "g++"]\n[env]\nB = "2"\n[files]\n"/b" = ""\n[python]\nlock = "b.lock"'
    child = recipe_files.parse("child", text, {"b.lock": "b==1"})
    newer = recipe_files.parse("newer", 'from = "child"\n[debian]\nsuite = "trixie"\n[[run]]\nargv = ["true"]', {})
    known = {recipe.name: recipe for recipe in (base, child, newer, Recipe("last", parent="newer"))}

    (whole,) = recipes.lineage(known, "child")
    debian = Debian("bookworm", "apt", ("busybox-static", "g++"), ("/d/*",))
    files = {"/a": "base", "/b": ""}
    assert whole == Recipe("child", debian=debian, lock="a==1\nb==1", env={"A": "1", "B": "2"}, files=files)

    first, last = recipes.lineage(known, "last")
    assert first == replace(whole, name="newer", debian=replace(debian, suite="trixie"), run=(Step(("true",)),))
    assert last is known["last"]


def npm_lock(**entry: str) -> str:
    entries = {
        "": {"dependencies": {"@s/a": "*"}},
        "node_modules/@s/a": {"version": "1.2.3"} | entry,
        "node_modules/b": {"version": "4", "integrity": "x"},
    }
    return json.dumps({"packages": entries})


def test_packages_of_npm_are_pinned_by_a_lock_without_addresses() -> None:
    text = 'from = "base"\n[npm]\nlock = "x.npm.lock"\nscripts = ["@s/a"]'
    recipe = recipe_files.parse("x", text, {"x.npm.lock": npm_lock(integrity="sha512-x")})
    assert recipe.npm == Npm(npm_lock(integrity="sha512-x"), ("@s/a",))
    assert recipe.npm.packages == {"@s/a": "1.2.3"}
    for lock in ("{", "[]", '{"packages": {"": {"dependencies": {}}}}', npm_lock(), npm_lock(integrity="x", resolved="https://example.com")):
        with pytest.raises(InvalidRequestError, match="hashes"):
            recipe_files.parse("x", text, {"x.npm.lock": lock})


def test_lock_and_scripts_of_npm_change_the_key() -> None:
    lines = [(BASE, replace(CHILD, npm=npm)) for npm in (None, Npm("1"), Npm("2"), Npm("2", ("a",)))]
    assert len({recipes.image_key(line, "amd64") for line in lines}) == len(lines)
    whole = recipes.combine([replace(BASE, npm=Npm("1")), replace(CHILD, debian=Debian(""), npm=Npm("2"))])
    assert whole.npm == Npm("2")


def test_alias_builds_the_image_that_it_stands_for() -> None:
    known = recipe_files.with_aliases(recipe_files.shipped(), {"code-interpreter": "code-interpreter-slim", "small": "base"})
    keys = {name: recipes.image_key(recipes.lineage(known, name), "amd64") for name in ("code-interpreter", "code-interpreter-slim", "small", "base")}
    assert keys["code-interpreter"] == keys["code-interpreter-slim"] != keys["base"] == keys["small"]
    assert [recipe.name for recipe in (known["code-interpreter"], known["small"])] == ["code-interpreter", "small"]
    with pytest.raises(NotFoundError, match="'nothing'"):
        recipe_files.with_aliases(recipe_files.shipped(), {"small": "nothing"})


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", "-a", "a" * 64, "a.b"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="name"):
        recipe_files.parse(name, DEBIAN, {})


def test_folder_of_recipes_is_read_with_its_locks(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(DEBIAN, encoding="utf-8")
    (tmp_path / "b.toml").write_text('from = "a"\n[python]\nlock = "b.lock"', encoding="utf-8")
    (tmp_path / "b.lock").write_text("six==1", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not a recipe", encoding="utf-8")
    found = recipe_files.load_folder(tmp_path)
    assert sorted(found) == ["a", "b"]
    assert found["b"].lock == "six==1"


def test_unknown_template_error_lists_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"'nope'.*Use one of these templates: agent, base, .*code-interpreter") as caught:
        recipes.lineage(recipe_files.builtin_templates(), "nope")
    assert caught.value.code is ErrorCode.TEMPLATE_NOT_FOUND


def test_unknown_parent_and_circular_recipes_are_refused() -> None:
    known = {"a": Recipe("a", parent="b"), "b": Recipe("b", parent="a"), "c": Recipe("c", parent="d")}
    with pytest.raises(InvalidRequestError, match="a <- b <- a"):
        recipes.lineage(known, "a")
    with pytest.raises(NotFoundError, match=r"parent 'd' of the recipe c does not exist"):
        recipes.lineage(known, "c")


BASE = Recipe("a", debian=Debian("bookworm", packages=("x",)))
CHILD = Recipe("b", parent="a", lock="l", files={"/f": "1"}, run=(Step(("true",)),))


@pytest.mark.parametrize(
    "line",
    [
        (replace(BASE, debian=Debian("bookworm", packages=("y",))), CHILD),
        (replace(BASE, debian=Debian("bookworm", packages=("x",), exclude=("/d",))), CHILD),
        (BASE, replace(CHILD, lock="m")),
        (BASE, replace(CHILD, files={"/f": "2"})),
        (BASE, replace(CHILD, run=(Step(("true",), User.USER),))),
        (BASE,),
    ],
)
def test_change_of_the_content_changes_the_key(line: tuple[Recipe, ...]) -> None:
    assert recipes.image_key(line, "amd64") != recipes.image_key((BASE, CHILD), "amd64")


def test_name_description_environment_and_memory_do_not_change_the_key() -> None:
    renamed = (
        replace(BASE, name="z", description="other"),
        replace(CHILD, name="y", parent="z", env={"A": "1"}, memory_bytes=2 << 30),
    )
    assert recipes.image_key(renamed, "amd64") == recipes.image_key((BASE, CHILD), "amd64")
    assert recipes.image_key((BASE, CHILD), "arm64") != recipes.image_key((BASE, CHILD), "amd64")


def test_generation_of_the_builder_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipes.image_key((BASE, CHILD), "amd64")
    monkeypatch.setattr(recipes, "GENERATION", recipes.GENERATION + 1)
    assert recipes.image_key((BASE, CHILD), "amd64") != before


@given(st.text())
def test_any_text_is_a_recipe_or_an_invalid_request(text: str) -> None:
    try:
        recipe = recipe_files.parse("x", text, {})
    except InvalidRequestError:
        return
    assert recipe.debian is not None or recipe.parent is not None


def test_builtin_recipes_name_no_host_and_pin_every_package_with_hashes() -> None:
    known = recipe_files.builtin_templates()
    assert sorted(known) == ["agent", "base", "claude", "code-interpreter", "code-interpreter-slim", "codex", "desktop", "languages"]
    for recipe in known.values():
        assert recipe.description
        # The port of the package cache inside of the sandbox is no host of anybody's.
        assert set(re.findall(r"\w+://([^/\s]*)", repr(recipe))) <= {f"127.0.0.1:{schema.PACKAGES_PORT}"}
        if recipe.npm is not None:
            assert set(recipe.npm.scripts) <= set(recipe.npm.packages)
        requirements = [line for line in recipe.lock.replace("\\\n", " ").splitlines() if line.strip()]
        for line in requirements:
            assert re.fullmatch(r"[a-z0-9.-]+==\S+( ; [^-]+)?(\s+--hash=sha256:[0-9a-f]{64})+", line.strip())


def test_template_has_the_languages_of_all_its_recipes(tmp_path: Path) -> None:
    own = {**recipe_files.shipped(), "plain": Recipe("plain", debian=Debian("bookworm"))}
    store = ImageStore(tmp_path, own)
    of_base = frozenset({"bash", "javascript", "perl", "python"})
    assert store.languages("base") == store.languages("code-interpreter-slim") == of_base
    assert store.languages("code-interpreter") == store.languages("agent") == of_base | {"c", "cpp"}
    assert store.languages("languages") == frozenset(language.name for language in LANGUAGES)
    assert store.languages("plain") is None  # not known


def test_memory_is_that_of_the_nearest_recipe_that_names_one(tmp_path: Path) -> None:
    own = {
        "plain": recipe_files.parse("plain", '[debian]\nsuite = "bookworm"', {}),
        "large": recipe_files.parse("large", 'from = "plain"\nmemory = "2G"', {}),
        "child": recipe_files.parse("child", 'from = "large"', {}),
        "combined": recipe_files.parse("combined", 'from = "large"\n[debian]\npackages = ["x11vnc"]', {}),
        "small": recipe_files.parse("small", 'from = "child"\nmemory = "512M"', {}),
    }
    store = ImageStore(tmp_path, own)
    known = {name: store.memory_bytes(name) for name in own}
    assert known == {"plain": None, "large": 2 << 30, "child": 2 << 30, "combined": 2 << 30, "small": 512 << 20}


@pytest.mark.parametrize("memory", ["2 apples", "1M", "9T"])
def test_memory_that_no_sandbox_can_have_is_refused(memory: str) -> None:
    with pytest.raises(InvalidRequestError):
        recipe_files.parse("x", f'from = "base"\nmemory = "{memory}"', {})

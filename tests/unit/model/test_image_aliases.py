"""Aliases of images: templates and mirrors that stand for well-known images."""

from __future__ import annotations

import pytest

from sandlot.model.image_aliases import AliasedBase, ImageAliases, parse_aliases
from sandlot.model.images import parse_reference


def target_of(aliases: ImageAliases, image: str) -> str | None:
    found = aliases.resolve(parse_reference(image))
    return None if found is None else found.template or str(found.image)


@pytest.mark.parametrize(
    "image, template",
    [
        ("python:3.12", "base"),
        ("python", "base"),
        ("docker.io/library/python:3.12-slim", "base"),
        ("node:22", "base"),
        ("golang:1.24", "languages"),
        ("golang:1.24-alpine", None),
        ("debian:bookworm", "base"),
        ("ubuntu:22.04", "base"),
        ("e2bdev/base", "base"),
        ("e2bdev/base:latest", "base"),
        ("e2bdev/code-interpreter", "code-interpreter"),
        ("python:3.12-alpine", None),
        ("alpine:3", None),
        ("ubuntu:18.04", None),
        ("other/python:3.12", None),
        ("ghcr.io/library/python:3.12", None),
        (f"python@sha256:{'0' * 64}", None),
    ],
)
def test_default_images_of_clients_are_built_in_templates(image: str, template: str | None) -> None:
    assert target_of(ImageAliases(), image) == template


def test_only_the_default_alias_of_node_names_a_user_that_its_template_lacks() -> None:
    users = {image: found.user for image in ("node:22", "python:3.12") if (found := ImageAliases().resolve(parse_reference(image))) is not None}
    assert users == {"node:22": "node", "python:3.12": ""}
    own = ImageAliases(parse_aliases(["node=base"])).resolve(parse_reference("node:22"))
    assert own is not None
    assert own.user == ""


def test_images_of_a_registry_that_can_be_used_keep_their_meaning() -> None:
    assert target_of(ImageAliases(registries=["docker.io"]), "python:3.12") is None


def test_operator_adds_aliases_and_overrides_the_defaults() -> None:
    own = parse_aliases(
        ["python:2.7=none", "python:*-slim=mirror.example:5000/hub/python:v*", "node=desk-top", "registry.example:5000/team/app:v1=base"]
    )
    aliases = ImageAliases(own, ["docker.io"])
    assert target_of(aliases, "python:2.7") is None
    assert target_of(aliases, "python:3.12-slim") == "mirror.example:5000/hub/python:v3.12"
    assert target_of(aliases, "node:22") == "desk-top"
    assert target_of(aliases, "registry.example:5000/team/app:v1") == "base"
    assert target_of(aliases, "registry.example:5000/team/app:v2") is None
    assert target_of(ImageAliases(own), "python:3.12") == "base"


def test_log_of_a_build_names_what_the_build_starts_from() -> None:
    reference = parse_reference("python:3.12")
    assert "the template base of this service" in AliasedBase(reference, template="base").notice
    assert "docker.io/library/python:3.12" in AliasedBase(reference, template="base").notice
    mirror = parse_reference("mirror.example/python:3")
    assert str(mirror) in AliasedBase(reference, image=mirror).notice


@pytest.mark.parametrize(
    "text", ["", "python", "python=", "=base", "PYTHON=base", "python:a b=base", "python=Base!", f"python@sha256:{'0' * 64}=base"]
)
def test_invalid_alias_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not IMAGE"):
        parse_aliases([text])

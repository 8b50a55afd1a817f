# Generated from src/sandlot/sdk/_async/templates.py by scripts/unasync.py; change that file.
"""The templates of a service, as ``client.templates``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sandlot.model.errors import ExecutionFailedError, InvalidRequestError
from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.build_context import PackedContext, packed, uploadable
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.templates import BuildLine, TemplateBuild, TemplateInfo


class Templates:
    """The templates that sandboxes can start from."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> builtins.list[TemplateInfo]:
        """List all templates by name."""
        return structure_list(TemplateInfo, self._transport.request("GET", "/v1/templates"), "templates")

    def get(self, template: str) -> TemplateInfo:
        """Get a template by its name.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return structure(TemplateInfo, self._transport.request("GET", _path(template)))

    def build(  # noqa: PLR0913 - passed by name
        self,
        name: str,
        *,
        dockerfile: str | Path | None = None,
        context: str | Path | None = None,
        archive: Path | None = None,
        image: str | None = None,
        args: Mapping[str, str] | None = None,
        target: str | None = None,
        tags: Sequence[str] = (),
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        start_command: str | None = None,
        ready_command: str | None = None,
        no_cache: bool = False,
        on_line: backend.Callback[BuildLine] | None = None,
    ) -> TemplateBuild:
        """Build a template from a Dockerfile or an archive with an image, and wait until it is ready.

        A template of this name is created if there is none.

        Args:
            name: Name of the template: a-z, 0-9, ``-`` and ``_``.
            dockerfile: Text of the Dockerfile, or its path as :class:`~pathlib.Path`. Default: ``Dockerfile`` in ``context``.
            context: Folder with the files that ``COPY`` reads. Default: no files.
            archive: Instead of a Dockerfile: archive of an OCI layout, of ``docker save`` or of a root filesystem, or the folder of a layout.
            image: Name of the image in ``archive``. Default: the only image.
            args: Values of ``ARG`` instructions.
            target: Last stage to build. Default: the last stage.
            tags: Tags that the build gets when it is ready. Default: ``default``.
            cpus: CPU cores of sandboxes of the template whose request names none.
            memory: Memory of these sandboxes, in bytes or as text such as ``"2G"``.
            disk: Disk space of these sandboxes.
            pids: Processes and threads of these sandboxes.
            start_command: Command that runs in every sandbox. Default: ``ENTRYPOINT`` and ``CMD`` of the Dockerfile.
            ready_command: Command that succeeds once the start command is ready.
            no_cache: True to run all steps again.
            on_line: Called with each line of the log.

        Raises:
            ExecutionFailedError: The build failed or was cancelled. The message has the step and the reason.
        """
        begun = self.start_build(
            name,
            dockerfile=dockerfile,
            context=context,
            archive=archive,
            image=image,
            args=args,
            target=target,
            tags=tags,
            cpus=cpus,
            memory=memory,
            disk=disk,
            pids=pids,
            start_command=start_command,
            ready_command=ready_command,
            no_cache=no_cache,
        )
        for line in self.follow_log(begun.id):
            backend.call(on_line, line)
        ended = self.get_build(begun.id)
        if ended.status != "ready":
            step = f" in step {ended.step}" if ended.step else ""
            raise ExecutionFailedError(
                f"The build of the template {name} {ended.status}{step}: {ended.error or 'no reason was recorded'}",
                fields={"build": ended.id, "step": ended.step},
            )
        return ended

    def start_build(  # noqa: PLR0913 - passed by name
        self,
        name: str,
        *,
        dockerfile: str | Path | None = None,
        context: str | Path | None = None,
        archive: Path | None = None,
        image: str | None = None,
        args: Mapping[str, str] | None = None,
        target: str | None = None,
        tags: Sequence[str] = (),
        cpus: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
        start_command: str | None = None,
        ready_command: str | None = None,
        no_cache: bool = False,
    ) -> TemplateBuild:
        """Start the build of a template, and return without waiting. Arguments as for :meth:`build`.

        Raises:
            InvalidRequestError: The Dockerfile is invalid; the message names the line.
            NotFoundError: There is no such file or folder on this machine.
            LimitError: A quota is used up, or too many builds of the key wait.
        """
        if dockerfile is None and archive is None:
            if context is None:
                raise InvalidRequestError("There is nothing to build.", hint="Pass `dockerfile`, `archive`, or a `context` with a file `Dockerfile`.")
            dockerfile = Path(context) / "Dockerfile"
        body = requests.omit_none(
            dockerfile=backend.in_thread(dockerfile.read_text) if isinstance(dockerfile, Path) else dockerfile,
            context=None if context is None else self._upload(packed(Path(context))),
            archive=None if archive is None else self._upload(uploadable(archive)),
            image=image,
            args=dict(args) if args else None,
            target=target,
            tags=[*tags] or None,
            limits=requests.limits_body(cpus=cpus, memory=memory, disk=disk, pids=pids) or None,
            start_command=start_command,
            ready_command=ready_command,
            no_cache=no_cache or None,
        )
        return structure(TemplateBuild, self._transport.request("POST", f"{_path(name)}/builds", body=body))

    def get_build(self, build: str) -> TemplateBuild:
        """Get a build by its id.

        Raises:
            NotFoundError: ``build_not_found``.
        """
        return structure(TemplateBuild, self._transport.request("GET", _build_path(build)))

    def builds(self, template: str, *, limit: int | None = None) -> builtins.list[TemplateBuild]:
        """List the builds of a template, newest first.

        Args:
            template: Name or id of the template.
            limit: Maximum number of builds. Default: all.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return backend.collected(self._transport.paginate(f"{_path(template)}/builds", "builds", TemplateBuild, params={}, limit=limit))

    def follow_log(self, build: str, *, after: int = 0) -> Iterator[BuildLine]:
        """Iterate over the lines of the log of a build until the build has ended. A broken stream is continued without a gap.

        Args:
            build: Id of the build.
            after: Only lines with a larger ``number``.

        Raises:
            NotFoundError: ``build_not_found``.
            UnavailableError: The service cannot be reached, also after several attempts.
        """
        messages = self._transport.follow(f"{_build_path(build)}/log", after=after, params={})
        try:
            for message in messages:
                if message.name == "end":
                    return
                yield structure(BuildLine, message.data)
        finally:
            messages.close()

    def cancel_build(self, build: str) -> TemplateBuild:
        """Cancel a build, and wait until its sandboxes are removed. A build that has ended stays as it is.

        Raises:
            NotFoundError: ``build_not_found``.
        """
        return structure(TemplateBuild, self._transport.request("POST", f"{_build_path(build)}/cancel"))

    def delete(self, template: str) -> None:
        """Delete a template that was built, with its builds. Sandboxes and snapshots of the template stay.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        self._transport.request("DELETE", _path(template))

    def set_tag(self, template: str, tag: str, build: str) -> None:
        """Let a tag name a build: ``template="NAME:TAG"`` then starts sandboxes from it.

        Raises:
            NotFoundError: ``template_not_found``, or ``build_not_found`` if the build is not ready.
        """
        self._transport.request("PUT", f"{_path(template)}/tags/{requests.path_segment(tag)}", body={"build": build})

    def remove_tag(self, template: str, tag: str) -> None:
        """Remove a tag. The build stays.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        self._transport.request("DELETE", f"{_path(template)}/tags/{requests.path_segment(tag)}")

    def _upload(self, packing: AbstractContextManager[PackedContext]) -> str:
        context = backend.in_thread(packing.__enter__)
        try:
            with backend.in_thread(context.path.open, "rb") as content:
                self._transport.request("PUT", f"/v1/build-contexts/{context.name}", content=backend.chunks(content), idempotent=False)
        finally:
            backend.in_thread(packing.__exit__, None, None, None)
        return context.name


def _path(template: str) -> str:
    return f"/v1/templates/{requests.path_segment(template)}"


def _build_path(build: str) -> str:
    return f"/v1/template-builds/{requests.path_segment(build)}"

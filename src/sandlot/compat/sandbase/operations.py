"""Calls of the Sandbase API that need several node operations.

Invariants:
- To pause is to hibernate if the isolation supports it, because the vendor's paused sandboxes use no memory of the host.
- A paused sandbox is not resumed by other requests; they are refused with 409.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request

from sandlot.compat.common import find_live_sandbox, preview_domain
from sandlot.compat.sandbase import translate
from sandlot.compat.sandbase.schemas import CreateSandboxRequest
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.files import Entry
from sandlot.model.records import WebhookRecord
from sandlot.model.sandboxes import SandboxInfo, UpdateSandboxParams
from sandlot.model.service import TemplateInfo
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.multipart import FormFields, Upload, read_upload

UPLOADS: Final = "/tmp/.sandlot-upload-"  # noqa: S108 - a path in a sandbox
"""Prefix of temporary files of uploads whose form names the destination after the content."""


async def with_token(request: Request, sandbox: SandboxInfo) -> dict[str, Any]:
    """Return the sandbox object for a client that has created or connected to the sandbox: with the token of E2B's client."""
    token = get_node(request).tokens.sandbox_token(get_principal(request), sandbox.id)
    return translate.sandbox_object(sandbox, token, await preview_domain(request))


async def create_sandbox(node: Node, principal: Principal, body: CreateSandboxRequest) -> SandboxInfo:
    """Create a sandbox.

    Raises:
        NotFoundError: There is no such template (code ``template_not_found``).
    """
    templates = await node.templates.list(principal)
    return await node.sandboxes.create(principal, translate.create_params(body, [template.name for template in templates]))


async def resume(node: Node, principal: Principal, sandbox: str, timeout_s: float | None) -> SandboxInfo:
    """Resume a sandbox with a new timeout.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the sandbox.
        timeout_s: Timeout in seconds, also of a running sandbox. None: the timeout of the sandbox, from the resumption.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    if timeout_s is None:
        return await node.sandboxes.resume(principal, found.id)
    if translate.is_paused(found):
        return await node.sandboxes.resume(principal, found.id, timeout_s=timeout_s)
    return await node.sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=timeout_s))


async def pause(node: Node, principal: Principal, sandbox: str, *, once: bool) -> None:
    """Suspend a sandbox. The suspension continues if the client disconnects.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the sandbox.
        once: True to refuse a sandbox that is paused already.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    if once and translate.is_paused(found):
        raise ConflictError(f"Sandbox {found.id} is already paused.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    await node.sandboxes.suspend(principal, found.id)


async def set_timeout(node: Node, principal: Principal, sandbox: str, timeout_s: float, *, paused: bool) -> None:
    """Move the deadline of a sandbox to ``timeout_s`` seconds from now.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the sandbox.
        timeout_s: Timeout in seconds.
        paused: False to refuse a paused sandbox.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    if not paused and translate.is_paused(found):
        raise translate.not_active(found)
    await node.sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=timeout_s))


async def find_template(node: Node, principal: Principal, name: str) -> tuple[str, TemplateInfo]:
    """Return a template by the vendor's name or Sandlot's, and the vendor's name.

    Raises:
        NotFoundError: There is no such template.
    """
    templates = await node.templates.list(principal)
    for vendor_name, template in translate.vendor_names(templates):
        if name in {vendor_name, template.name}:
            return vendor_name, template
    raise NotFoundError(
        f"unknown template: {name[:64]}.",
        code=ErrorCode.NOT_FOUND,
        hint=f"Use one of: {', '.join(translate.template_names([template.name for template in templates]))}.",
        fields={"template": name[:64]},
    )


async def find_webhook(node: Node, principal: Principal, webhook: str) -> WebhookRecord:
    """Return a webhook that this API has created.

    Raises:
        NotFoundError: There is no such webhook.
    """
    record = await node.webhooks.get(principal, webhook)
    if record.payload_format != translate.VENDOR:
        raise NotFoundError(
            f"Webhook {webhook[:64]!r} was not created by the Sandbase API.",
            code=ErrorCode.NOT_FOUND,
            hint="Use the native API for this webhook.",
            fields={"webhook": webhook[:64]},
        )
    return record


async def upload(request: Request, node: Node, principal: Principal, sandbox: str) -> Entry:
    """Write a file from a form with the fields ``file`` and ``path``, in any order. If the upload is incomplete, the old file stays."""
    fields = FormFields("path")
    form = await read_upload(request, texts=fields)
    path = fields.get("path")
    if path is not None:
        return await node.files.write(principal, sandbox, path, form.chunks)
    return await _upload_with_late_path(node, principal, sandbox, form, fields)


async def _upload_with_late_path(node: Node, principal: Principal, sandbox: str, form: Upload, fields: FormFields) -> Entry:
    """Write a file whose path follows its content: to a temporary file, and from there to its path."""
    temporary = UPLOADS + secrets.token_hex(8)
    try:
        await node.files.write(principal, sandbox, temporary, form.chunks)
        path = fields.get("path")
        if path is None:
            raise InvalidRequestError(
                "The form has no field 'path'.", hint="Add the absolute path of the file as the field 'path'.", fields={"field": "path"}
            )
        content = await node.files.read(principal, sandbox, temporary)
        try:
            return await node.files.write(principal, sandbox, path, content)
        finally:
            await content.aclose()
    finally:
        with suppress(SandlotError):
            await node.files.delete(principal, sandbox, temporary)

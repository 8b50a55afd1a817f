"""Home directories of users, at which relative paths begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request

from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import User
from sandlot.web.dependencies import get_node, get_principal

_HOMES: Final[Mapping[User, str]] = {User.USER: "/home/user", User.ROOT: "/root"}
"""Homes of the users of nearly all requests, so that the guest need not look them up."""


async def find_home(request: Request, sandbox: SandboxId, user: User) -> str:
    """Return the home directory of a user.

    Raises:
        AuthenticationError: The sandbox has no such user; envd refuses it with this status.
    """
    if user in _HOMES:
        return _HOMES[user]
    try:
        return await get_node(request).files.find_home(get_principal(request), sandbox, user)
    except InvalidRequestError as error:
        raise AuthenticationError(error.message, code=ErrorCode.UNAUTHENTICATED, hint=error.hint) from None

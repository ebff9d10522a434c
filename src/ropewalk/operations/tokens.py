"""Tokens: who may do what over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import BusyError, InvalidError, NotFoundError
from ropewalk.core.ids import check_agent
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.remote import tokens
from ropewalk.remote.tokens import Right, Rights

Name = Annotated[str, Meta(min_length=1, max_length=100, description="the token's name")]


class TokenCreateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a name, whose token it is, and what its holder may do."""

    name: Name
    holder: Annotated[str, Meta(description="family/instance of whoever uses it; without it the caller")] | None = None
    can: Annotated[list[Right], Meta(max_length=4, description="rights of its holder; reading alone by default")] = []
    refs: Annotated[list[str], Meta(max_length=100, description="patterns of full ref names it may write")] = []


class TokenCreated(msgspec.Struct, frozen=True):
    """Is a new token; `token` is shown this once."""

    name: str
    holder: str
    token: str
    can: list[Right]
    refs: list[str]


@operation(
    "token create",
    request=TokenCreateRequest,
    response=TokenCreated,
    summary="Make a token for a caller over HTTP; it is shown once",
    errors=(InvalidError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def token_create(ctx: Context, req: TokenCreateRequest) -> TokenCreated:
    """Makes a token."""
    holder = check_agent(req.holder or ctx.agent)
    rights = Rights(tuple(dict.fromkeys(req.can or ["read"])), tuple(req.refs or ["*"]))
    secret = tokens.create(ctx.store, req.name, holder, rights, ctx.agent)
    return TokenCreated(req.name, holder, secret, list(rights.can), list(rights.refs))


class TokenListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes nothing."""


class TokenRow(msgspec.Struct, frozen=True):
    """Is a token without its secret."""

    name: str
    holder: str
    can: list[Right]
    refs: list[str]
    created_at: int


class TokenListResponse(msgspec.Struct, frozen=True):
    """Is every token by name."""

    tokens: list[TokenRow]


@operation("token list", request=TokenListRequest, response=TokenListResponse, summary="List tokens")
def token_list(ctx: Context, req: TokenListRequest) -> TokenListResponse:
    """Lists tokens."""
    return TokenListResponse(
        [
            TokenRow(one.name, one.agent, list(one.rights.can), list(one.rights.refs), one.created_at)
            for one in tokens.listed(ctx.store)
        ]
    )


class TokenRevokeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a token's name."""

    name: Name


class TokenRevoked(msgspec.Struct, frozen=True):
    """Is the token that is void now."""

    revoked: str


@operation(
    "token revoke",
    request=TokenRevokeRequest,
    response=TokenRevoked,
    summary="Make a token void",
    errors=(NotFoundError, InvalidError, BusyError),
    writes=True,
    command=Command(positional=("name",)),
)
def token_revoke(ctx: Context, req: TokenRevokeRequest) -> TokenRevoked:
    """Revokes a token."""
    tokens.revoke(ctx.store, req.name, ctx.agent)
    return TokenRevoked(req.name)

"""What changed in the user's own checkout while an agent ran that no cage held: to look at, and to put back."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.operations.context import Context
from ropewalk.operations.lane import LaneName
from ropewalk.operations.registry import Command, operation


class LaneRestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes an escaped lane, and what to put back."""

    lane: LaneName
    paths: Annotated[list[str], Meta(max_length=10_000, description="only these, as the lane names them")] = []
    dry_run: Annotated[bool, Meta(description="say what changed, and change nothing")] = False


class CheckoutChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one thing that changed: changed, mode (or owner alone), made, or gone; `why` it could not be put back."""

    path: str
    how: str
    why: str = ""


class LaneRestored(msgspec.Struct, frozen=True):
    """Is what changed while a lane ran: put back, or left.

    `aside` is a folder with what stood in the place of what was put back; `lanes` are all that ran when it changed.
    """

    lane: str
    checkout: str
    put_back: list[CheckoutChange]
    left: list[CheckoutChange]
    aside: str
    lanes: list[str]


@operation(
    "lane restore",
    request=LaneRestoreRequest,
    response=LaneRestored,
    summary="Put your checkout back to how it was before an agent without a cage changed it",
    errors=(NotFoundError, InvalidError),
    writes=True,
    tool="",
    command=Command(positional=("lane", "paths*")),
)
def lane_restore(ctx: Context, req: LaneRestoreRequest) -> LaneRestored:
    """Puts back what is still changed, after what stands there now was set aside; nothing of it is lost."""
    from ropewalk.lane.cage import watch
    from ropewalk.operations.lane import need

    found = need(ctx, req.lane)
    lane = found.record.lane
    if found.result is None or found.state != "escaped":
        raise InvalidError(f"the lane {lane} is {found.state}, not escaped: there is nothing to put back", lane=lane)
    window = watch.window_of(os.path.join(ctx.data_home, "ropewalk"), lane)  # its own folder went with its attempt
    escape = watch.leave(window, lane) if window else None
    if escape is None:
        raise NotFoundError("the record of the checkout is gone", hint="records are kept for 14 days", lane=lane)
    if req.dry_run:
        left = [CheckoutChange(watch.label(one), one.how) for one in escape.differences]
        return LaneRestored(lane, escape.checkout, [], left, "", escape.lanes)
    done = watch.restore(escape, req.paths)
    back = [CheckoutChange(watch.label(one), one.how) for one in done.put_back]
    left = [CheckoutChange(watch.label(one), one.how, why) for one, why in done.left]
    return LaneRestored(lane, escape.checkout, back, left, done.aside, escape.lanes)

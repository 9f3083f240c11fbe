"""Webhooks: functions that review requests to the API server before it stores their objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Sequence

from .context import CallContext
from .kinds import Key, Object, TypeMeta
from .manifest import Operation


class ReviewContext(CallContext):
    """One review, and what it can call in the host.

    A review may not write, because the API server may still reject the request.
    """


@dataclass
class User:
    """Who sent a request."""

    name: str
    uid: str = ""
    groups: Sequence[str] = ()


@dataclass
class Review:
    """A request to the API server."""

    operation: Operation
    of: TypeMeta
    #: The name is empty if the API server generates it later.
    key: Key
    #: `None` for `delete`.
    object: Optional[Object]
    #: The object before. `None` for `create` and `connect`.
    old: Optional[Object]
    user: User
    #: `None` means the object itself.
    subresource: Optional[str] = None
    #: `True` if nothing will be stored.
    dry_run: bool = False


@dataclass
class Decision:
    """The answer to a review. A new decision allows the request.

    `Decision(denied="no image is from the registry")` denies it, and `Decision(object=changed)` changes the object.
    """

    #: Why the request is denied. The user sees it. `None` allows the request.
    denied: Optional[str] = None
    #: The object as it should be, from a function of `Plugin.mutate`. `None` leaves it as it is.
    object: Optional[Object] = None
    #: The HTTP status code of a denial, 400 to 599. `None` means 403.
    code: Optional[int] = None
    #: Shown to the user. At most 16 of 256 bytes.
    warnings: Sequence[str] = ()
    #: Entries of the API server's audit log. At most 16.
    audit: dict[str, str] = field(default_factory=dict)


def decided(kind: Literal["validating", "mutating"], answer: Optional[Decision]) -> Decision:
    """Checks what a function returned, where the author learns of it."""
    decision = Decision() if answer is None else answer
    if not isinstance(decision, Decision):
        raise TypeError(f"a review returns a Decision or None, and this one returned {decision!r}")
    if decision.object is not None and kind == "validating":
        raise TypeError("a validating webhook changes no object: declare it with `Plugin.mutate`")
    if isinstance(decision.warnings, str):
        raise TypeError("`warnings` is a list of texts, and not one text")
    return decision

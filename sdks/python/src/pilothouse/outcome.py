"""What a reconcile returns or raises."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Iterable, Literal, Optional, Sequence, Union

from .kinds import Key, Object, TypeMeta, key_of, type_meta_of
from .manifest import Watch, WatchLike, watch


@dataclass
class Event:
    """An Event of Kubernetes, as `kubectl describe` shows it.

    A plugin with Events needs a permission: see `events` of `Plugin.controller`.
    """

    #: Why, in one word of `UpperCamelCase`.
    reason: str
    #: One sentence for people.
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    #: The object that it is about. `None` is the reconciled object.
    about: Optional[tuple[TypeMeta, Key]] = None


@dataclass
class Child:
    """An object that should exist because the reconciled object exists."""

    object: Object
    #: `True` if the host may take over an existing object that this plugin did not create.
    adopt: bool = False
    #: `True` if the host may delete the object and create it again, when a field is immutable.
    replace: bool = False


@dataclass
class Outcome:
    """What should exist after this reconcile. A new outcome changes nothing, and waits for the next change."""

    #: The complete list of children. The host deletes others that this plugin created for the object. `None` leaves the
    #: children as they are.
    children: Optional[Sequence[Union[Object, Child]]] = None
    #: The complete status. `None` leaves the status as it is.
    status: Optional[Object] = None
    #: Seconds, or a `timedelta`, until the next call, even if nothing changes.
    requeue_after: Union[float, timedelta, None] = None
    #: Kinds that this key reads and that are known only at run time. `None` leaves them as they are.
    watches: Optional[Sequence[WatchLike]] = None
    #: Written after the status. `Context.event` adds to them.
    events: list[Event] = field(default_factory=list)

    def child_list(self) -> Optional[list[Child]]:
        """Returns the children with their settings."""
        if self.children is None:
            return None
        children = [child if isinstance(child, Child) else Child(child) for child in self.children]
        for child in children:
            of, key = type_meta_of(child.object), key_of(child.object)
            if not key.name:
                raise ValueError(f"a child of kind {of} has no `metadata.name`")
        return children

    def watch_list(self) -> Optional[list[Watch]]:
        """Returns the watches."""
        return None if self.watches is None else [watch(of) for of in self.watches]

    def requeue_millis(self) -> Optional[int]:
        """Returns the delay in milliseconds."""
        delay = self.requeue_after
        if delay is None:
            return None
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if seconds < 0:
            raise ValueError(f"`requeue_after` is negative: {seconds} s")
        return round(seconds * 1000)


class Error(Exception):
    """Fails a reconcile with a message for people.

    The host retries with a growing delay, or if the error is `terminal`, waits until the object or a child changes. Any
    other exception fails a reconcile too: its message then names the exception and where it was raised.
    """

    def __init__(
        self,
        message: str,
        *,
        terminal: bool = False,
        status: Optional[Object] = None,
        events: Iterable[Event] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.terminal = terminal
        self.status = status
        self.events = list(events)


@dataclass
class Failure:
    """A failed reconcile, as the host gets it."""

    message: str
    terminal: bool = False
    status: Optional[Object] = None
    events: list[Event] = field(default_factory=list)


#: Frames of a stack in a message. The log has the others.
FRAMES = 8
#: Where this package lies. Its own frames are left out.
SDK = os.path.dirname(__file__)


def describe_exception(error: BaseException) -> str:
    """Returns what was raised and where, in one line with the innermost frame first."""
    what = traceback.format_exception_only(error)[-1].strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.dirname(f.filename) != SDK]
    where = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    return ", at ".join([what, *where[:FRAMES]])

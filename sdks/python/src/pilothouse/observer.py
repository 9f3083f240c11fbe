"""Observers: functions that get the changes of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .context import CallContext, Client, Http
from .kinds import Key, Object, TypeMeta, key_of


class ObserverContext(CallContext):
    """One change, and what a function can call in the host. Names without a namespace are in that of the object."""

    def __init__(self, key: Key, config: Optional[Object] = None) -> None:
        super().__init__(key, config)
        self.http = Http()
        self.client = Client(key.namespace)


@dataclass
class Change:
    """A change of one object. At least one of `old` and `new` is there."""

    of: TypeMeta
    #: `None` if the object was added.
    old: Optional[Object]
    #: `None` if the object was deleted. `old` is then its last known state.
    new: Optional[Object]
    #: How many changes were merged into this one, because they came faster than the plugin took them.
    merged: int = 1
    #: `True` if the host found the deletion by a later list. `old` may then be out of date.
    missed: bool = False
    #: `True` if the object was there when the plugin began to observe it.
    initial: bool = False

    @property
    def key(self) -> Key:
        """The key of the object."""
        return key_of(self.new or self.old or {})

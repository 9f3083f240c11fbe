"""What the host offers to a plugin. In a component, it is the contract's imports. In a test, it is `MockHost`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Optional, Protocol, Sequence

from .kinds import Key, Object, TypeMeta
from .manifest import Subresource

Level = Literal["error", "warn", "info", "debug", "trace"]
Patch = Literal["json", "merge", "strategic-merge"]
Propagation = Literal["background", "foreground", "orphan"]


@dataclass
class Query:
    """Selects objects of the cache, and how much of each is returned."""

    of: TypeMeta
    #: `None` selects every granted namespace.
    namespace: Optional[str]
    labels: Optional[str] = None
    #: The name of an index, and the value to look up.
    index: Optional[tuple[str, str]] = None
    fields: Sequence[str] = ()
    #: Items in a page. 0 leaves it to the host.
    limit: int = 0
    after: Optional[str] = None


class ReadError(Exception):
    """A read from the cache failed: it is not granted, not valid, or the object is too large."""

    def __init__(self, kind: Literal["not-granted", "invalid", "too-large"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ClientError(Exception):
    """A request to the API server failed."""

    def __init__(
        self,
        kind: Literal["not-granted", "invalid", "api", "unreachable"],
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        causes: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        #: The HTTP status code, if the API server rejected the request.
        self.code = code
        #: The reason of Kubernetes in the contract's spelling, such as `not-found` or `conflict`.
        self.reason = reason
        self.causes = list(causes)


class HttpError(Exception):
    """No response arrived, or `Response.raise_for_status` rejected it."""

    def __init__(self, kind: str, message: str, *, status: Optional[int] = None) -> None:
        super().__init__(message)
        #: `not-granted`, `invalid`, `timeout`, `unreachable`, `too-large`, `too-many` or `status`.
        self.kind = kind
        self.status = status


@dataclass
class Request:
    """A request to a server outside the cluster's API."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    #: Seconds. `None` means 10.
    timeout: Optional[float] = None
    redirects: int = 5


@dataclass
class ClientCall:
    """A request to the API server. Which members it has depends on the verb."""

    verb: Literal["get", "list", "create", "update", "patch", "apply", "delete", "evict", "logs"]
    of: TypeMeta
    #: The name is empty for `list`, and for an object that the API server names.
    key: Key
    subresource: Optional[Subresource] = None
    #: The object, or the body of a patch.
    body: Any = None
    patch: Patch = "merge"
    force: bool = False
    propagation: Propagation = "background"
    uid: Optional[str] = None
    resource_version: Optional[str] = None
    #: Selectors and page of a list.
    labels: Optional[str] = None
    fields: Optional[str] = None
    limit: int = 0
    after: Optional[str] = None
    grace_period_seconds: Optional[int] = None
    #: The options of `logs`.
    container: Optional[str] = None
    previous: bool = False
    since_seconds: Optional[int] = None
    tail_lines: Optional[int] = None
    timestamps: bool = False


class Host(Protocol):
    """The imports of a plugin."""

    def get(self, of: TypeMeta, key: Key) -> Optional[Object]: ...

    def list(self, query: Query) -> tuple[list[Object], Optional[str]]: ...

    def keys(self, query: Query) -> tuple[list[Key], Optional[str]]: ...

    def client(self, call: ClientCall) -> Any:
        """Returns an object, a page of `list`, the text of `logs`, or `None` of `delete` and `evict`."""

    def http(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]: ...

    def log(self, level: Level, message: str, fields: list[tuple[str, str]]) -> None: ...

    def metric(self, change: Literal["add", "set", "observe"], name: str, labels: list[str], value: float) -> None: ...

    def now(self) -> int:
        """Returns when the call began, in milliseconds since 1970."""

    def random(self, count: int) -> bytes: ...


_host: Optional[Host] = None


def host() -> Host:
    """Returns the host of the present call."""
    if _host is None:
        raise RuntimeError("there is no host: call this in a reconcile, and test it with pilothouse.mock.MockHost")
    return _host


def serve(by: Optional[Host]) -> Optional[Host]:
    """Sets the host of the calls that follow. Returns the one before."""
    global _host
    _host, before = by, _host
    return before

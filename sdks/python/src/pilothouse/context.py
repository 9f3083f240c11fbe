"""What a function knows about its call, and what it can call in the host."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Iterator, Literal, Optional, Sequence, Union

from .host import ClientCall, HttpError, Level, Patch, Propagation, Query, Request, host
from .kinds import Key, Kind, Object, TypeMeta, key_of, type_meta, type_meta_of
from .manifest import Subresource
from .outcome import Event

Phase = Literal["live", "deleting", "gone"]

POD = TypeMeta("v1", "Pod")


class _Here:
    def __repr__(self) -> str:
        return "the namespace of the call's object"


#: Stands for the namespace of the object that the call is about.
HERE: Any = _Here()


class Log:
    """Writes lines to the host's log. A message is constant; values that vary are fields."""

    def error(self, message: str, **fields: Any) -> None:
        self.write("error", message, fields)

    def warn(self, message: str, **fields: Any) -> None:
        self.write("warn", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self.write("info", message, fields)

    def debug(self, message: str, **fields: Any) -> None:
        self.write("debug", message, fields)

    def trace(self, message: str, **fields: Any) -> None:
        self.write("trace", message, fields)

    def write(self, level: Level, message: str, fields: dict[str, Any]) -> None:
        """Writes a line. A field that is no text is written as JSON."""
        text = lambda value: value if isinstance(value, str) else json.dumps(value, default=str)  # noqa: E731
        host().log(level, message, [(name, text(value)) for name, value in fields.items()])


class Client:
    """Sends requests to the API server in the plugin's name. Each needs a permission.

    A request that fails raises `ClientError`.
    """

    def __init__(self, namespace: Optional[str]) -> None:
        self._namespace = namespace

    def _key(self, name: str, namespace: Optional[str]) -> Key:
        return Key(self._namespace if namespace is HERE else namespace, name)

    def get(
        self, kind: Kind, name: str, namespace: Optional[str] = HERE, *, subresource: Optional[Subresource] = None
    ) -> Object:
        """Reads an object from the API server, past the cache."""
        return host().client(ClientCall("get", type_meta(kind), self._key(name, namespace), subresource))

    def list(
        self,
        kind: Kind,
        namespace: Optional[str] = HERE,
        *,
        labels: Optional[str] = None,
        fields: Optional[str] = None,
        page_size: int = 0,
    ) -> Iterator[Object]:
        """Reads objects from the API server, past the cache, page by page. `namespace=None` reads all namespaces."""
        of, key, after = type_meta(kind), self._key("", namespace), None
        while True:
            call = ClientCall("list", of, key, labels=labels, fields=fields, limit=page_size, after=after)
            items, after = host().client(call)
            yield from items
            if after is None:
                return

    def create(self, obj: Object) -> Object:
        """Creates an object."""
        return host().client(self._of(obj, "create"))

    def update(self, obj: Object, *, subresource: Optional[Subresource] = None) -> Object:
        """Replaces an object. If it has a `resourceVersion`, that must be the current one."""
        return host().client(self._of(obj, "update", subresource))

    def apply(self, obj: Object, *, subresource: Optional[Subresource] = None, force: bool = False) -> Object:
        """Applies an object by server-side apply."""
        call = self._of(obj, "apply", subresource)
        call.force = force
        return host().client(call)

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        namespace: Optional[str] = HERE,
        *,
        type: Patch = "merge",
        subresource: Optional[Subresource] = None,
    ) -> Object:
        """Patches an object. `body` is a dict, or a list for a JSON patch."""
        key = self._key(name, namespace)
        return host().client(ClientCall("patch", type_meta(kind), key, subresource, body, patch=type))

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: Optional[str] = HERE,
        *,
        propagation: Propagation = "background",
        uid: Optional[str] = None,
        resource_version: Optional[str] = None,
    ) -> None:
        """Deletes an object. Succeeds if it is gone, or is marked for deletion and waits for its finalizers."""
        key = self._key(name, namespace)
        call = ClientCall("delete", type_meta(kind), key, propagation=propagation)
        call.uid, call.resource_version = uid, resource_version
        host().client(call)

    def evict(self, pod: str, namespace: Optional[str] = HERE, *, grace_period_seconds: Optional[int] = None) -> None:
        """Evicts a Pod. A budget that does not allow it raises an error with the reason `too-many-requests`."""
        key = self._key(pod, namespace)
        host().client(ClientCall("evict", POD, key, "eviction", grace_period_seconds=grace_period_seconds))

    def logs(
        self,
        pod: str,
        namespace: Optional[str] = HERE,
        *,
        container: Optional[str] = None,
        previous: bool = False,
        since_seconds: Optional[int] = None,
        tail_lines: Optional[int] = None,
        timestamps: bool = False,
    ) -> str:
        """Reads a container's log: at most the first 1 MiB of the selected lines."""
        call = ClientCall("logs", POD, self._key(pod, namespace), "log")
        call.container, call.previous, call.timestamps = container, previous, timestamps
        call.since_seconds, call.tail_lines = since_seconds, tail_lines
        return host().client(call)

    def _of(
        self, obj: Object, verb: Literal["create", "update", "apply"], subresource: Optional[Subresource] = None
    ) -> ClientCall:
        return ClientCall(verb, type_meta_of(obj), key_of(obj), subresource, obj)


@dataclass
class Response:
    """The response of a server."""

    status: int
    #: Names are in lower case.
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text. Bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Decodes the body as JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> Optional[str]:
        """Returns the first header of this name."""
        return next((value for header, value in self.headers if header == name.lower()), None)

    def raise_for_status(self) -> Response:
        """Raises `HttpError` unless the status is 2xx."""
        if not 200 <= self.status < 300:
            raise HttpError("status", f"the server answered with status {self.status}", status=self.status)
        return self


class Http:
    """Sends requests to servers outside the cluster's API. Each needs an `HttpPermission`.

    Without a response, a request raises `HttpError`. A response of any status is a success.
    """

    def get(self, url: str, **options: Any) -> Response:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Response:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> Response:
        return self.request("PUT", url, **options)

    def delete(self, url: str, **options: Any) -> Response:
        return self.request("DELETE", url, **options)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Optional[dict[str, str]] = None,
        body: Union[bytes, str] = b"",
        json: Any = None,
        timeout: Optional[float] = None,
        redirects: int = 5,
    ) -> Response:
        """Sends a request. `json` is encoded, and sets `Content-Type`. `timeout` is in seconds, 10 by default."""
        sent = list((headers or {}).items())
        if json is not None:
            body = _encode(json)
            sent.append(("content-type", "application/json"))
        content = body.encode() if isinstance(body, str) else body
        return Response(*host().http(Request(method, url, sent, content, timeout, redirects)))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class CallContext:
    """What every function can call in the host."""

    def __init__(self, key: Key, config: Optional[Object] = None) -> None:
        #: The key of the object that the call is about.
        self.key = key
        #: The administrator's configuration.
        self.config = config or {}
        self.log = Log()

    def get(self, kind: Kind, name: str, namespace: Optional[str] = HERE) -> Optional[Object]:
        """Returns an object of the cache, or `None` if the cluster has no such object.

        The namespace is that of the call's object, unless another is given. `None` is for cluster-scoped kinds.
        """
        return host().get(type_meta(kind), Key(self._namespace(namespace), name))

    def list(
        self,
        kind: Kind,
        namespace: Optional[str] = HERE,
        *,
        labels: Optional[str] = None,
        index: Optional[tuple[str, str]] = None,
        fields: Sequence[str] = (),
        page_size: int = 0,
    ) -> Iterator[Object]:
        """Iterates over objects of the cache, ordered by namespace and name.

        The namespace is that of the call's object. `None` selects all namespaces, or a cluster-scoped kind. `index` is the
        name of an index in the manifest and a value. With `fields`, only these field paths are returned.
        """
        query = Query(type_meta(kind), self._namespace(namespace), labels, index, fields, page_size)
        while True:
            items, query.after = host().list(query)
            yield from items
            if query.after is None:
                return

    def keys(
        self,
        kind: Kind,
        namespace: Optional[str] = HERE,
        *,
        labels: Optional[str] = None,
        index: Optional[tuple[str, str]] = None,
    ) -> Iterator[Key]:
        """Iterates over the keys of objects of the cache: as `list`, for less. Changes of the objects wake no reconcile."""
        query = Query(type_meta(kind), self._namespace(namespace), labels, index)
        while True:
            items, query.after = host().keys(query)
            yield from items
            if query.after is None:
                return

    def now(self) -> datetime:
        """Returns when this call began. The time stays the same during the call."""
        return datetime.fromtimestamp(host().now() / 1000, timezone.utc)

    def random(self, count: int) -> bytes:
        """Returns random bytes from the host's generator, fit for secrets. At most 65,536."""
        return host().random(count)

    def _namespace(self, namespace: Optional[str]) -> Optional[str]:
        return self.key.namespace if namespace is HERE else namespace


class Context(CallContext):
    """One call of a reconcile. Its reads are tracked: the reconcile runs again when their results change."""

    def __init__(
        self,
        *,
        controller: str,
        key: Key,
        phase: Phase,
        generation: Optional[int],
        attempt: int = 1,
        last_error: Optional[str] = None,
        config: Optional[Object] = None,
    ) -> None:
        super().__init__(key, config)
        #: The controller's name in the manifest.
        self.controller = controller
        #: `live`, `deleting`, or `gone` with the last known state of the object.
        self.phase = phase
        #: 1 for the first attempt after a success.
        self.attempt = attempt
        #: Why the previous attempt failed, if `attempt` is greater than 1.
        self.last_error = last_error
        self.http = Http()
        self.client = Client(key.namespace)
        #: What `event` added.
        self.events: list[Event] = []
        self._generation = generation

    def event(
        self,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        about: Optional[Object] = None,
    ) -> None:
        """Adds an Event to the outcome, or to the failure. The host writes it after the status.

        `about` is the object that it is about, if it is another one than the reconciled object.
        """
        subject = None if about is None else (type_meta_of(about), key_of(about))
        self.events.append(Event(reason, message, "Warning" if warning else "Normal", subject))

    def condition(self, type: str, status: Union[bool, str], reason: str, message: str = "") -> Object:
        """Returns a condition of the reconciled object, for `set_condition`."""
        condition = {
            "type": type,
            "status": str(status) if not isinstance(status, bool) else ("True" if status else "False"),
            "reason": reason,
            "message": message,
            "lastTransitionTime": self.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if self._generation is not None:
            condition["observedGeneration"] = self._generation
        return condition


def set_condition(conditions: Optional[Sequence[Object]], new: Object) -> list[Object]:
    """Returns the conditions with `new` instead of the condition of the same type.

    If its status stays the same, `lastTransitionTime` stays, too. So a reconcile that finds nothing new changes
    nothing.
    """
    kept = list(conditions or [])
    for at, old in enumerate(kept):
        if old.get("type") == new["type"]:
            same = old.get("status") == new["status"] and "lastTransitionTime" in old
            kept[at] = {**new, "lastTransitionTime": old["lastTransitionTime"]} if same else new
            return kept
    return [*kept, new]

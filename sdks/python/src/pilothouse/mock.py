"""A mock host for native tests: the plugin's own code runs without a cluster and without a sandbox.

    from pilothouse.mock import MockHost
    from hello import plugin

    def test_greets():
        host = MockHost(plugin, {"apiVersion": "example.com/v1", "kind": "Hello", "metadata": {...}, "spec": {...}})
        outcome = host.reconcile("morning", "default")
        assert outcome.status == {"greeting": "Hello, world!"}

It refuses reads, requests, children, a status and Events that the manifest does not ask for. It is not an API server:
it does not validate by a schema, and an applied list replaces the old one. Field selectors are ignored.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from random import Random
from typing import Any, Callable, Iterable, Literal, Optional, Union

from .admission import Decision, Review, User
from .context import Phase
from .host import ClientCall, ClientError, HttpError, Level, Query, ReadError, serve
from .host import Request as HttpRequest
from .kinds import Key, Kind, Object, TypeMeta, key_of, type_meta, type_meta_of
from .manifest import Operation, Permission
from .observer import Change
from .outcome import Event, Failure, Outcome
from .plugin import EVENT, Define, Request, define


class Failed(Exception):
    """A call that failed. `failure` is what the host gets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class LogLine:
    """A line of the log."""

    level: Level
    message: str
    fields: dict[str, str]


class MockHost:
    """Calls a plugin, and answers it out of objects in memory."""

    def __init__(
        self,
        plugin: Define,
        *objects: Object,
        config: Optional[Object] = None,
        now: Union[datetime, str] = "2026-01-01T00:00:00Z",
        refuse: Iterable[tuple[str, Kind]] = (),
    ) -> None:
        """`refuse` lists verbs and kinds that the administrator does not grant."""
        self._config = config or {}
        self._plugin = define(plugin, self._config)
        self._clock = datetime.fromisoformat(now) if isinstance(now, str) else now
        if self._clock.tzinfo is None:
            self._clock = self._clock.replace(tzinfo=timezone.utc)
        self._refused = {(verb, type_meta(kind)) for verb, kind in refuse}
        self._random = Random(0)
        self._objects: dict[tuple[TypeMeta, Key], Object] = {}
        #: The controller of the present call. `None` in a review, and while changes are observed.
        self._controller: Optional[str] = None
        self._asked: dict[tuple[str, Key], set[TypeMeta]] = {}
        self._failures: list[tuple[str, TypeMeta, str, ClientError]] = []
        self._responses: dict[tuple[str, str], tuple[int, list[tuple[str, str]], bytes]] = {}
        self._version = 0
        #: What `describe` returns.
        self.manifest = self._plugin.manifest()
        #: The requests to the API server that changed something, in order.
        self.calls: list[ClientCall] = []
        self.http_calls: list[HttpRequest] = []
        self.logs: list[LogLine] = []
        #: Those of outcomes and failures, in order.
        self.events: list[Event] = []
        #: The value of each series: the last one of a gauge, the sum of a counter, the list of a histogram.
        self.metrics: dict[tuple[str, ...], Any] = {}
        for obj in objects:
            self.put(obj)

    # The cluster.

    def put(self, obj: Object) -> Object:
        """Adds or replaces an object. Fills in `uid`, `resourceVersion` and `generation`."""
        of, key = type_meta_of(obj), key_of(obj)
        if not key.name:
            raise ValueError(f"an object of kind {of} has no `metadata.name`")
        old, stored = self._objects.get((of, key)), _json(obj)
        self._version += 1
        metadata = stored["metadata"]
        metadata.setdefault("uid", old["metadata"]["uid"] if old else f"uid-{self._version}")
        generation = old["metadata"]["generation"] if old else 0
        if old is None or old.get("spec") != stored.get("spec"):
            generation += 1
        metadata["generation"], metadata["resourceVersion"] = generation, str(self._version)
        self._objects[of, key] = stored
        return copy.deepcopy(stored)

    def remove(self, kind: Kind, name: str, namespace: Optional[str] = None) -> None:
        """Removes an object at once."""
        del self._objects[type_meta(kind), Key(namespace, name)]

    def find(self, kind: Kind, name: str, namespace: Optional[str] = None) -> Optional[Object]:
        """Returns an object of the cluster."""
        return copy.deepcopy(self._objects.get((type_meta(kind), Key(namespace, name))))

    def respond(self, method: str, url: str, status: int = 200, body: Any = b"") -> None:
        """Sets the response to a request to another server. A `body` that is no text or bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self._responses[method, url] = (status, [], content)

    def fail(self, verb: str, kind: Kind, name: str, error: ClientError) -> None:
        """Fails the next such request to the API server."""
        self._failures.append((verb, type_meta(kind), name, error))

    # Calls.

    def reconcile(
        self,
        name: str,
        namespace: Optional[str] = None,
        *,
        controller: Optional[str] = None,
        phase: Optional[Phase] = None,
        attempt: int = 1,
        last_error: Optional[str] = None,
    ) -> Outcome:
        """Calls the plugin for an object, and returns the outcome without writing it.

        A plugin with several controllers needs the name of one. Raises `Failed` if the reconcile fails.
        """
        loop, key = self._loop(controller), Key(namespace, name)
        obj = self._objects.get((type_meta(loop.for_.kind), key))
        if obj is None:
            raise AssertionError(f"there is no {loop.for_.kind} {key}: put it first")
        deleting = "deletionTimestamp" in obj["metadata"]
        request = Request(loop.name, key, copy.deepcopy(obj), phase or ("deleting" if deleting else "live"))
        request.attempt, request.last_error = attempt, last_error
        self._controller, self._key = loop.name, key
        result = self._serve(lambda: self._plugin.reconcile(request, self._config))
        self._check(result)
        self.events += result.events
        if isinstance(result, Failure):
            raise Failed(result)
        if result.watches is not None:
            self._asked[loop.name, key] = {type_meta(watch.kind) for watch in result.watch_list() or []}
        return result

    def settle(self, name: str, namespace: Optional[str] = None, *, controller: Optional[str] = None) -> Outcome:
        """Reconciles and writes the outcome, until a call changes nothing. Returns the last outcome."""
        loop, key = self._loop(controller), Key(namespace, name)
        for _ in range(100):
            before = self._version
            outcome = self.reconcile(name, namespace, controller=controller)
            parent = self._objects.get((type_meta(loop.for_.kind), key))
            if parent is not None:
                self._write(parent, outcome, [type_meta(watch.kind) for watch in loop.owns])
            if self._version == before or parent is None:
                return outcome
        raise AssertionError(f"{key} has not settled after 100 calls: each call changes something")

    def review(
        self,
        webhook: str,
        obj: Optional[Object],
        old: Optional[Object] = None,
        *,
        operation: Optional[Operation] = None,
        subresource: Optional[str] = None,
        user: Union[str, User] = "tester",
        dry_run: bool = False,
    ) -> Decision:
        """Calls a webhook as the API server does, and returns its decision. Raises `Failed` if the function fails.

        Without `operation`, `obj` is created. With `old`, `old` is changed to `obj`, or is deleted if `obj` is `None`.
        """
        about = _json(obj or old)
        implied: Operation = "create" if old is None else "update" if obj is not None else "delete"
        review = Review(
            operation or implied,
            type_meta_of(about),
            key_of(about),
            copy.deepcopy(obj),
            copy.deepcopy(old),
            user if isinstance(user, User) else User(user),
            subresource,
            dry_run,
        )
        self._controller = None
        result = self._serve(lambda: self._plugin.review(webhook, review, self._config))
        if not isinstance(result, Decision):
            raise Failed(Failure(result))
        _json(result.object)
        return result

    def observe(self, *changes: Change) -> None:
        """Calls the functions that observe these changes. Raises `Failed` if one fails.

        `host.observe(change_to(pod))` tells that a Pod was added: see `change_to`.
        """
        self._controller = None
        failed = self._serve(lambda: self._plugin.observed(copy.deepcopy(changes), self._config))
        if failed is not None:
            raise Failed(Failure(failed))

    def _serve(self, call: Callable[[], Any]) -> Any:
        before = serve(self)
        try:
            return call()
        finally:
            serve(before)

    def _loop(self, name: Optional[str]) -> Any:
        loops = self.manifest.controllers
        found = [loop for loop in loops if name in (None, loop.name)]
        if len(found) != 1:
            raise AssertionError(f"name one of the controllers {[loop.name for loop in loops]}")
        return found[0]

    def _check(self, result: Union[Outcome, Failure]) -> None:
        """Fails the test if the manifest does not allow the result."""
        loop = self._loop(self._controller)
        for_ = type_meta(loop.for_.kind)
        if result.status is not None:
            _json(result.status)
            assert self._may("apply", for_, self._key, "status"), f"the manifest lacks `apply` of the status of {for_}"
        namespace = self._key.namespace or "default"
        if result.events:
            assert self._may("create", EVENT, Key(namespace, "")), "the manifest lacks Events: set `events=True`"
        if isinstance(result, Outcome):
            owned = [type_meta(watch.kind) for watch in loop.owns]
            for child in result.child_list() or []:
                of, place = type_meta_of(_json(child.object)), key_of(child.object).namespace
                assert of in owned, f"the controller {loop.name} does not own {of}: add it to `owns`"
                elsewhere = place is not None and self._key.namespace not in (None, place)
                assert not elsewhere, f"a child of {self._key} is in the namespace {place}"

    def _write(self, parent: Object, outcome: Outcome, owned: list[TypeMeta]) -> None:
        metadata, wanted = parent["metadata"], set()
        if outcome.children is not None and "deletionTimestamp" not in metadata:
            owner = {"apiVersion": parent["apiVersion"], "kind": parent["kind"], "name": metadata["name"]}
            owner.update(uid=metadata["uid"], controller=True, blockOwnerDeletion=True)
            for child in outcome.child_list() or []:
                applied = _json(child.object)
                applied["metadata"].setdefault("namespace", metadata.get("namespace"))
                applied["metadata"]["ownerReferences"] = [owner]
                of, key = type_meta_of(applied), key_of(applied)
                wanted.add((of, key))
                self._replace(of, key, _merge(self._objects.get((of, key), {}), applied))
            for of, key in list(self._objects):
                references = self._objects[of, key]["metadata"].get("ownerReferences", [])
                ours = any(reference["uid"] == metadata["uid"] for reference in references)
                if of in owned and ours and (of, key) not in wanted:
                    self._version += 1
                    del self._objects[of, key]
        if outcome.status is not None:
            of, key = type_meta_of(parent), key_of(parent)
            self._replace(of, key, {**parent, "status": _json(outcome.status)})

    def _replace(self, of: TypeMeta, key: Key, obj: Object) -> Object:
        if self._objects.get((of, key)) == obj:
            return copy.deepcopy(obj)
        return self.put(obj)

    def _may(self, verb: str, of: TypeMeta, key: Key, subresource: Optional[str] = None) -> bool:
        if (verb, of) in self._refused:
            return False
        return any(_allows(permission, verb, of, key, subresource) for permission in self.manifest.permissions)

    # The host, as the plugin sees it.

    def _readable(self, of: TypeMeta, key: Key) -> None:
        loops, asked = self.manifest.controllers, set()
        if self._controller is not None:
            loops = [self._loop(self._controller)]
            asked = self._asked.get((self._controller, self._key), set())
        declared = [watch for loop in loops for watch in (loop.for_, *loop.owns, *loop.reads)]
        declared += [watch for loop in loops for watch, _ in loop.watches]
        declared += [watch for webhook in self.manifest.webhooks for watch in webhook.reads]
        known = {type_meta(watch.kind) for watch in (*declared, *self.manifest.observes)} | asked
        if of not in known:
            raise ReadError("not-granted", f"cannot read the cache: {of} is not cached: add it to `reads`")
        if not self._may("read", of, key):
            raise ReadError("not-granted", f"cannot read the cache: `read` of {of} {key} is not granted")

    def get(self, of: TypeMeta, key: Key) -> Optional[Object]:
        self._readable(of, key)
        return copy.deepcopy(self._objects.get((of, key)))

    def list(self, query: Query) -> tuple[list[Object], Optional[str]]:
        everywhere = query.namespace is None
        granted = [name for rule in self.manifest.permissions for name in rule.namespaces] if everywhere else []
        self._readable(query.of, Key(next(iter(granted), query.namespace), ""))
        found = self._select(query)
        return [obj for obj in found if not everywhere or self._may("read", query.of, key_of(obj))], None

    def keys(self, query: Query) -> tuple[list[Key], Optional[str]]:
        return [key_of(obj) for obj in self.list(query)[0]], None

    def _select(self, query: Any) -> list[Object]:
        index = getattr(query, "index", None)
        path = None
        if index is not None:
            paths = [i.path for i in self.manifest.indexes if i.name == index[0] and type_meta(i.kind) == query.of]
            if not paths:
                raise ReadError("invalid", f"the query is not valid: {query.of} has no index {index[0]}")
            path = paths[0]
        found = []
        for (of, key), obj in sorted(
            self._objects.items(), key=lambda item: (item[0][1].namespace or "", item[0][1].name)
        ):
            if of != query.of or query.namespace not in (None, key.namespace):
                continue
            if not matches(query.labels or "", obj["metadata"].get("labels") or {}):
                continue
            if path is not None and index[1] not in [_plain(value) for value in values(obj, path)]:
                continue
            found.append(copy.deepcopy(obj))
        return found

    def client(self, call: ClientCall) -> Any:
        verb = {"get": "read", "list": "read", "logs": "read", "evict": "create"}.get(call.verb, call.verb)
        if not self._may(verb, call.of, call.key, call.subresource):
            what = f"{call.of}/{call.subresource}" if call.subresource else str(call.of)
            raise ClientError("not-granted", f"the request is not granted: `{verb}` of {what} {call.key}")
        for at, (of_verb, of, name, error) in enumerate(self._failures):
            if (of_verb, of, name) == (call.verb, call.of, call.key.name):
                del self._failures[at]
                raise error
        if call.verb == "list":
            query = Query(call.of, call.key.namespace, call.labels)
            return self._select(query), None
        old = self._objects.get((call.of, call.key))
        if call.verb == "get":
            return copy.deepcopy(self._there(old, call))
        if call.verb == "logs":
            self._there(old, call)
            return ""
        self.calls.append(copy.deepcopy(call))
        if call.verb in ("delete", "evict"):
            if old is not None:
                self.remove(call.of, call.key.name, call.key.namespace)
            return None
        return self._change(call, old)

    def _change(self, call: ClientCall, old: Optional[Object]) -> Object:
        body = _json(call.body)
        if call.verb == "create":
            if old is not None:
                raise ClientError("api", f"{call.of} {call.key} exists", code=409, reason="already-exists")
            metadata = body.setdefault("metadata", {})
            if not metadata.get("name"):
                metadata["name"] = f"{metadata.get('generateName', '')}{self._version}"
            return self.put(body)
        if call.verb == "apply" and call.subresource is None:
            return self.put(_merge(old or {}, body))
        old = self._there(old, call)
        if call.verb == "patch" and call.patch != "merge":
            raise AssertionError(f"the mock does not know the patch type {call.patch}: fail or avoid it")
        new = {**old, "status": body.get("status")} if call.subresource == "status" else body
        if call.verb in ("patch", "apply"):
            new = _merge(old, body)
        return self.put(new)

    def _there(self, obj: Optional[Object], call: ClientCall) -> Object:
        if obj is None:
            raise ClientError("api", f"{call.of} {call.key} is not there", code=404, reason="not-found")
        return obj

    def http(self, request: HttpRequest) -> tuple[int, list[tuple[str, str]], bytes]:
        scheme, _, rest = request.url.partition("://")
        host, _, port = re.split(r"[/?]", rest, maxsplit=1)[0].partition(":")
        number = int(port or (80 if scheme == "http" else 443))
        for rule in self.manifest.http:
            named = rule.host == host or (rule.host.startswith("*.") and host.endswith(rule.host[1:]))
            opened = (rule.port or (80 if rule.plain else 443)) == number and rule.plain == (scheme == "http")
            if named and opened and request.method in rule.methods:
                break
        else:
            raise HttpError("not-granted", f"the request is not granted: {request.method} {request.url}")
        self.http_calls.append(request)
        if (request.method, request.url) not in self._responses:
            raise AssertionError(f"the test does not `respond` to {request.method} {request.url}")
        return self._responses[request.method, request.url]

    def log(self, level: Level, message: str, fields: list[tuple[str, str]]) -> None:
        self.logs.append(LogLine(level, message, dict(fields)))

    def metric(self, change: Literal["add", "set", "observe"], name: str, labels: list[str], value: float) -> None:
        declared = [metric for metric in self.manifest.metrics if metric.name == name]
        assert declared, f"the manifest does not declare the metric {name}"
        assert len(declared[0].labels) == len(labels), f"the metric {name} has the labels {list(declared[0].labels)}"
        series = (name, *labels)
        if change == "observe":
            self.metrics.setdefault(series, []).append(value)
        else:
            self.metrics[series] = value + (self.metrics.get(series, 0.0) if change == "add" else 0.0)

    def now(self) -> int:
        return round(self._clock.timestamp() * 1000)

    def random(self, count: int) -> bytes:
        return self._random.randbytes(count)


def change_to(new: Optional[Object], old: Optional[Object] = None, *, initial: bool = False) -> Change:
    """Returns the change of an object. `old` is `None` if the object was added, `new` if it was deleted."""
    return Change(type_meta_of(new or old or {}), old, new, initial=initial)


def _json(value: Any) -> Any:
    """Returns a copy. Fails, as the host would, if it is not JSON."""
    return json.loads(json.dumps(value))


def _merge(old: Any, new: Any) -> Any:
    """Merges by the rules of a JSON merge patch."""
    if not isinstance(new, dict) or not isinstance(old, dict):
        return copy.deepcopy(new)
    merged = {
        **old,
        **{name: _merge(old.get(name, {} if isinstance(value, dict) else None), value) for name, value in new.items()},
    }
    return {name: value for name, value in merged.items() if value is not None}


def _allows(permission: Permission, verb: str, of: TypeMeta, key: Key, subresource: Optional[str]) -> bool:
    granted = type_meta(permission.kind)
    group = of.api_version.rpartition("/")[0]
    named = granted == of or (granted.kind == "*" and granted.api_version in ("*", of.api_version, f"{group}/*"))
    here = not permission.namespaces or key.namespace in permission.namespaces
    name = not permission.names or key.name in permission.names
    return named and verb in permission.verbs and permission.subresource == subresource and here and name


_REQUIREMENT = re.compile(
    r"\s*(?:(!)\s*(\S+)|(\S+?)\s+(in|notin)\s*\(([^)]*)\)|([^\s!=]+)\s*(?:(==|=|!=)\s*(\S*))?)\s*$"
)


def matches(selector: str, labels: dict[str, str]) -> bool:
    """Returns `True` if a label selector of Kubernetes matches."""
    for requirement in re.split(r",(?![^(]*\))", selector) if selector.strip() else []:
        found = _REQUIREMENT.match(requirement)
        if found is None:
            raise ReadError("invalid", f"the query is not valid: {requirement!r} is no requirement of a label selector")
        absent, absent_name, set_name, set_operator, members, name, operator, value = found.groups()
        if absent:
            holds = absent_name not in labels
        elif set_operator:
            inside = labels.get(set_name) in [member.strip() for member in members.split(",")]
            holds = inside == (set_operator == "in")
        elif operator is None:
            holds = name in labels
        else:
            holds = (labels.get(name) == value) == (operator != "!=")
        if not holds:
            return False
    return True


_STEP = re.compile(r'\.?(?:([^.\[\]]+)|\[\*\]()|\["([^"]*)"\])')


def values(obj: Any, path: str) -> list[Any]:
    """Returns what an object holds at a field path: `spec.volumes[*].name`, `metadata.labels["a.b/c"]`."""
    found = [obj]
    for step in _STEP.finditer(path):
        plain, every, quoted = step.groups()
        if every is not None:
            found = [item for value in found if isinstance(value, list) for item in value]
        else:
            name = plain or quoted
            found = [value[name] for value in found if isinstance(value, dict) and name in value]
    return found


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

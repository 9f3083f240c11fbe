"""The contract: what the component exports and imports. `pilothouse.build` generates `wit_world` from the WIT."""

from __future__ import annotations

import json
from typing import Any, Literal, Optional

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import admission as reviews
from wit_world.exports import controller as wire
from wit_world.exports import observer as observes
from wit_world.imports import cache, client, clock, http, log, metrics, random, types

from .admission import Decision, Review, User
from .host import ClientCall, ClientError, HttpError, Level, Query, ReadError, serve
from .host import Request as HttpRequest
from .kinds import Key, Object, TypeMeta, type_meta
from .manifest import ControllerManifest, Manifest, Mapping, Metric, Permission, Test, Watch, Webhook
from .observer import Change
from .outcome import Error, Event, Failure, Outcome, describe_exception
from .plugin import Define, Plugin, Request, define


def text(value: Any) -> str:
    """Encodes JSON. What cannot be encoded raises an exception that names it."""
    return json.dumps(value, separators=(",", ":"))


def optional(value: Any) -> Optional[str]:
    return None if value is None else text(value)


def variant(enum: Any, name: str) -> Any:
    """Returns the case of an enumeration that the contract calls `name`."""
    return enum[name.upper().replace("-", "_")]


def spelled(case: Any) -> str:
    """Returns the contract's name of a case."""
    return case.name.lower().replace("_", "-")


def wire_kind(of: TypeMeta) -> types.TypeMeta:
    return types.TypeMeta(of.api_version, of.kind)


def wire_key(key: Key) -> types.Key:
    return types.Key(key.namespace, key.name)


def subresource(name: Optional[str]) -> Optional[types.Subresource]:
    return None if name is None else variant(types.Subresource, name)


class ComponentHost:
    """The host that runs this component."""

    def get(self, of: TypeMeta, key: Key) -> Optional[Object]:
        try:
            found = cache.get(wire_kind(of), wire_key(key))
        except Err as error:
            raise read_error(error.value) from None
        return None if found is None else json.loads(found)

    def list(self, query: Query) -> tuple[list[Object], Optional[str]]:
        try:
            page = cache.list(wire_query(query))
        except Err as error:
            raise read_error(error.value) from None
        return [json.loads(item) for item in page.items], page.next

    def keys(self, query: Query) -> tuple[list[Key], Optional[str]]:
        try:
            page = cache.keys(wire_query(query))
        except Err as error:
            raise read_error(error.value) from None
        return [Key(key.namespace, key.name) for key in page.items], page.next

    def client(self, call: ClientCall) -> Any:
        try:
            return send(call)
        except Err as error:
            raise client_error(error.value) from None

    def http(self, request: HttpRequest) -> tuple[int, list[tuple[str, str]], bytes]:
        timeout = None if request.timeout is None else round(request.timeout * 1000)
        sent = http.Request(
            request.method, request.url, list(request.headers), request.body, timeout, request.redirects
        )
        try:
            response = http.send(sent)
        except Err as error:
            raise http_error(error.value) from None
        return response.status, response.headers, response.body

    def log(self, level: Level, message: str, fields: list[tuple[str, str]]) -> None:
        log.write(variant(log.Level, level), message, fields)

    def metric(self, change: Literal["add", "set", "observe"], name: str, labels: list[str], value: float) -> None:
        getattr(metrics, change)(name, labels, value)

    def now(self) -> int:
        return clock.now()

    def random(self, count: int) -> bytes:
        return random.bytes(count)


def wire_query(query: Query) -> cache.Query:
    return cache.Query(
        wire_kind(query.of),
        query.namespace,
        query.labels,
        query.index,
        list(query.fields),
        query.limit,
        query.after,
    )


def send(call: ClientCall) -> Any:
    of, key, part = wire_kind(call.of), wire_key(call.key), subresource(call.subresource)
    preconditions = client.Preconditions(call.uid, call.resource_version)
    match call.verb:
        case "get":
            return json.loads(client.get(of, key, part))
        case "list":
            query = client.ListQuery(of, call.key.namespace, call.labels, call.fields, call.limit, call.after)
            page = client.list(query)
            return [json.loads(item) for item in page.items], page.next
        case "create":
            return json.loads(client.create(text(call.body)))
        case "update":
            return json.loads(client.update(text(call.body), part))
        case "patch":
            bodies = {
                "json": client.PatchBody_Json,
                "merge": client.PatchBody_Merge,
                "strategic-merge": client.PatchBody_StrategicMerge,
            }
            return json.loads(client.patch(of, key, bodies[call.patch](text(call.body)), part))
        case "apply":
            return json.loads(client.apply(text(call.body), part, call.force))
        case "delete":
            return client.delete(of, key, variant(client.Propagation, call.propagation), preconditions)
        case "evict":
            return client.evict(client.Eviction(key, call.grace_period_seconds, preconditions))
        case "logs":
            query = client.LogQuery(call.container, call.previous, call.since_seconds, call.tail_lines, call.timestamps)
            return client.logs(key, query)


def read_error(error: cache.ReadError) -> ReadError:
    match error:
        case cache.ReadError_NotGranted(why):
            return ReadError("not-granted", f"cannot read the cache: {why}")
        case cache.ReadError_Invalid(why):
            return ReadError("invalid", f"the query is not valid: {why}")
        case cache.ReadError_TooLarge(size):
            message = f"an object of {size} bytes is too large to be read as a whole: read some of its fields"
            return ReadError("too-large", message)
    return ReadError("invalid", repr(error))


def client_error(error: client.Error) -> ClientError:
    match error:
        case client.Error_NotGranted(why):
            return ClientError("not-granted", f"the request is not granted: {why}")
        case client.Error_Invalid(why):
            return ClientError("invalid", f"the request is not valid: {why}")
        case client.Error_Api(status):
            reason = spelled(status.reason)
            message = f"the API server rejected the request with {status.code} {reason}: {status.message}"
            return ClientError("api", message, code=status.code, reason=reason, causes=status.causes)
        case client.Error_Unreachable(why):
            return ClientError("unreachable", f"the API server did not answer: {why}")
    return ClientError("invalid", repr(error))


def http_error(error: http.Error) -> HttpError:
    match error:
        case http.Error_NotGranted(why):
            return HttpError("not-granted", f"the request is not granted: {why}")
        case http.Error_Invalid(why):
            return HttpError("invalid", f"the request is not valid: {why}")
        case http.Error_Timeout():
            return HttpError("timeout", "the server did not answer in time")
        case http.Error_Unreachable(why):
            return HttpError("unreachable", f"the server cannot be reached: {why}")
        case http.Error_TooLarge():
            return HttpError("too-large", "the response has more than 4 MiB")
    return HttpError("too-many", "the plugin sends too many requests")


def wire_manifest(manifest: Manifest) -> wire.Manifest:
    return wire.Manifest(
        manifest.version,
        manifest.description,
        [wire_controller(loop) for loop in manifest.controllers],
        [wire.Index(index.name, wire_kind(type_meta(index.kind)), index.path) for index in manifest.indexes],
        [wire_watch(watch) for watch in manifest.observes],
        [wire_permission(permission) for permission in manifest.permissions],
        [text(crd) for crd in manifest.crds],
        optional(manifest.config_schema),
        variant(wire.InstancePolicy, manifest.instances),
        [wire_metric(metric) for metric in manifest.metrics],
        [wire.HttpPermission(rule.host, rule.port, rule.plain, list(rule.methods)) for rule in manifest.http],
        [wire_webhook(webhook) for webhook in manifest.webhooks],
    )


def wire_controller(loop: ControllerManifest) -> wire.Controller:
    return wire.Controller(
        loop.name,
        wire_watch(loop.for_),
        [wire_watch(watch) for watch in loop.owns],
        [wire.MappedWatch(wire_watch(watch), wire_mapping(mapping)) for watch, mapping in loop.watches],
        [wire_watch(watch) for watch in loop.reads],
        loop.max_concurrency,
        # Rounded up: 0 is never.
        None if loop.resync is None else -int(-loop.resync // 1),
        None if loop.timeout is None else round(loop.timeout * 1000),
        loop.finalizer,
    )


def wire_watch(watch: Watch) -> wire.Watch:
    alternatives = [] if watch.when is None else watch.when.alternatives
    return wire.Watch(
        wire_kind(type_meta(watch.kind)),
        [wire_kind(type_meta(kind)) for kind in watch.excluding],
        [],
        list(watch.namespaces),
        watch.labels,
        watch.fields,
        watch.metadata_only,
        list(watch.without),
        watch.compressed,
        [[wire.Condition(wire_test(test), test.negated) for test in tests] for tests in alternatives],
    )


def wire_webhook(webhook: Webhook) -> wire.Webhook:
    return wire.Webhook(
        webhook.name,
        variant(wire.WebhookType, webhook.of_type),
        [
            wire.WebhookRule(
                list(rule.groups),
                list(rule.versions),
                list(rule.resources),
                [variant(types.Operation, operation) for operation in rule.operations],
            )
            for rule in webhook.rules
        ],
        variant(wire.FailurePolicy, "ignore" if webhook.ignore_failures else "fail"),
        webhook.timeout,
        webhook.namespaces,
        webhook.labels,
        list(webhook.conditions.items()),
        webhook.reinvoke,
        [wire_watch(watch) for watch in webhook.reads],
    )


def wire_test(test: Test) -> Any:
    if test.cel is not None:
        return wire.Test_Cel(test.cel)
    tests = {
        "generation": wire.Test_Generation,
        "labels": wire.Test_Labels,
        "annotations": wire.Test_Annotations,
        "finalizers": wire.Test_Finalizers,
        "deletion": wire.Test_Deletion,
        "resource-version": wire.Test_ResourceVersion,
    }
    return tests[test.name]()


def wire_mapping(mapping: Mapping) -> Any:
    match mapping.name:
        case "owner":
            return wire.Mapping_Owner()
        case "any-owner":
            return wire.Mapping_AnyOwner()
        case "same-key":
            return wire.Mapping_SameKey()
        case "label":
            return wire.Mapping_Label(mapping.argument)
        case "index":
            return wire.Mapping_Index(mapping.argument)


def wire_permission(permission: Permission) -> wire.Permission:
    return wire.Permission(
        wire_kind(type_meta(permission.kind)),
        subresource(permission.subresource),
        [variant(wire.Verb, verb) for verb in permission.verbs],
        list(permission.namespaces),
        list(permission.names),
    )


def wire_metric(metric: Metric) -> wire.Metric:
    of_type = variant(wire.MetricType, metric.of_type)
    return wire.Metric(metric.name, of_type, metric.help, list(metric.labels), [f"{le:g}" for le in metric.buckets])


def wire_event(event: Event) -> types.Event:
    about = None
    if event.about is not None:
        of, key = event.about
        about = types.Reference(of.api_version, of.kind, key.namespace, key.name)
    return types.Event(about, variant(types.EventType, event.type), event.reason, event.message)


def wire_outcome(outcome: Outcome) -> wire.Outcome:
    children, watches = outcome.child_list(), outcome.watch_list()
    wire_child = lambda child: wire.Child(text(child.object), child.adopt, child.replace)  # noqa: E731
    return wire.Outcome(
        wire.Children_Unchanged() if children is None else wire.Children_Desired([wire_child(c) for c in children]),
        optional(outcome.status),
        outcome.requeue_millis(),
        wire.Watches_Unchanged() if watches is None else wire.Watches_Desired([wire_watch(w) for w in watches]),
        [wire_event(event) for event in outcome.events],
    )


def wire_failure(failure: Failure) -> wire.Failure:
    events = [wire_event(event) for event in failure.events]
    return wire.Failure(failure.message, failure.terminal, optional(failure.status), events)


def wire_decision(decision: Decision) -> reviews.Decision:
    return reviews.Decision(decision.denied, decision.code, list(decision.warnings), list(decision.audit.items()))


def review_of(review: reviews.Review) -> Review:
    return Review(
        spelled(review.operation),
        TypeMeta(review.of.api_version, review.of.kind),
        Key(review.key.namespace, review.key.name),
        None if review.object is None else json.loads(review.object),
        None if review.old is None else json.loads(review.old),
        User(review.user.name, review.user.uid, review.user.groups),
        review.subresource,
        review.dry_run,
    )


def change_of(change: observes.Change) -> Change:
    return Change(
        TypeMeta(change.of.api_version, change.of.kind),
        None if change.old is None else json.loads(change.old),
        None if change.new is None else json.loads(change.new),
        change.merged,
        change.missed,
        change.initial,
    )


def exported(plugin: Define) -> tuple[type, type, type]:
    """Returns the classes that componentize-py exports: the contract's `controller`, `observer` and `admission`."""
    defined: dict[str, tuple[Plugin, Object]] = {}

    def configured(config: str) -> tuple[Plugin, Object]:
        if config not in defined:
            # An instance serves one configuration. So this holds one plugin, or a few.
            value = json.loads(config)
            defined[config] = define(plugin, value), value
        return defined[config]

    class Controller(exports.Controller):
        def describe(self, config: str) -> wire.Manifest:
            try:
                return wire_manifest(configured(config)[0].manifest())
            except Error as error:
                raise Err(error.message) from None
            except Exception as error:
                raise Err(describe_exception(error)) from None

        def reconcile(self, config: str, request: wire.Request) -> wire.Outcome:
            serve(ComponentHost())
            try:
                served, value = configured(config)
                called = Request(
                    request.controller,
                    Key(request.key.namespace, request.key.name),
                    json.loads(request.object),
                    spelled(request.phase),
                    request.attempt,
                    request.last_error,
                )
                result = served.reconcile(called, value)
                if isinstance(result, Outcome):
                    return wire_outcome(result)
            except Exception as error:
                # The outcome holds what JSON does not have, or the plugin cannot be made.
                result = Failure(describe_exception(error))
            raise Err(wire_failure(result))

    class Observer(exports.Observer):
        def observe(self, config: str, changes: list[observes.Change]) -> None:
            serve(ComponentHost())
            try:
                served, value = configured(config)
                failed = served.observed([change_of(change) for change in changes], value)
            except Exception as error:
                # The plugin cannot be made.
                failed = describe_exception(error)
            if failed is not None:
                raise Err(failed)

    class Admission(exports.Admission):
        def validate(self, config: str, review: reviews.Review) -> reviews.Decision:
            return self._decide(config, review)[0]

        def mutate(self, config: str, review: reviews.Review) -> tuple[reviews.Decision, Optional[str]]:
            return self._decide(config, review)

        def _decide(self, config: str, review: reviews.Review) -> tuple[reviews.Decision, Optional[str]]:
            serve(ComponentHost())
            try:
                served, value = configured(config)
                decision = served.review(review.webhook, review_of(review), value)
                if isinstance(decision, Decision):
                    return wire_decision(decision), optional(decision.object)
            except Exception as error:
                # The object holds what JSON does not have, or the plugin cannot be made.
                decision = describe_exception(error)
            raise Err(decision)

    return Controller, Observer, Admission

"""A plugin as a value: its controllers, and what its manifest says."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Literal, Optional, Sequence, Union
from typing import Mapping as Dict

from .admission import Decision, Review, ReviewContext, decided
from .context import Context, Log, Phase
from .host import host
from .kinds import Key, Kind, Object, TypeMeta, type_meta
from .manifest import (
    ControllerManifest,
    HttpPermission,
    Index,
    Manifest,
    Mapping,
    Metric,
    Permission,
    Predicate,
    Rule,
    Watch,
    WatchLike,
    Webhook,
    watch,
)
from .observer import Change, ObserverContext
from .outcome import Error, Failure, Outcome, describe_exception

Reconcile = Callable[[Context, Object], Optional[Outcome]]
Handler = Callable[[ReviewContext, Review], Optional[Decision]]
Observe = Callable[[ObserverContext, Change], None]

EVENT = TypeMeta("v1", "Event")
DEFINITION = TypeMeta("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@dataclass
class Request:
    """A request to reconcile one key."""

    controller: str
    key: Key
    #: Its last known state, if `phase` is `gone`.
    object: Object
    phase: Phase = "live"
    attempt: int = 1
    last_error: Optional[str] = None


@dataclass
class Counter:
    """A number that only grows. Its name ends in `_total`."""

    name: str

    def inc(self, *labels: str) -> None:
        """Adds 1 to the series with these values of the labels."""
        self.add(1, *labels)

    def add(self, more: float, *labels: str) -> None:
        """Adds to the series with these values of the labels."""
        host().metric("add", self.name, list(labels), float(more))


@dataclass
class Gauge:
    """A number that goes up and down."""

    name: str

    def set(self, value: float, *labels: str) -> None:
        """Sets the series with these values of the labels."""
        host().metric("set", self.name, list(labels), float(value))

    def add(self, more: float, *labels: str) -> None:
        """Adds to the series with these values of the labels."""
        host().metric("add", self.name, list(labels), float(more))


@dataclass
class Histogram:
    """How many observations were at most as large as each of some numbers."""

    name: str

    def observe(self, value: float, *labels: str) -> None:
        """Adds an observation to the series with these values of the labels."""
        host().metric("observe", self.name, list(labels), float(value))


@dataclass
class Controller:
    """One reconcile loop."""

    manifest: ControllerManifest
    reconcile: Reconcile
    status: bool
    events: bool

    def permissions(self) -> list[Permission]:
        """Returns the permissions that the controller needs."""

        def of(watch: Watch, verbs: Sequence[Any], **more: Any) -> Permission:
            return Permission(watch.kind, verbs, namespaces=watch.namespaces, **more)

        loop = self.manifest
        needed = [of(loop.for_, ["read"])]
        if self.status:
            needed.append(of(loop.for_, ["apply"], subresource="status"))
        if loop.finalizer is not None:
            needed.append(of(loop.for_, ["patch"]))
        if self.events:
            needed.append(Permission(EVENT, ["create"], namespaces=loop.for_.namespaces))
        needed += [of(child, ["read", "apply", "delete"]) for child in loop.owns]
        needed += [of(mapped, ["read"]) for mapped, _ in loop.watches]
        needed += [of(read, ["read"]) for read in loop.reads]
        return needed


def selects(pattern: TypeMeta, of: TypeMeta) -> bool:
    """Returns `True` if a kind, or a pattern such as `apps/v1/*`, `apps/*/*` and `*/*`, selects another kind."""
    if pattern.kind != "*":
        return pattern == of
    group = of.api_version.rpartition("/")[0]
    return pattern.api_version in ("*", of.api_version, f"{group}/*")


def watches_of(kinds: Union[WatchLike, Iterable[WatchLike]]) -> list[Watch]:
    """Returns the watches for one kind, or for several."""
    return [watch(of) for of in ([kinds] if isinstance(kinds, (str, TypeMeta, Watch)) else kinds)]


class Plugin:
    """A plugin.

    `description` is one sentence, for people. `crds` are applied before the controllers start: see `crd`. `permissions`
    are those that no controller implies, such as for `Context.client`. `config_schema` is the JSON schema of the
    administrator's configuration; without it, the plugin takes none. `instances="fresh"` gives each call a new
    interpreter, which takes milliseconds.
    """

    def __init__(
        self,
        description: str,
        *,
        version: str = "0.1.0",
        crds: Sequence[Object] = (),
        permissions: Sequence[Permission] = (),
        http: Sequence[HttpPermission] = (),
        indexes: Sequence[Index] = (),
        config_schema: Optional[Object] = None,
        instances: Literal["reuse", "fresh"] = "reuse",
    ) -> None:
        self._controllers: dict[str, Controller] = {}
        self._handlers: dict[str, Handler] = {}
        self._observers: list[tuple[TypeMeta, Observe]] = []
        self._permissions = list(permissions)
        definitions = [crd["metadata"]["name"] for crd in crds]
        if definitions:
            self._permissions.append(Permission(DEFINITION, ["apply"], names=definitions))
        self._manifest = Manifest(
            version, description, [], list(indexes), [], list(crds), config_schema, instances, [], list(http), [], []
        )

    def controller(
        self,
        kind: WatchLike,
        *,
        name: Optional[str] = None,
        owns: Iterable[WatchLike] = (),
        reads: Iterable[WatchLike] = (),
        watches: Union[Dict[Kind, Mapping], Sequence[tuple[WatchLike, Mapping]]] = (),
        namespaces: Sequence[str] = (),
        labels: Optional[str] = None,
        when: Optional[Predicate] = None,
        status: bool = True,
        events: bool = False,
        finalizer: Optional[str] = None,
        max_concurrency: int = 1,
        resync: Optional[float] = None,
        timeout: Optional[float] = None,
    ) -> Callable[[Reconcile], Reconcile]:
        """Makes a function the reconcile of a kind. Asks for the permissions that it needs.

        - `name`: instead of the kind in lower case.
        - `owns`: kinds of children.
        - `reads`: kinds that the reconcile reads from the cache. A change of what it read wakes it.
        - `watches`: kinds that it does not read, and which keys their changes concern.
        - `namespaces`, `labels`, `when`: which objects, and which of their changes. A `Watch` says the same and more.
        - `status=False`: the reconcile never writes a status. `events=True`: it writes Events.
        - `finalizer`: the reconcile runs with the phase `deleting` before an object goes.
        - `resync`: seconds after which every key is reconciled again, 36,000 by default, 0 for never.
        - `timeout`: seconds that a call may take, 10 by default.
        """
        for_ = watch(kind)
        if namespaces or labels or when:
            changed = {
                "namespaces": namespaces or for_.namespaces,
                "labels": labels or for_.labels,
                "when": when or for_.when,
            }
            for_ = Watch(**{**vars(for_), **changed})
        mapped = watches.items() if isinstance(watches, Dict) else watches
        manifest = ControllerManifest(
            name or type_meta(for_.kind).kind.lower(),
            for_,
            watches_of(owns),
            [(watch(of), mapping) for of, mapping in mapped],
            watches_of(reads),
            max_concurrency,
            resync,
            timeout,
            finalizer,
        )
        if manifest.name in self._controllers:
            raise ValueError(f"two controllers have the name {manifest.name}: give one of them another `name`")

        def decorate(reconcile: Reconcile) -> Reconcile:
            self._controllers[manifest.name] = Controller(manifest, reconcile, status, events)
            return reconcile

        return decorate

    def observe(self, *kinds: WatchLike) -> Callable[[Observe], Observe]:
        """Makes a function get every change of these kinds. Asks for the permission to read them.

        A kind may be a pattern: `apps/v1/*`, `apps/*/*` for a group, `*/*` for all. Each kind is observed once. If the
        function raises an exception, the host calls it again with a growing delay.
        """

        def decorate(function: Observe) -> Observe:
            for observed in watches_of(kinds):
                of = type_meta(observed.kind)
                if any(before == of for before, _ in self._observers):
                    raise ValueError(f"{of} is observed twice: observe it once, with a `Watch` that covers both")
                self._observers.append((of, function))
                self._manifest.observes.append(observed)
            return function

        return decorate

    def validate(self, name: str, rules: Union[Rule, Iterable[Rule]], **options: Any) -> Callable[[Handler], Handler]:
        """Makes a function allow or deny requests to the API server, before it stores their objects.

        It returns a `Decision`, or `None` to allow the request. If it raises an exception, the API server denies the
        request, or allows it with `ignore_failures`. The administrator must grant the webhook by its name.

        - `reads`: kinds that the function reads from the cache.
        - `namespaces`, `labels`: label selectors over the namespace of the object, and over the object.
        - `conditions`: match conditions, a CEL expression for each name.
        - `timeout`: seconds that the API server waits, 1 to 30, 10 by default.
        - `ignore_failures=True`: the API server allows a request that nobody reviewed.
        """
        return self._webhook(name, "validating", rules, **options)

    def mutate(
        self, name: str, rules: Union[Rule, Iterable[Rule]], *, reinvoke: bool = False, **options: Any
    ) -> Callable[[Handler], Handler]:
        """As `validate`. The function may also change the object: it returns `Decision(object=changed)`.

        `reinvoke=True`: the API server calls the webhook again if a later one changed the object.
        """
        return self._webhook(name, "mutating", rules, reinvoke=reinvoke, **options)

    def _webhook(
        self,
        name: str,
        of_type: Literal["validating", "mutating"],
        rules: Union[Rule, Iterable[Rule]],
        *,
        reads: Iterable[WatchLike] = (),
        namespaces: Optional[str] = None,
        labels: Optional[str] = None,
        conditions: Optional[dict[str, str]] = None,
        timeout: Optional[int] = None,
        ignore_failures: bool = False,
        reinvoke: bool = False,
    ) -> Callable[[Handler], Handler]:
        if name in self._handlers:
            raise ValueError(f"two webhooks have the name {name}")
        webhook = Webhook(
            name,
            of_type,
            [rules] if isinstance(rules, Rule) else list(rules),
            watches_of(reads),
            namespaces,
            labels,
            conditions or {},
            timeout,
            ignore_failures,
            reinvoke,
        )
        self._manifest.webhooks.append(webhook)

        def decorate(handler: Handler) -> Handler:
            self._handlers[name] = handler
            return handler

        return decorate

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Declares a counter. `name` ends in `_total`."""
        self._manifest.metrics.append(Metric(name, "counter", help, labels))
        return Counter(name)

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Declares a gauge."""
        self._manifest.metrics.append(Metric(name, "gauge", help, labels))
        return Gauge(name)

    def histogram(self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()) -> Histogram:
        """Declares a histogram. Its buckets go from 0.005 to 10, unless they are given."""
        self._manifest.metrics.append(Metric(name, "histogram", help, labels, buckets))
        return Histogram(name)

    def manifest(self) -> Manifest:
        """Returns what the plugin is and needs."""
        controllers = self._controllers.values()
        read = [*self._manifest.observes, *(watch for webhook in self._manifest.webhooks for watch in webhook.reads)]
        reading = [Permission(watch.kind, ["read"], namespaces=watch.namespaces) for watch in read]
        return Manifest(
            **{
                **vars(self._manifest),
                "controllers": [controller.manifest for controller in controllers],
                "permissions": [
                    *(permission for controller in controllers for permission in controller.permissions()),
                    *reading,
                    *self._permissions,
                ],
            }
        )

    def reconcile(self, request: Request, config: Optional[Object] = None) -> Union[Outcome, Failure]:
        """Calls the function of a controller. An exception becomes a failure, and a line in the log."""
        controller = self._controllers.get(request.controller)
        if controller is None:
            return Failure(f"the plugin has no controller {request.controller}", terminal=True)
        ctx = Context(
            controller=request.controller,
            key=request.key,
            phase=request.phase,
            generation=request.object.get("metadata", {}).get("generation"),
            attempt=request.attempt,
            last_error=request.last_error,
            config=config,
        )
        try:
            outcome = controller.reconcile(ctx, request.object)
            if outcome is None:
                outcome = Outcome()
            if not isinstance(outcome, Outcome):
                raise TypeError(f"a reconcile returns an Outcome or None, and this one returned {outcome!r}")
            # What is not valid is found here, where the author learns of it.
            outcome.child_list(), outcome.watch_list(), outcome.requeue_millis()
        except Error as error:
            return Failure(error.message, error.terminal, error.status, [*ctx.events, *error.events])
        except Exception as error:
            ctx.log.error(traceback.format_exc())
            return Failure(describe_exception(error), events=ctx.events)
        outcome.events = [*ctx.events, *outcome.events]
        return outcome


    def review(self, webhook: str, review: Review, config: Optional[Object] = None) -> Union[Decision, str]:
        """Calls the function of a webhook. Returns its decision, or why it failed. The log has the stack."""
        handler = self._handlers.get(webhook)
        if handler is None:
            return f"the plugin has no webhook {webhook}"
        of_type = next(known.of_type for known in self._manifest.webhooks if known.name == webhook)
        return attempted(lambda: decided(of_type, handler(ReviewContext(review.key, config), review)))

    def observed(self, changes: Sequence[Change], config: Optional[Object] = None) -> Optional[str]:
        """Calls the functions that observe these changes, until one fails. Returns why it failed."""
        for change in changes:
            # A kind that is observed by its name is no part of a pattern.
            named = [function for of, function in self._observers if of == change.of]
            named += [function for of, function in self._observers if selects(of, change.of)]
            if named:
                failed = attempted(lambda: named[0](ObserverContext(change.key, config), change))
                if isinstance(failed, str):
                    return f"cannot observe {change.of} {change.key}: {failed}"
        return None


def attempted(call: Callable[[], Any]) -> Any:
    """Returns what a function of the plugin returns, or the message of its exception."""
    try:
        return call()
    except Error as error:
        return error.message
    except Exception as error:
        Log().error(traceback.format_exc())
        return describe_exception(error)


Define = Union[Plugin, Callable[[Object], Plugin]]
"""A plugin, or a function that makes one for the administrator's configuration."""


def define(plugin: Define, config: Object) -> Plugin:
    """Returns the plugin for a configuration.

    Raises an exception with a message for the administrator if the configuration is not valid.
    """
    defined = plugin if isinstance(plugin, Plugin) else plugin(config)
    if not isinstance(defined, Plugin):
        raise TypeError(f"{plugin!r} is no Plugin, and returned {defined!r}")
    if config and defined.manifest().config_schema is None:
        raise Error("this plugin takes no configuration: give it a `config_schema`")
    return defined

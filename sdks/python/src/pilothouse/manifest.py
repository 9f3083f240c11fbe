"""What a plugin is and needs. Everything that the contract lets a plugin leave out has a default here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, Optional, Sequence, Union

from .kinds import Kind, Object, type_meta

Verb = Literal["read", "create", "update", "patch", "apply", "delete"]
Operation = Literal["create", "update", "delete", "connect"]
Subresource = Literal["status", "scale", "eviction", "log", "approval", "ephemeral-containers", "resize"]


@dataclass(frozen=True)
class Test:
    """A test of one change of one object, or its opposite."""

    __test__ = False  # Not a class of tests, whatever pytest thinks.

    name: str
    cel: Optional[str] = None
    negated: bool = False


@dataclass(frozen=True)
class Predicate:
    """Selects changes. Combine predicates with `&`, `|` and `~`.

    All tests except `cel` compare an object with its previous state. They let every change pass if the object is new or
    gone, negated or not.
    """

    alternatives: tuple[tuple[Test, ...], ...]

    @classmethod
    def generation(cls) -> Predicate:
        """Selects changes of `metadata.generation`. For most kinds, that means changes of the spec."""
        return cls._test("generation")

    @classmethod
    def labels(cls) -> Predicate:
        """Selects changes of the labels."""
        return cls._test("labels")

    @classmethod
    def annotations(cls) -> Predicate:
        """Selects changes of the annotations."""
        return cls._test("annotations")

    @classmethod
    def finalizers(cls) -> Predicate:
        """Selects changes of the finalizers."""
        return cls._test("finalizers")

    @classmethod
    def deletion(cls) -> Predicate:
        """Selects the change that sets `metadata.deletionTimestamp`."""
        return cls._test("deletion")

    @classmethod
    def resource_version(cls) -> Predicate:
        """Selects changes of `metadata.resourceVersion`: everything except a resync."""
        return cls._test("resource-version")

    @classmethod
    def cel(cls, expression: str) -> Predicate:
        """Selects changes for which a CEL expression over `object` and `old` is true."""
        return cls(((Test("cel", expression),),))

    @classmethod
    def _test(cls, name: str) -> Predicate:
        return cls(((Test(name),),))

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(self.alternatives + other.alternatives)

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(tuple(one + two for one, two in product(self.alternatives, other.alternatives)))

    def __invert__(self) -> Predicate:
        negated = [[Test(t.name, t.cel, not t.negated) for t in tests] for tests in self.alternatives]
        return Predicate(tuple(tuple(tests) for tests in product(*negated)))


@dataclass
class Watch:
    """A kind that the host caches for the plugin, and which of its objects."""

    kind: Kind
    #: Empty means every granted namespace.
    namespaces: Sequence[str] = ()
    #: A label selector. Other objects are not watched.
    labels: Optional[str] = None
    #: A field selector by which the API server can select this kind. Other objects are not watched.
    fields: Optional[str] = None
    #: Caches `apiVersion`, `kind` and metadata only.
    metadata_only: bool = False
    #: Field paths that are not cached.
    without: Sequence[str] = ()
    #: Caches the objects compressed, for large kinds that are rarely read.
    compressed: bool = False
    #: Which changes matter. `None` means every change.
    when: Optional[Predicate] = None
    #: Kinds that are no part of a pattern, for `Plugin.observe`. They may be patterns themselves.
    excluding: Sequence[Kind] = ()


WatchLike = Union[Kind, Watch]
"""A kind, or a `Watch` for some of its objects."""


def watch(of: WatchLike) -> Watch:
    """Returns a `Watch` for what an author wrote."""
    found = of if isinstance(of, Watch) else Watch(of)
    type_meta(found.kind)
    return found


@dataclass(frozen=True)
class Mapping:
    """Which keys a changed object concerns."""

    name: Literal["owner", "any-owner", "same-key", "label", "index"]
    argument: Optional[str] = None

    @classmethod
    def owner(cls) -> Mapping:
        """The controlling owner reference, if it names an object of the controller's kind."""
        return cls("owner")

    @classmethod
    def any_owner(cls) -> Mapping:
        """All owner references that name an object of the controller's kind."""
        return cls("any-owner")

    @classmethod
    def same_key(cls) -> Mapping:
        """The same namespace and name as the changed object."""
        return cls("same-key")

    @classmethod
    def label(cls, name: str) -> Mapping:
        """The name in this label of the changed object, in the same namespace."""
        return cls("label", name)

    @classmethod
    def index(cls, name: str) -> Mapping:
        """Every object of the controller's kind that holds the changed object's name in this index."""
        return cls("index", name)


@dataclass
class Permission:
    """What the plugin may do, if the administrator grants it."""

    kind: Kind
    verbs: Sequence[Verb]
    subresource: Optional[Subresource] = None
    #: Empty means every namespace.
    namespaces: Sequence[str] = ()
    #: Empty means every name.
    names: Sequence[str] = ()


@dataclass
class HttpPermission:
    """Servers that the plugin sends requests to."""

    #: A host name, `*.example.com` for all names below one, or an IP address.
    host: str
    #: In upper case, such as `POST`.
    methods: Sequence[str]
    #: `None` means 443, or 80 for `plain`.
    port: Optional[int] = None
    #: `True` for `http://` instead of `https://`.
    plain: bool = False


@dataclass
class Index:
    """Finds cached objects by the value of a field."""

    #: Unique within the plugin.
    name: str
    #: A kind that a controller is for, owns, watches or reads.
    kind: Kind
    #: A field path, such as `spec.nodeName` or `spec.volumes[*].configMap.name`.
    path: str


@dataclass
class Metric:
    """A metric of the plugin: see `Plugin.counter`, `Plugin.gauge` and `Plugin.histogram`."""

    name: str
    of_type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Sequence[str] = ()
    #: The largest value of each bucket of a histogram, in ascending order.
    buckets: Sequence[float] = ()


@dataclass
class Rule:
    """Which requests a webhook reviews. `*` is allowed in each list."""

    #: `""` is the core group.
    groups: Sequence[str]
    versions: Sequence[str]
    #: Plural names, such as `pods`, `pods/status` and `pods/*`.
    resources: Sequence[str]
    operations: Sequence[Operation] = ("create", "update")


@dataclass
class Webhook:
    """A webhook of the API server: see `Plugin.validate` and `Plugin.mutate`."""

    name: str
    of_type: Literal["validating", "mutating"]
    rules: list[Rule]
    reads: list[Watch]
    namespaces: Optional[str]
    labels: Optional[str]
    #: The name of each match condition, and its CEL expression.
    conditions: dict[str, str]
    #: Seconds.
    timeout: Optional[int]
    ignore_failures: bool
    reinvoke: bool


@dataclass
class ControllerManifest:
    """One reconcile loop."""

    name: str
    for_: Watch
    owns: list[Watch]
    watches: list[tuple[Watch, Mapping]]
    reads: list[Watch]
    max_concurrency: int
    #: Seconds.
    resync: Optional[float]
    #: Seconds.
    timeout: Optional[float]
    finalizer: Optional[str]


@dataclass
class Manifest:
    """What `describe` returns."""

    version: str
    description: str
    controllers: list[ControllerManifest]
    indexes: list[Index]
    permissions: list[Permission]
    crds: list[Object]
    config_schema: Optional[Object]
    instances: Literal["reuse", "fresh"]
    metrics: list[Metric]
    http: list[HttpPermission]
    observes: list[Watch]
    webhooks: list[Webhook]


#: The schema of `conditions` in a status. Server-side apply merges the list by `type`.
CONDITIONS: Object = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    },
}


@dataclass
class Column:
    """A column that `kubectl get` prints."""

    name: str
    #: Such as `.spec.replicas`.
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"


def crd(
    kind: str,
    *,
    spec: Object,
    status: Optional[Object] = None,
    required: Sequence[str] = (),
    plural: Optional[str] = None,
    singular: Optional[str] = None,
    short_names: Sequence[str] = (),
    columns: Sequence[Column] = (),
    namespaced: bool = True,
) -> Object:
    """Returns the CustomResourceDefinition of a kind with one version.

    `spec` and `status` map the name of each field to its JSON schema. `required` names the fields of `spec` that must
    be there. With a `status`, the kind has the subresource `status`. `CONDITIONS` is a schema for `status.conditions`.

    For more, such as several versions, give `Plugin` a dict of your own.
    """
    group_version, name = type_meta(kind)
    group, slash, version = group_version.partition("/")
    if not slash:
        raise ValueError(f"{kind!r} has no group: write GROUP/VERSION/KIND, such as example.com/v1/{name}")
    singular = singular or name.lower()
    plural = plural or f"{singular}s"
    properties: Object = {"spec": {"type": "object", "properties": spec}}
    if required:
        properties["spec"]["required"] = list(required)
    served: Object = {"name": version, "served": True, "storage": True}
    if status is not None:
        properties["status"] = {"type": "object", "properties": status}
        served["subresources"] = {"status": {}}
    served["schema"] = {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": properties}}
    if columns:
        served["additionalPrinterColumns"] = [
            {"name": column.name, "type": column.type, "jsonPath": column.path} for column in columns
        ]
    names: Object = {"kind": name, "listKind": f"{name}List", "plural": plural, "singular": singular}
    if short_names:
        names["shortNames"] = list(short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [served],
        },
    }

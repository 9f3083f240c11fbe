"""Write a Pilothouse plugin in Python.

A plugin is a `Plugin` with a function for each kind that it reconciles. The function takes the object, reads what it
needs from the host's cache, and returns what should exist. The host does the rest: it watches and caches, queues and
retries, applies children and status, and deletes children that are no longer wanted.

    from pilothouse import Outcome, Plugin, crd

    plugin = Plugin("Greets.", crds=[crd("example.com/v1/Hello", spec={"to": {"type": "string"}}, status={})])

    @plugin.controller("example.com/v1/Hello", owns=["v1/ConfigMap"])
    def reconcile(ctx, hello):
        text = f"Hello, {hello['spec']['to']}!"
        greeting = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ctx.key.name}, "data": {"text": text}}
        return Outcome(children=[greeting])
"""

from .admission import Decision, Review, ReviewContext, User
from .context import HERE, Client, Context, Http, Log, Response, set_condition
from .host import ClientError, HttpError, ReadError
from .kinds import Key, Kind, Object, TypeMeta, key_of, type_meta, type_meta_of
from .manifest import (
    CONDITIONS,
    Column,
    HttpPermission,
    Index,
    Manifest,
    Mapping,
    Permission,
    Predicate,
    Rule,
    Watch,
    crd,
)
from .observer import Change, ObserverContext
from .outcome import Child, Error, Event, Failure, Outcome
from .plugin import Counter, Gauge, Histogram, Plugin

__version__ = "0.1.0"

__all__ = [
    "CONDITIONS",
    "HERE",
    "Change",
    "Child",
    "Client",
    "ClientError",
    "Column",
    "Context",
    "Counter",
    "Decision",
    "Error",
    "Event",
    "Failure",
    "Gauge",
    "Histogram",
    "Http",
    "HttpError",
    "HttpPermission",
    "Index",
    "Key",
    "Kind",
    "Log",
    "Manifest",
    "Mapping",
    "Object",
    "ObserverContext",
    "Outcome",
    "Permission",
    "Plugin",
    "Predicate",
    "ReadError",
    "Response",
    "Review",
    "ReviewContext",
    "Rule",
    "TypeMeta",
    "User",
    "Watch",
    "crd",
    "key_of",
    "set_condition",
    "type_meta",
    "type_meta_of",
]

"""The example plugin in Python: a ConfigMap for each apple that a MyApple asks for, and a status that counts those which are there."""

import json

from wit_world import exports
from wit_world.exports.controller import (
    Child,
    Children_Desired,
    Children_Unchanged,
    InstancePolicy,
    Manifest,
    Outcome,
    Permission,
    Phase,
    Request,
    Verb,
    Watch,
    Watches_Unchanged,
)
from wit_world.exports import controller
from wit_world.imports import cache
from wit_world.imports.types import Key, Subresource, TypeMeta

APPLES = TypeMeta("stable.example.com/v1", "MyApple")
CONFIG_MAPS = TypeMeta("v1", "ConfigMap")


def watch(of: TypeMeta) -> Watch:
    return Watch(of, [], [], [], None, None, False, [], False, [])


def config_map(apple: dict, index: int) -> dict:
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": f"{apple['metadata']['name']}-{index}"},
        "data": {"color": apple["spec"]["color"], "size": apple["spec"]["size"]},
    }


def is_available(apple: dict, wanted: dict) -> bool:
    text = cache.get(CONFIG_MAPS, Key(apple["metadata"]["namespace"], wanted["metadata"]["name"]))
    if text is None:
        return False
    found = json.loads(text)
    owners = found["metadata"].get("ownerReferences", [])
    is_owned = any(owner.get("controller") and owner["uid"] == apple["metadata"]["uid"] for owner in owners)
    return is_owned and wanted["data"].items() <= found.get("data", {}).items()


class Controller(exports.Controller):
    def describe(self, config: str) -> Manifest:
        apples = controller.Controller("apples", watch(APPLES), [watch(CONFIG_MAPS)], [], [], 4, None, None, None)
        permissions = [
            Permission(APPLES, None, [Verb.READ], [], []),
            Permission(APPLES, Subresource.STATUS, [Verb.APPLY], [], []),
            Permission(CONFIG_MAPS, None, [Verb.READ, Verb.APPLY, Verb.DELETE], [], []),
        ]
        description = "Keeps a ConfigMap for each apple that a MyApple asks for."
        return Manifest("0.1.0", description, [apples], [], [], permissions, [], None, InstancePolicy.REUSE, [], [], [])

    def reconcile(self, config: str, request: Request) -> Outcome:
        if request.phase != Phase.LIVE:
            return Outcome(Children_Unchanged(), None, None, Watches_Unchanged(), [])
        apple = json.loads(request.object)
        wanted = [config_map(apple, index) for index in range(apple["spec"]["quantity"])]
        available = sum(is_available(apple, child) for child in wanted)
        status = {"available": available, "observedGeneration": apple["metadata"]["generation"]}
        children = Children_Desired([Child(json.dumps(child), False, False) for child in wanted])
        return Outcome(children, json.dumps(status, separators=(",", ":")), None, Watches_Unchanged(), [])

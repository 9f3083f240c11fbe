"""Prints, reads the clock, draws random numbers, and fails in the way that the object asks for."""

import json
import os
import random
import socket
import sys
import time
import uuid
from datetime import datetime, timezone

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import controller
from wit_world.exports.controller import (
    Children_Unchanged,
    Failure,
    InstancePolicy,
    Manifest,
    Outcome,
    Permission,
    Request,
    Verb,
    Watch,
    Watches_Unchanged,
)
from wit_world.imports.types import TypeMeta

CONFIG_MAPS = TypeMeta("v1", "ConfigMap")


class Controller(exports.Controller):
    def describe(self, config: str) -> Manifest:
        print("described at", time.time())
        watch = Watch(CONFIG_MAPS, [], [], [], None, None, False, [], False, [])
        maps = controller.Controller("maps", watch, [], [], [], 1, None, None, None)
        permissions = [Permission(CONFIG_MAPS, None, [Verb.READ], [], [])]
        description = "A probe in Python."
        return Manifest("0.1.0", description, [maps], [], [], permissions, [], None, InstancePolicy.FRESH, [], [], [])

    def reconcile(self, config: str, request: Request) -> Outcome:
        data = json.loads(request.object).get("data", {})
        if "probe" not in data:
            return Outcome(Children_Unchanged(), None, None, Watches_Unchanged(), [])
        print("a warning", file=sys.stderr)
        if data["fail"] == "returned":
            raise Err(Failure("no pears left", False, None, []))
        if data["fail"] == "thrown":
            raise ValueError("no apples left")
        before = time.monotonic()
        time.sleep(3600)
        result = {
            "time": time.time(),
            "year": datetime.now(timezone.utc).year,
            "slept": time.monotonic() - before,
            "urandom": os.urandom(8).hex(),
            "unique": str(uuid.uuid4()),
            "random": random.SystemRandom().random(),
            "seeded": random.random(),
            "environment": len(os.environ),
            "files": files(),
            "network": network(),
        }
        print(f"result of {data['probe']}: {json.dumps(result)}")
        return Outcome(Children_Unchanged(), None, None, Watches_Unchanged(), [])


def files() -> str:
    try:
        return open("/etc/passwd").read()
    except OSError as error:
        return type(error).__name__


def network() -> str:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return "opened"
    except OSError as error:
        return type(error).__name__

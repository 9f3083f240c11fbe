"""Prints, reads the clock, draws random numbers, and fails in the way that the object asks for."""

import json
import os
import random
import socket
import sys
import time
import uuid
from datetime import datetime, timezone

from pilothouse import Context, Error, Object, Plugin


def plugin(config: Object) -> Plugin:
    print("described at", time.time())
    probe = Plugin("A probe in Python.", instances="fresh")
    probe.controller("v1/ConfigMap", name="maps", status=False)(reconcile)
    return probe


def reconcile(ctx: Context, config_map: Object) -> None:
    data = config_map.get("data", {})
    if "probe" not in data:
        return
    print("a warning", file=sys.stderr)
    if data["fail"] == "returned":
        raise Error("no pears left")
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

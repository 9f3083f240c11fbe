"""Tests against the SDK's mock host: `python -m pytest`."""

import pytest
from hello import plugin
from pilothouse.mock import Failed, MockHost


def hello(to: str) -> dict:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Hello",
        "metadata": {"name": "morning", "namespace": "default"},
        "spec": {"to": to},
    }


def test_a_hello_gives_a_config_map_and_a_status():
    host = MockHost(plugin, hello("world"))
    status = host.settle("morning", "default").status
    assert host.find("v1/ConfigMap", "morning-greeting", "default")["data"] == {"text": "Hello, world!"}
    assert status["greeting"] == "Hello, world!"
    assert status["conditions"][0]["status"] == "True"
    assert [(event.reason, event.message) for event in host.events] == [("Greeted", "Hello, world!")]


def test_a_changed_config_map_is_set_back():
    host = MockHost(plugin, hello("world"))
    host.settle("morning", "default")
    changed = host.find("v1/ConfigMap", "morning-greeting", "default")
    host.put({**changed, "data": {"text": "Bye"}})
    host.settle("morning", "default")
    assert host.find("v1/ConfigMap", "morning-greeting", "default")["data"] == {"text": "Hello, world!"}


def test_nobody_is_an_error_that_waits_for_a_change():
    with pytest.raises(Failed) as error:
        MockHost(plugin, hello("nobody")).reconcile("morning", "default")
    assert error.value.failure.terminal

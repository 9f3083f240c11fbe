"""Tests against a mock host: `python -m pytest`. They need no cluster."""

from pilothouse.mock import MockHost

from {{crate}} import plugin

OBJECT = {
    "apiVersion": "{{group}}/{{version}}",
    "kind": "{{kind}}",
    "metadata": {"name": "first", "namespace": "default"},
    "spec": {"message": "hello"},
}


def test_an_object_gives_a_config_map():
    outcome = MockHost(plugin, OBJECT).reconcile("first", "default")
    (child,) = outcome.children
    assert child["data"] == {"message": "hello"}


def test_it_becomes_ready_when_the_config_map_is_there():
    host = MockHost(plugin, OBJECT)
    status = host.settle("first", "default").status
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Ready", "True")]

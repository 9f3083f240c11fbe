"""What authors rely on, natively."""

import pytest
from pilothouse import (
    ClientError,
    Context,
    Decision,
    Error,
    HttpPermission,
    Index,
    Mapping,
    Outcome,
    Permission,
    Plugin,
    Predicate,
    ReadError,
    Rule,
    User,
    Watch,
    crd,
    set_condition,
)
from pilothouse.mock import Failed, MockHost, change_to, matches, values

SITE = {"apiVersion": "example.com/v1", "kind": "Site", "metadata": {"name": "web", "namespace": "shop"}, "spec": {}}


def serving(reconcile, **options) -> Plugin:
    plugin = Plugin("A test.", permissions=options.pop("permissions", ()), http=options.pop("http", ()))
    plugin.controller("example.com/v1/Site", **options)(reconcile)
    return plugin


def run(reconcile, *objects, **options) -> Outcome:
    return MockHost(serving(reconcile, **options), SITE, *objects).reconcile("web", "shop")


def named(kind: str, name: str, labels: dict | None = None, **more) -> dict:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "shop", "labels": labels or {}},
        **more,
    }


def test_a_controller_asks_for_what_it_needs():
    plugin = serving(
        lambda ctx, site: None, owns=["v1/ConfigMap"], reads=["v1/Secret"], finalizer="example.com/f", events=True
    )
    asked = [(str(p.kind), list(p.verbs), p.subresource) for p in plugin.manifest().permissions]
    assert asked == [
        ("example.com/v1/Site", ["read"], None),
        ("example.com/v1/Site", ["apply"], "status"),
        ("example.com/v1/Site", ["patch"], None),
        ("v1/Event", ["create"], None),
        ("v1/ConfigMap", ["read", "apply", "delete"], None),
        ("v1/Secret", ["read"], None),
    ]


def test_a_crd_brings_the_permission_to_apply_it():
    definition = crd("example.com/v1/Site", spec={"size": {"type": "integer"}}, required=["size"], status={})
    assert definition["metadata"]["name"] == "sites.example.com"
    (version,) = definition["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert version["schema"]["openAPIV3Schema"]["properties"]["spec"]["required"] == ["size"]
    assert Plugin("A test.", crds=[definition]).manifest().permissions[0].names == ["sites.example.com"]


def test_an_exception_is_told_with_its_stack():
    def helper():
        raise ValueError("no apples left")

    host = MockHost(serving(lambda ctx, site: helper()), SITE)
    with pytest.raises(Failed) as failed:
        host.reconcile("web", "shop")
    assert failed.value.failure.message.startswith("ValueError: no apples left, at test_sdk.py:")
    assert " in helper, at test_sdk.py:" in failed.value.failure.message
    assert not failed.value.failure.terminal
    assert host.logs[0].level == "error" and "Traceback" in host.logs[0].message


def test_an_error_carries_status_and_events():
    def reconcile(ctx: Context, site):
        ctx.event("Tried", "once", warning=True)
        raise Error("the spec is not valid", terminal=True, status={"message": "not valid"})

    with pytest.raises(Failed) as failed:
        run(reconcile, events=True)
    failure = failed.value.failure
    assert (failure.message, failure.terminal, failure.status) == (
        "the spec is not valid",
        True,
        {"message": "not valid"},
    )
    assert [event.reason for event in failure.events] == ["Tried"]


def test_reads_are_refused_unless_they_are_declared_and_granted():
    with pytest.raises(Failed, match="v1/Secret is not cached: add it to `reads`"):
        run(lambda ctx, site: ctx.get("v1/Secret", "token"))
    host = MockHost(
        serving(lambda ctx, site: ctx.get("v1/Secret", "t"), reads=["v1/Secret"]), SITE, refuse=[("read", "v1/Secret")]
    )
    with pytest.raises(Failed, match="`read` of v1/Secret shop/t is not granted"):
        host.reconcile("web", "shop")


def test_a_list_selects_by_labels_index_and_namespace():
    plugin = Plugin("A test.", indexes=[Index("by-node", "v1/Pod", "spec.nodeName")])
    seen = {}

    @plugin.controller("example.com/v1/Site", reads=["v1/Pod"])
    def reconcile(ctx: Context, site):
        def name(pods):
            return [pod["metadata"]["name"] for pod in pods]

        seen["labels"] = name(ctx.list("v1/Pod", labels="app=web"))
        seen["index"] = name(ctx.list("v1/Pod", index=("by-node", "n2")))
        seen["all"] = [str(key) for key in ctx.keys("v1/Pod", None)]

    other = named("Pod", "c")
    other["metadata"]["namespace"] = "other"
    pods = [
        named("Pod", "a", {"app": "web"}, spec={"nodeName": "n1"}),
        named("Pod", "b", spec={"nodeName": "n2"}),
        other,
    ]
    MockHost(plugin, SITE, *pods).reconcile("web", "shop")
    assert seen == {"labels": ["a"], "index": ["b"], "all": ["other/c", "shop/a", "shop/b"]}


def test_requests_are_refused_unless_they_are_granted_and_then_recorded():
    def reconcile(ctx: Context, site):
        ctx.client.delete("v1/Pod", "old")

    with pytest.raises(Failed, match="`delete` of v1/Pod shop/old"):
        run(reconcile)
    host = MockHost(serving(reconcile, permissions=[Permission("v1/Pod", ["delete"])]), SITE, named("Pod", "old"))
    host.fail("delete", "v1/Pod", "old", ClientError("api", "try later", code=503))
    with pytest.raises(Failed, match="try later"):
        host.reconcile("web", "shop")
    host.reconcile("web", "shop")
    assert [(call.verb, call.key.name) for call in host.calls] == [("delete", "old")]
    assert host.find("v1/Pod", "old", "shop") is None


def test_a_child_must_be_of_a_kind_that_is_owned():
    with pytest.raises(AssertionError, match="does not own v1/ConfigMap: add it to `owns`"):
        run(lambda ctx, site: Outcome(children=[named("ConfigMap", "a")]))


def test_settling_writes_children_and_deletes_those_that_are_no_longer_listed():
    def reconcile(ctx: Context, site):
        return Outcome(
            children=[named("ConfigMap", name) for name in site["spec"].get("names", [])], status={"ok": True}
        )

    host = MockHost(serving(reconcile, owns=["v1/ConfigMap"]), {**SITE, "spec": {"names": ["a", "b"]}})
    host.settle("web", "shop")
    assert host.find("v1/ConfigMap", "a", "shop")["metadata"]["ownerReferences"][0]["name"] == "web"
    host.put({**host.find("example.com/v1/Site", "web", "shop"), "spec": {"names": ["b"]}})
    host.settle("web", "shop")
    assert host.find("v1/ConfigMap", "a", "shop") is None
    assert host.find("example.com/v1/Site", "web", "shop")["status"] == {"ok": True}


def test_http_needs_a_permission_and_a_response():
    def reconcile(ctx: Context, site):
        answer = ctx.http.post("https://hooks.example.com/x", json={"text": "hi"}).raise_for_status()
        return Outcome(status={"answer": answer.json()})

    with pytest.raises(Failed, match="not granted: POST https://hooks.example.com/x"):
        run(reconcile)
    host = MockHost(serving(reconcile, http=[HttpPermission("hooks.example.com", ["POST"])]), SITE)
    host.respond("POST", "https://hooks.example.com/x", 200, {"ok": True})
    assert host.reconcile("web", "shop").status == {"answer": {"ok": True}}
    assert host.http_calls[0].body == b'{"text":"hi"}'


def test_metrics_are_counted_by_their_labels():
    plugin = Plugin("A test.")
    runs = plugin.counter("runs_total", "Runs.", ["result"])
    plugin.controller("example.com/v1/Site")(lambda ctx, site: runs.inc("good"))
    host = MockHost(plugin, SITE)
    host.reconcile("web", "shop")
    host.reconcile("web", "shop")
    assert host.metrics == {("runs_total", "good"): 2.0}


def test_configuration_reaches_the_plugin():
    def plugin(config):
        made = Plugin("A test.", config_schema={"type": "object"})
        made.controller(config["kind"])(lambda ctx, obj: Outcome(status={"size": ctx.config["size"]}))
        return made

    host = MockHost(plugin, SITE, config={"kind": "example.com/v1/Site", "size": 3})
    assert host.reconcile("web", "shop").status == {"size": 3}
    with pytest.raises(Error, match="takes no configuration"):
        MockHost(serving(lambda ctx, site: None), config={"size": 3})


def test_a_condition_keeps_its_time_while_its_status_stays():
    old = [{"type": "Ready", "status": "True", "reason": "A", "message": "", "lastTransitionTime": "then"}]
    same = {"type": "Ready", "status": "True", "reason": "B", "message": "", "lastTransitionTime": "now"}
    assert set_condition(old, same) == [{**same, "lastTransitionTime": "then"}]
    assert set_condition(old, {**same, "status": "False"})[0]["lastTransitionTime"] == "now"
    assert len(set_condition(old, {**same, "type": "Stalled"})) == 2


def test_predicates_combine():
    matters = Predicate.generation() | Predicate.labels() & ~Predicate.deletion()
    found = [[(test.name, test.negated) for test in tests] for tests in matters.alternatives]
    assert found == [[("generation", False)], [("labels", False), ("deletion", True)]]
    assert (~matters).alternatives == (
        ~Predicate.generation() & (~Predicate.labels() | Predicate.deletion())
    ).alternatives


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier!=cache", True),
        ("app!=web", False),
        ("app in (web, api)", True),
        ("app notin (web)", False),
        ("missing notin (a)", True),
        ("app", True),
        ("!app", False),
        ("!missing,app", True),
    ],
)
def test_label_selectors_match_as_in_kubernetes(selector, holds):
    assert matches(selector, {"app": "web"}) == holds


def test_a_selector_that_is_none_is_refused():
    with pytest.raises(ReadError):
        matches("a b", {})


def test_field_paths_reach_lists_and_quoted_names():
    pod = {"spec": {"volumes": [{"configMap": {"name": "a"}}, {"secret": {}}]}, "metadata": {"labels": {"x.io/y": "z"}}}
    assert values(pod, "spec.volumes[*].configMap.name") == ["a"]
    assert values(pod, 'metadata.labels["x.io/y"]') == ["z"]


def test_a_kind_needs_a_version_and_watches_take_mappings():
    with pytest.raises(ValueError, match="GROUP/VERSION/KIND"):
        Watch("ConfigMap") and serving(lambda ctx, site: None, owns=["ConfigMap"])
    plugin = serving(lambda ctx, site: None, watches={"v1/Service": Mapping.same_key()})
    ((watch, mapping),) = plugin.manifest().controllers[0].watches
    assert (watch.kind, mapping.name) == ("v1/Service", "same-key")


def test_what_is_not_json_is_a_failure_of_the_plugin():
    with pytest.raises(TypeError, match="not JSON serializable"):
        run(lambda ctx, site: Outcome(status={"at": object()}))


PODS = Rule([""], ["v1"], ["pods"])


def pod(image: str) -> dict:
    return named("Pod", "web", spec={"containers": [{"image": image}]})


def reviewing(kind: str, handler, **options) -> MockHost:
    plugin = Plugin("A test.")
    getattr(plugin, kind)("images", PODS, **options)(handler)
    return MockHost(plugin, named("ConfigMap", "policy", data={"registry": "here/"}))


def test_a_webhook_allows_or_denies_and_reads_the_cache():
    def images(ctx, review):
        registry = ctx.get("v1/ConfigMap", "policy")["data"]["registry"]
        for container in review.object["spec"]["containers"]:
            if not container["image"].startswith(registry):
                return Decision(denied=f"{container['image']} is not from {registry}", warnings=[review.user.name])

    host = reviewing("validate", images, reads=["v1/ConfigMap"], labels="app", timeout=5)
    assert host.review("images", pod("here/web")) == Decision()
    denied = host.review("images", pod("there/web"), user=User("ann"))
    assert denied == Decision(denied="there/web is not from here/", warnings=["ann"])
    (webhook,) = host.manifest.webhooks
    assert (webhook.name, webhook.of_type, webhook.rules) == ("images", "validating", [PODS])
    assert [(p.kind, list(p.verbs)) for p in host.manifest.permissions] == [("v1/ConfigMap", ["read"])]


def test_a_mutating_webhook_changes_the_object():
    def pulled(ctx, review):
        changed = {**review.object, "spec": {"containers": [{"image": "here/web"}]}}
        return Decision(object=changed) if review.operation == "update" else None

    host = reviewing("mutate", pulled)
    assert host.review("images", pod("web")).object is None
    assert host.review("images", pod("web"), pod("old")).object["spec"]["containers"] == [{"image": "here/web"}]


def test_a_review_that_fails_is_no_answer():
    def fails(ctx, review):
        if review.operation == "delete":
            raise Error("the policy is not valid")
        return Decision(object=review.object)

    host = reviewing("validate", fails)
    with pytest.raises(Failed, match="^the policy is not valid$"):
        host.review("images", None, pod("web"))
    assert host.logs == []
    with pytest.raises(Failed, match="TypeError: a validating webhook changes no object"):
        host.review("images", pod("web"))
    assert "Traceback" in host.logs[0].message
    with pytest.raises(Failed, match="no webhook other"):
        host.review("other", pod("web"))


def test_a_review_reads_only_what_is_declared():
    host = reviewing("validate", lambda ctx, review: ctx.get("v1/Secret", "password"))
    with pytest.raises(Failed, match="v1/Secret is not cached"):
        host.review("images", pod("web"))


def test_changes_go_to_the_function_that_observes_their_kind():
    plugin, seen = Plugin("A test."), []
    plugin.observe(Watch("*/*", excluding=["v1/Event"]))(lambda ctx, change: seen.append(("any", str(change.of))))

    @plugin.observe("v1/Pod")
    def pods(ctx, change):
        seen.append((str(ctx.key), change.new is None, change.initial))

    host = MockHost(plugin)
    host.observe(change_to(pod("a"), initial=True), change_to(named("Secret", "s")), change_to(None, pod("a")))
    assert seen == [("shop/web", False, True), ("any", "v1/Secret"), ("shop/web", True, False)]
    assert [(p.kind, list(p.verbs)) for p in host.manifest.permissions] == [("*/*", ["read"]), ("v1/Pod", ["read"])]
    with pytest.raises(ValueError, match="v1/Pod is observed twice"):
        plugin.observe("v1/Pod")(pods)


def test_a_change_that_cannot_be_observed_is_named():
    plugin = Plugin("A test.")

    @plugin.observe("v1/Pod")
    def pods(ctx, change):
        raise ValueError("no apples left")

    with pytest.raises(Failed, match="^cannot observe v1/Pod shop/web: ValueError: no apples left, at test_sdk.py:"):
        MockHost(plugin).observe(change_to(pod("a")))

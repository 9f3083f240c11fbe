// What authors rely on, natively.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ClientError, Failure, Mapping, Plugin, Predicate, crd, setCondition } from "../src/index.js";
import { MockHost, matches, values } from "../src/mock.js";
import { frames } from "../src/plugin.js";

const SITE = { apiVersion: "example.com/v1", kind: "Site", metadata: { name: "web", namespace: "shop" }, spec: {} };

function serving(reconcile, { permissions, http, ...options } = {}) {
  return new Plugin("A test.", { permissions, http }).controller("example.com/v1/Site", options, reconcile);
}

const run = (reconcile, options) => new MockHost(serving(reconcile, options), SITE).reconcile("web", "shop");

function named(kind, name, more = {}) {
  return { apiVersion: "v1", kind, metadata: { name, namespace: "shop", ...more.metadata }, ...more.body };
}

test("a controller asks for what it needs", () => {
  const options = { owns: ["v1/ConfigMap"], reads: ["v1/Secret"], finalizer: "example.com/f", events: true };
  const asked = serving(() => {}, options).manifest().permissions;
  assert.deepEqual(asked.map(({ of, verbs, subresource }) => [of.kind, verbs, subresource]), [
    ["Site", ["read"], undefined],
    ["Site", ["apply"], "status"],
    ["Site", ["patch"], undefined],
    ["Event", ["create"], undefined],
    ["ConfigMap", ["read", "apply", "delete"], undefined],
    ["Secret", ["read"], undefined],
  ]);
});

test("a CRD brings the permission to apply it", () => {
  const definition = crd("example.com/v1/Site", { spec: { size: { type: "integer" } }, required: ["size"], status: {} });
  assert.equal(definition.metadata.name, "sites.example.com");
  const [version] = definition.spec.versions;
  assert.deepEqual(version.subresources, { status: {} });
  assert.deepEqual(version.schema.openAPIV3Schema.properties.spec.required, ["size"]);
  assert.deepEqual(new Plugin("A test.", { crds: [definition] }).manifest().permissions[0].names, ["sites.example.com"]);
});

test("what is thrown is told with its stack", () => {
  function helper() {
    throw new RangeError("no apples left");
  }
  const host = new MockHost(serving(function outer() { helper(); }), SITE);
  assert.throws(() => host.reconcile("web", "shop"), ({ failure }) => {
    assert.match(failure.message, /^RangeError: no apples left, at sdk\.test\.js:\d+ in helper, at sdk\.test\.js:\d+ in outer$/);
    return !failure.terminal;
  });
  assert.equal(host.logs[0].level, "error");
  assert.match(host.logs[0].message, /RangeError: no apples left\n.*helper/);
});

test("stacks of SpiderMonkey are read", () => {
  const error = { stack: "helper@hello.js:3:9\nreconcile/<@hello.js:7:1\ncallPlugin@hello.js:9:1\nreconcile@hello.js:11:1\n" };
  assert.deepEqual(frames(error), ["hello.js:3 in helper", "hello.js:7 in reconcile"]);
});

test("a failure carries status and Events", () => {
  const reconcile = (ctx) => {
    ctx.event("Tried", "once", { warning: true });
    throw new Failure("the spec is not valid", { terminal: true, status: { message: "not valid" } });
  };
  assert.throws(() => run(reconcile, { events: true }), ({ failure }) => {
    assert.deepEqual([failure.message, failure.terminal, failure.status], ["the spec is not valid", true, { message: "not valid" }]);
    return failure.events[0].reason === "Tried";
  });
});

test("reads are refused unless they are declared and granted", () => {
  assert.throws(() => run((ctx) => void ctx.get("v1/Secret", "t")), /v1\/Secret is not cached: add it to `reads`/);
  const plugin = serving((ctx) => void ctx.get("v1/Secret", "t"), { reads: ["v1/Secret"] });
  const host = new MockHost(plugin, SITE, { refuse: [["read", "v1/Secret"]] });
  assert.throws(() => host.reconcile("web", "shop"), /`read` of v1\/Secret shop\/t is not granted/);
});

test("a list selects by labels, index and namespace", () => {
  const plugin = new Plugin("A test.", { indexes: [{ name: "by-node", kind: "v1/Pod", path: "spec.nodeName" }] });
  const seen = {};
  plugin.controller("example.com/v1/Site", { reads: ["v1/Pod"] }, (ctx) => {
    const names = (pods) => [...pods].map((pod) => pod.metadata.name);
    seen.labels = names(ctx.list("v1/Pod", { labels: "app=web" }));
    seen.index = names(ctx.list("v1/Pod", { index: ["by-node", "n2"] }));
    seen.all = [...ctx.keys("v1/Pod", { namespace: null })].map(({ namespace, name }) => `${namespace}/${name}`);
  });
  const pods = [
    named("Pod", "a", { metadata: { labels: { app: "web" } }, body: { spec: { nodeName: "n1" } } }),
    named("Pod", "b", { body: { spec: { nodeName: "n2" } } }),
    named("Pod", "c", { metadata: { namespace: "other" } }),
  ];
  new MockHost(plugin, [SITE, ...pods]).reconcile("web", "shop");
  assert.deepEqual(seen, { labels: ["a"], index: ["b"], all: ["other/c", "shop/a", "shop/b"] });
});

test("requests are refused unless they are granted, and then recorded", () => {
  const reconcile = (ctx) => void ctx.client.delete("v1/Pod", "old");
  assert.throws(() => run(reconcile), /`delete` of v1\/Pod shop\/old/);
  const plugin = serving(reconcile, { permissions: [{ kind: "v1/Pod", verbs: ["delete"] }] });
  const host = new MockHost(plugin, [SITE, named("Pod", "old")]);
  host.fail("delete", "v1/Pod", "old", new ClientError("api", "try later", { code: 503 }));
  assert.throws(() => host.reconcile("web", "shop"), /try later/);
  host.reconcile("web", "shop");
  assert.deepEqual(host.calls.map(({ verb, key }) => [verb, key.name]), [["delete", "old"]]);
  assert.equal(host.find("v1/Pod", "old", "shop"), undefined);
});

test("a child must be of a kind that is owned", () => {
  assert.throws(() => run(() => ({ children: [named("ConfigMap", "a")] })), /does not own v1\/ConfigMap: add it to `owns`/);
});

test("settling writes children, and deletes those that are no longer listed", () => {
  const reconcile = (_, site) => ({ children: site.spec.names.map((name) => named("ConfigMap", name)), status: { ok: true } });
  const host = new MockHost(serving(reconcile, { owns: ["v1/ConfigMap"] }), { ...SITE, spec: { names: ["a", "b"] } });
  host.settle("web", "shop");
  assert.equal(host.find("v1/ConfigMap", "a", "shop").metadata.ownerReferences[0].name, "web");
  host.put({ ...host.find("example.com/v1/Site", "web", "shop"), spec: { names: ["b"] } });
  host.settle("web", "shop");
  assert.equal(host.find("v1/ConfigMap", "a", "shop"), undefined);
  assert.deepEqual(host.find("example.com/v1/Site", "web", "shop").status, { ok: true });
});

test("HTTP needs a permission and a response", () => {
  const reconcile = (ctx) => {
    const answer = ctx.http.post("https://hooks.example.com/x", { json: { text: "hi" } }).errorForStatus();
    return { status: { answer: answer.json() } };
  };
  assert.throws(() => run(reconcile), /not granted: POST https:\/\/hooks\.example\.com\/x/);
  const host = new MockHost(serving(reconcile, { http: [{ host: "hooks.example.com", methods: ["POST"] }] }), SITE);
  host.respond("POST", "https://hooks.example.com/x", 200, { ok: true });
  assert.deepEqual(host.reconcile("web", "shop").status, { answer: { ok: true } });
  assert.equal(new TextDecoder().decode(host.httpCalls[0].body), '{"text":"hi"}');
});

test("metrics are counted by their labels", () => {
  const plugin = new Plugin("A test.");
  const runs = plugin.counter("runs_total", "Runs.", ["result"]);
  plugin.controller("example.com/v1/Site", () => runs.inc("good"));
  const host = new MockHost(plugin, SITE);
  host.reconcile("web", "shop");
  host.reconcile("web", "shop");
  assert.deepEqual([...host.metrics], [["runs_total good", 2]]);
});

test("configuration reaches the plugin", () => {
  const plugin = ({ kind }) =>
    new Plugin("A test.", { configSchema: { type: "object" } }).controller(kind, (ctx) => ({ status: { size: ctx.config.size } }));
  const host = new MockHost(plugin, SITE, { config: { kind: "example.com/v1/Site", size: 3 } });
  assert.deepEqual(host.reconcile("web", "shop").status, { size: 3 });
  assert.throws(() => new MockHost(serving(() => {}), [], { config: { size: 3 } }), /takes no configuration/);
});

test("a condition keeps its time while its status stays", () => {
  const old = [{ type: "Ready", status: "True", reason: "A", message: "", lastTransitionTime: "then" }];
  const same = { ...old[0], reason: "B", lastTransitionTime: "now" };
  assert.deepEqual(setCondition(old, same), [{ ...same, lastTransitionTime: "then" }]);
  assert.equal(setCondition(old, { ...same, status: "False" })[0].lastTransitionTime, "now");
  assert.equal(setCondition(old, { ...same, type: "Stalled" }).length, 2);
});

test("predicates combine", () => {
  const matters = Predicate.generation().or(Predicate.labels().and(Predicate.deletion().not()));
  const found = matters.alternatives.map((tests) => tests.map(({ test, negated }) => [test.tag, negated]));
  assert.deepEqual(found, [[["generation", false]], [["labels", false], ["deletion", true]]]);
});

for (const [selector, holds] of [
  ["", true],
  ["app=web", true],
  ["app==web,tier!=cache", true],
  ["app!=web", false],
  ["app in (web, api)", true],
  ["app notin (web)", false],
  ["missing notin (a)", true],
  ["app", true],
  ["!app", false],
  ["!missing,app", true],
]) {
  test(`the label selector "${selector}" matches as in Kubernetes`, () => assert.equal(matches(selector, { app: "web" }), holds));
}

test("a selector that is none is refused", () => assert.throws(() => matches("a b", {}), /no requirement/));

test("field paths reach lists and quoted names", () => {
  const pod = { spec: { volumes: [{ configMap: { name: "a" } }, { secret: {} }] }, metadata: { labels: { "x.io/y": "z" } } };
  assert.deepEqual(values(pod, "spec.volumes[*].configMap.name"), ["a"]);
  assert.deepEqual(values(pod, 'metadata.labels["x.io/y"]'), ["z"]);
});

test("a kind needs a version, and watches take mappings", () => {
  assert.throws(() => serving(() => {}, { owns: ["ConfigMap"] }), /GROUP\/VERSION\/KIND/);
  const [mapped] = serving(() => {}, { watches: [["v1/Service", Mapping.sameKey()]] }).manifest().controllers[0].watches;
  assert.deepEqual([mapped.watch.of.kind, mapped.mapping.tag], ["Service", "same-key"]);
});

test("a promise and an unknown member are refused", () => {
  assert.throws(() => run(async () => ({})), /not asynchronous/);
  assert.throws(() => run(() => ({ requeue_after: 3 })), /an outcome has no `requeue_after`/);
});

const PODS = { groups: [""], versions: ["v1"], resources: ["pods"] };

const pod = (image) => named("Pod", "web", { body: { spec: { containers: [{ image }] } } });

function reviewing(kind, handler, options = {}) {
  const plugin = new Plugin("A test.")[kind]("images", { rules: PODS, ...options }, handler);
  return new MockHost(plugin, named("ConfigMap", "policy", { body: { data: { registry: "here/" } } }));
}

test("a webhook allows or denies, and reads the cache", () => {
  const host = reviewing("validate", (ctx, { object, user }) => {
    const { registry } = ctx.get("v1/ConfigMap", "policy").data;
    const foreign = object.spec.containers.find(({ image }) => !image.startsWith(registry));
    return foreign && { denied: `${foreign.image} is not from ${registry}`, warnings: [user.name] };
  }, { reads: ["v1/ConfigMap"], timeout: 5 });
  assert.deepEqual(host.review("images", pod("here/web")), {});
  const denied = host.review("images", pod("there/web"), undefined, { user: { name: "ann" } });
  assert.deepEqual(denied, { denied: "there/web is not from here/", warnings: ["ann"] });
  const [webhook] = host.manifest.webhooks;
  assert.deepEqual([webhook.ofType, webhook.rules[0].operations, webhook.onFailure], ["validating", ["create", "update"], "fail"]);
  assert.deepEqual(host.manifest.permissions.map(({ of, verbs }) => [of.kind, verbs]), [["ConfigMap", ["read"]]]);
});

test("a mutating webhook changes the object", () => {
  const host = reviewing("mutate", (_, { operation, object }) =>
    (operation === "update" ? { object: { ...object, spec: { containers: [{ image: "here/web" }] } } } : undefined));
  assert.deepEqual(host.review("images", pod("web")), {});
  assert.deepEqual(host.review("images", pod("web"), pod("old")).object.spec.containers, [{ image: "here/web" }]);
});

test("a review that throws is no answer", () => {
  const host = reviewing("validate", (_, { operation, object }) => {
    if (operation === "delete") throw new Failure("the policy is not valid");
    return { object };
  });
  assert.throws(() => host.review("images", undefined, pod("web")), /^Failed: the policy is not valid$/);
  assert.equal(host.logs.length, 0);
  assert.throws(() => host.review("images", pod("web")), /TypeError: a validating webhook changes no object/);
  assert.equal(host.logs.length, 1);
  assert.throws(() => host.review("other", pod("web")), /no webhook other/);
  const mistaken = reviewing("validate", () => ({ deny: "no" }));
  assert.throws(() => mistaken.review("images", pod("web")), /a decision has no `deny`/);
});

test("a review reads only what is declared", () => {
  const host = reviewing("validate", (ctx) => ctx.get("v1/Secret", "password"));
  assert.throws(() => host.review("images", pod("web")), /v1\/Secret is not cached/);
});

test("changes go to the function that observes their kind", () => {
  const seen = [];
  const plugin = new Plugin("A test.")
    .observe({ kind: "*/*", excluding: ["v1/Event"] }, (_, { of }) => seen.push(["any", of.kind]))
    .observe("v1/Pod", (ctx, change) => seen.push([ctx.key.name, change.new === undefined, change.initial]));
  const host = new MockHost(plugin);
  host.observe({ new: pod("a"), initial: true }, { new: named("Secret", "s") }, { old: pod("a") });
  assert.deepEqual(seen, [["web", false, true], ["any", "Secret"], ["web", true, false]]);
  assert.deepEqual(host.manifest.permissions.map(({ of, verbs }) => [of.kind, verbs]), [["*", ["read"]], ["Pod", ["read"]]]);
  assert.throws(() => plugin.observe("v1/Pod", () => {}), /v1\/Pod is observed twice/);
});

test("a change that cannot be observed is named", () => {
  const plugin = new Plugin("A test.").observe("v1/Pod", () => {
    throw new RangeError("no apples left");
  });
  const told = /cannot observe v1\/Pod shop\/web: RangeError: no apples left, at sdk\.test\.js:/;
  assert.throws(() => new MockHost(plugin).observe({ new: pod("a") }), told);
});

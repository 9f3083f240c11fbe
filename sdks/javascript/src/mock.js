// A mock host for native tests: the plugin's own code runs without a cluster and without a sandbox. See `mock.d.ts`.

import { ClientError, HttpError, ReadError, serve } from "./host.js";
import { keyOf, keyText, kindText, sameKind, typeMeta, typeMetaOf } from "./kinds.js";
import { define } from "./plugin.js";

const EVENT = { apiVersion: "v1", kind: "Event" };

/** A call that failed. */
export class Failed extends Error {
  constructor(failure) {
    super(failure.message);
    this.name = "Failed";
    this.failure = failure;
  }
}

/** Calls a plugin, and answers it out of objects in memory. */
export class MockHost {
  #plugin;
  #config;
  #now;
  #refused;
  #objects = new Map();
  #loop;
  #key;
  #asked = new Map();
  #failures = [];
  #responses = new Map();
  #version = 0;
  #seed = 1;

  constructor(plugin, objects = [], { config = {}, now = "2026-01-01T00:00:00Z", refuse = [] } = {}) {
    this.#config = config;
    this.#plugin = define(plugin, config);
    this.#now = new Date(now);
    this.#refused = refuse.map(([verb, kind]) => [verb, typeMeta(kind)]);
    this.manifest = this.#plugin.manifest();
    this.calls = [];
    this.httpCalls = [];
    this.logs = [];
    this.events = [];
    this.metrics = new Map();
    for (const object of [objects].flat()) this.put(object);
  }

  // The cluster.

  put(object) {
    const [of, key, stored] = [typeMetaOf(object), keyOf(object), copy(object)];
    if (!key.name) throw new TypeError(`an object of kind ${kindText(of)} has no \`metadata.name\``);
    const old = this.#objects.get(id(of, key));
    this.#version += 1;
    stored.metadata.uid ??= old?.metadata.uid ?? `uid-${this.#version}`;
    const changed = JSON.stringify(old?.spec) !== JSON.stringify(stored.spec) || !old;
    stored.metadata.generation = (old?.metadata.generation ?? 0) + (changed ? 1 : 0);
    stored.metadata.resourceVersion = String(this.#version);
    this.#objects.set(id(of, key), stored);
    return copy(stored);
  }

  remove(kind, name, namespace) {
    if (!this.#objects.delete(id(typeMeta(kind), { namespace, name }))) throw new Error(`there is no ${kind} ${name}`);
    this.#version += 1;
  }

  find(kind, name, namespace) {
    return copy(this.#objects.get(id(typeMeta(kind), { namespace, name })));
  }

  respond(method, url, status = 200, body = "") {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    this.#responses.set(`${method} ${url}`, { status, headers: [], body: new TextEncoder().encode(text) });
  }

  fail(verb, kind, name, error) {
    this.#failures.push([verb, typeMeta(kind), name, error]);
  }

  // Calls.

  reconcile(name, namespace, { controller, phase, attempt = 1, lastError } = {}) {
    const [loop, key] = [this.#find(controller), { namespace, name }];
    const object = this.find(loop.for.of, name, namespace);
    if (!object) throw new Error(`there is no ${kindText(loop.for.of)} ${keyText(key)}: put it first`);
    const deleting = object.metadata.deletionTimestamp !== undefined;
    [this.#loop, this.#key] = [loop, key];
    const request = { controller: loop.name, key, object, phase: phase ?? (deleting ? "deleting" : "live"), attempt, lastError };
    const { outcome, failure } = this.#serve(() => this.#plugin.reconcile(request, this.#config));
    this.#check(outcome ?? failure, outcome?.children ?? []);
    this.events.push(...(outcome ?? failure).events);
    if (failure) throw new Failed(failure);
    if (outcome.watches) this.#asked.set(`${loop.name} ${keyText(key)}`, outcome.watches.map(({ of }) => of));
    return { ...outcome, children: outcome.children?.map(({ object }) => object) };
  }

  review(webhook, object, old, { operation, subresource, user = {}, dryRun = false } = {}) {
    const about = object ?? old;
    const review = {
      operation: operation ?? (old ? (object ? "update" : "delete") : "create"),
      of: typeMetaOf(about),
      key: keyOf(about),
      subresource,
      object: copy(object ?? undefined),
      old: copy(old),
      user: { name: "tester", uid: "", groups: [], ...user },
      dryRun,
    };
    this.#loop = undefined;
    const { result, failure } = this.#serve(() => this.#plugin.review(webhook, review, this.#config));
    if (failure) throw new Failed({ message: failure, terminal: false, events: [] });
    return result.object ? { ...result, object: copy(result.object) } : result;
  }

  observe(...changes) {
    this.#loop = undefined;
    const told = changes.map(({ old, new: latest, merged = 1, missed = false, initial = false }) => {
      const about = latest ?? old;
      return { of: typeMetaOf(about), key: keyOf(about), old: copy(old), new: copy(latest), merged, missed, initial };
    });
    const failure = this.#serve(() => this.#plugin.observed(told, this.#config));
    if (failure) throw new Failed({ message: failure, terminal: false, events: [] });
  }

  #serve(call) {
    const before = serve(this);
    try {
      return call();
    } finally {
      serve(before);
    }
  }

  settle(name, namespace, { controller } = {}) {
    const loop = this.#find(controller);
    for (let call = 0; call < 100; call += 1) {
      const before = this.#version;
      const outcome = this.reconcile(name, namespace, { controller });
      const parent = this.#objects.get(id(loop.for.of, { namespace, name }));
      if (parent) this.#write(parent, outcome, loop.owns.map(({ of }) => of));
      if (this.#version === before || !parent) return outcome;
    }
    throw new Error(`${name} has not settled after 100 calls: each call changes something`);
  }

  #find(name) {
    const loops = this.manifest.controllers;
    const found = loops.filter((loop) => name === undefined || loop.name === name);
    if (found.length !== 1) throw new Error(`name one of the controllers ${loops.map((loop) => loop.name).join(", ")}`);
    return found[0];
  }

  /** Fails the test if the manifest does not allow the result. */
  #check({ status, events }, children) {
    const { name, for: { of: for_ }, owns } = this.#loop;
    if (status && !this.#may("apply", for_, this.#key, "status")) {
      throw new Error(`the manifest lacks \`apply\` of the status of ${kindText(for_)}`);
    }
    if (events.length > 0 && !this.#may("create", EVENT, { namespace: this.#key.namespace ?? "default", name: "" })) {
      throw new Error("the manifest lacks Events: set `events: true`");
    }
    for (const { object } of children) {
      const [of, { namespace }] = [typeMetaOf(object), keyOf(object)];
      if (!owns.some((owned) => sameKind(owned.of, of))) {
        throw new Error(`the controller ${name} does not own ${kindText(of)}: add it to \`owns\``);
      }
      if (namespace && this.#key.namespace && namespace !== this.#key.namespace) {
        throw new Error(`a child of ${keyText(this.#key)} is in the namespace ${namespace}`);
      }
    }
  }

  #write(parent, { children, status }, owned) {
    const { name, namespace, uid, deletionTimestamp } = parent.metadata;
    if (children && !deletionTimestamp) {
      const owner = { ...typeMetaOf(parent), name, uid, controller: true, blockOwnerDeletion: true };
      const wanted = new Set();
      for (const child of children.map(copy)) {
        if (namespace) child.metadata.namespace ??= namespace;
        child.metadata.ownerReferences = [owner];
        const of = id(typeMetaOf(child), keyOf(child));
        wanted.add(of);
        this.#replace(of, merge(this.#objects.get(of) ?? {}, child));
      }
      for (const [of, object] of this.#objects) {
        const isOurs = object.metadata.ownerReferences?.some((reference) => reference.uid === uid);
        if (isOurs && !wanted.has(of) && owned.some((kind) => sameKind(kind, object))) {
          this.#version += 1;
          this.#objects.delete(of);
        }
      }
    }
    if (status) this.#replace(id(typeMetaOf(parent), keyOf(parent)), { ...parent, status: copy(status) });
  }

  #replace(of, object) {
    if (!equal(this.#objects.get(of), object)) this.put(object);
  }

  #may(verb, of, key, subresource) {
    if (this.#refused.some(([refused, kind]) => refused === verb && sameKind(kind, of))) return false;
    return this.manifest.permissions.some((permission) => allows(permission, verb, of, key, subresource));
  }

  // The host, as the plugin sees it.

  #readable(of, key) {
    // A review, and a function that observes, belong to no loop.
    const { controllers, webhooks, observes } = this.manifest;
    const asked = this.#loop ? (this.#asked.get(`${this.#loop.name} ${keyText(this.#key)}`) ?? []) : [];
    const loops = this.#loop ? [this.#loop] : controllers;
    const cached = loops.flatMap(({ for: for_, owns, watches, reads }) => [for_, ...owns, ...watches.map(({ watch }) => watch), ...reads]);
    const known = [...cached, ...webhooks.flatMap(({ reads }) => reads), ...observes].map((watch) => watch.of);
    if (![...known, ...asked].some((kind) => sameKind(kind, of))) {
      throw new ReadError("not-granted", `cannot read the cache: ${kindText(of)} is not cached: add it to \`reads\``);
    }
    if (!this.#may("read", of, key)) {
      throw new ReadError("not-granted", `cannot read the cache: \`read\` of ${kindText(of)} ${keyText(key)} is not granted`);
    }
  }

  get(of, key) {
    this.#readable(of, key);
    return copy(this.#objects.get(id(of, key)));
  }

  list(query) {
    const everywhere = query.namespace === undefined;
    const some = everywhere ? this.manifest.permissions.flatMap(({ namespaces }) => namespaces)[0] : query.namespace;
    this.#readable(query.of, { namespace: some, name: "" });
    const items = this.#select(query).filter((object) => !everywhere || this.#may("read", query.of, keyOf(object)));
    return { items };
  }

  keys(query) {
    return { items: this.list(query).items.map(keyOf) };
  }

  #select({ of, namespace, labels, index }) {
    const declared = this.manifest.indexes.find((found) => found.name === index?.[0] && sameKind(found.of, of));
    if (index && !declared) {
      throw new ReadError("invalid", `the query is not valid: ${kindText(of)} has no index ${index[0]}`);
    }
    const holds = (object) =>
      sameKind(object, of) &&
      (namespace === undefined || object.metadata.namespace === namespace) &&
      matches(labels ?? "", object.metadata.labels ?? {}) &&
      (!index || values(object, declared.path).map(plain).includes(index[1]));
    const order = (object) => `${object.metadata.namespace ?? ""}\0${object.metadata.name}`;
    const found = [...this.#objects.values()].filter(holds);
    return found.sort((one, two) => (order(one) < order(two) ? -1 : 1)).map(copy);
  }

  client(call) {
    const { verb, of, key, subresource } = call;
    const asked = { get: "read", list: "read", logs: "read", evict: "create" }[verb] ?? verb;
    if (!this.#may(asked, of, key, subresource)) {
      const what = subresource ? `${kindText(of)}/${subresource}` : kindText(of);
      throw new ClientError("not-granted", `the request is not granted: \`${asked}\` of ${what} ${keyText(key)}`);
    }
    const at = this.#failures.findIndex(([failed, kind, name]) => failed === verb && sameKind(kind, of) && name === key.name);
    if (at >= 0) throw this.#failures.splice(at, 1)[0][3];
    if (verb === "list") return { items: this.#select({ of, namespace: key.namespace, labels: call.labels }) };
    const old = this.#objects.get(id(of, key));
    if (verb === "get") return copy(there(old, call));
    if (verb === "logs") return there(old, call) && "";
    this.calls.push(copy(call));
    if (verb === "delete" || verb === "evict") {
      if (old) this.remove(of, key.name, key.namespace);
      return undefined;
    }
    return this.#change(call, old);
  }

  #change(call, old) {
    const { verb, of, key, subresource } = call;
    const body = copy(call.body);
    if (verb === "create") {
      if (old) {
        const taken = { code: 409, reason: "already-exists" };
        throw new ClientError("api", `${kindText(of)} ${keyText(key)} exists`, taken);
      }
      body.metadata ??= {};
      body.metadata.name ??= `${body.metadata.generateName ?? ""}${this.#version}`;
      return this.put(body);
    }
    if (verb === "apply" && subresource === undefined) return this.put(merge(old ?? {}, body));
    there(old, call);
    if (verb === "patch" && call.patch !== "merge") {
      throw new Error(`the mock does not know the patch type ${call.patch}: fail or avoid it`);
    }
    if (verb === "patch" || verb === "apply") return this.put(merge(old, body));
    return this.put(subresource === "status" ? { ...old, status: body.status } : body);
  }

  http(request) {
    const url = new URL(request.url);
    const isPlain = url.protocol === "http:";
    const port = Number(url.port || (isPlain ? 80 : 443));
    const granted = this.manifest.http.some(({ host, port: open, plain, methods }) =>
      (host === url.hostname || (host.startsWith("*.") && url.hostname.endsWith(host.slice(1)))) &&
      (open ?? (plain ? 80 : 443)) === port && plain === isPlain && methods.includes(request.method));
    if (!granted) {
      throw new HttpError("not-granted", `the request is not granted: ${request.method} ${request.url}`);
    }
    this.httpCalls.push(request);
    const response = this.#responses.get(`${request.method} ${request.url}`);
    if (!response) throw new Error(`the test does not \`respond\` to ${request.method} ${request.url}`);
    return response;
  }

  log(level, message, fields) {
    this.logs.push({ level, message, fields: Object.fromEntries(fields) });
  }

  metric(change, name, labels, value) {
    const declared = this.manifest.metrics.find((metric) => metric.name === name);
    if (!declared) throw new Error(`the manifest does not declare the metric ${name}`);
    if (declared.labels.length !== labels.length) {
      throw new Error(`the metric ${name} has the labels ${declared.labels.join(", ")}`);
    }
    const series = [name, ...labels].join(" ");
    const old = this.metrics.get(series);
    if (change === "observe") this.metrics.set(series, [...(old ?? []), value]);
    else this.metrics.set(series, change === "add" ? (old ?? 0) + value : value);
  }

  now() {
    return this.#now.getTime();
  }

  random(count) {
    // The same numbers in each test, by a linear congruential generator.
    return Uint8Array.from({ length: count }, () => {
      this.#seed = (this.#seed * 1103515245 + 12345) % 2147483648;
      return this.#seed >>> 16;
    });
  }
}

const id = (of, key) => JSON.stringify([of.apiVersion, of.kind, key.namespace ?? "", key.name]);

/** Returns a copy. Fails, as the host would, if it is not JSON. */
const copy = (value) => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function equal(one, two) {
  if (isObject(one) && isObject(two)) {
    const names = new Set([...Object.keys(one), ...Object.keys(two)]);
    return [...names].every((name) => equal(one[name], two[name]));
  }
  if (Array.isArray(one) && Array.isArray(two)) {
    return one.length === two.length && one.every((value, at) => equal(value, two[at]));
  }
  return one === two;
}

/** Merges by the rules of a JSON merge patch. */
function merge(old, added) {
  if (!isObject(added)) return copy(added);
  const merged = isObject(old) ? copy(old) : {};
  for (const [name, value] of Object.entries(added)) {
    if (value === null) delete merged[name];
    else merged[name] = merge(merged[name], value);
  }
  return merged;
}

function there(object, { of, key }) {
  if (object) return object;
  throw new ClientError("api", `${kindText(of)} ${keyText(key)} is not there`, { code: 404, reason: "not-found" });
}

function allows({ of: granted, verbs, namespaces, names, subresource: part }, verb, of, key, subresource) {
  const group = of.apiVersion.split("/").slice(0, -1).join("/");
  const all = granted.kind === "*" && ["*", of.apiVersion, `${group}/*`].includes(granted.apiVersion);
  return (sameKind(granted, of) || all) && verbs.includes(verb) && part === subresource &&
    (namespaces.length === 0 || namespaces.includes(key.namespace)) && (names.length === 0 || names.includes(key.name));
}

const REQUIREMENT =
  /^\s*(?:!\s*(?<absent>\S+)|(?<of>\S+?)\s+(?<set>in|notin)\s*\((?<members>[^)]*)\)|(?<name>[^\s!=]+)\s*(?:(?<operator>==|=|!=)\s*(?<value>\S*))?)\s*$/;

/** Returns `true` if a label selector of Kubernetes matches. */
export function matches(selector, labels) {
  if (!selector.trim()) return true;
  return selector.split(/,(?![^(]*\))/).every((requirement) => {
    const found = requirement.match(REQUIREMENT)?.groups;
    if (!found) {
      const problem = `${JSON.stringify(requirement)} is no requirement of a label selector`;
      throw new ReadError("invalid", `the query is not valid: ${problem}`);
    }
    const { absent, of, set, members, name, operator, value } = found;
    if (absent) return !(absent in labels);
    if (set) return members.split(",").some((member) => member.trim() === labels[of]) === (set === "in");
    if (!operator) return name in labels;
    return (labels[name] === value) === (operator !== "!=");
  });
}

/** Returns what an object holds at a field path: `spec.volumes[*].name`, `metadata.labels["a.b/c"]`. */
export function values(object, path) {
  let found = [object];
  for (const [, name, every, quoted] of path.matchAll(/\.?(?:([^.[\]]+)|(\[\*\])|\["([^"]*)"\])/g)) {
    found = every
      ? found.flatMap((value) => (Array.isArray(value) ? value : []))
      : found.map((value) => value?.[name ?? quoted]).filter((value) => value !== undefined);
  }
  return found;
}

// What a function knows about its call, and what it can call in the host.

import { HttpError, host } from "./host.js";
import { keyOf, typeMeta, typeMetaOf } from "./kinds.js";

const POD = { apiVersion: "v1", kind: "Pod" };

const text = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? String(value)));

const log = {};
for (const level of ["error", "warn", "info", "debug", "trace"]) {
  log[level] = (message, fields = {}) =>
    host().log(level, message, Object.entries(fields).map(([name, value]) => [name, text(value)]));
}

/** Iterates over all pages. */
function* pages(next) {
  let after;
  do {
    const page = next(after);
    yield* page.items;
    after = page.next;
  } while (after !== undefined);
}

/** Sends requests to the API server in the plugin's name. */
class Client {
  #namespace;

  constructor(namespace) {
    this.#namespace = namespace;
  }

  get(kind, name, { namespace, subresource } = {}) {
    return host().client({ verb: "get", of: typeMeta(kind), key: this.#key(name, namespace), subresource });
  }

  list(kind, { namespace, labels, fields, pageSize = 0 } = {}) {
    const call = { verb: "list", of: typeMeta(kind), key: this.#key("", namespace), labels, fields, limit: pageSize };
    return pages((after) => host().client({ ...call, after }));
  }

  create(object) {
    return host().client(this.#of("create", object));
  }

  update(object, { subresource } = {}) {
    return host().client({ ...this.#of("update", object), subresource });
  }

  apply(object, { subresource, force = false } = {}) {
    return host().client({ ...this.#of("apply", object), subresource, force });
  }

  patch(kind, name, body, { namespace, type = "merge", subresource } = {}) {
    const key = this.#key(name, namespace);
    return host().client({ verb: "patch", of: typeMeta(kind), key, body, patch: type, subresource });
  }

  delete(kind, name, { namespace, propagation = "background", uid, resourceVersion } = {}) {
    const key = this.#key(name, namespace);
    host().client({ verb: "delete", of: typeMeta(kind), key, propagation, uid, resourceVersion });
  }

  evict(pod, { namespace, gracePeriodSeconds } = {}) {
    const key = this.#key(pod, namespace);
    host().client({ verb: "evict", of: POD, key, subresource: "eviction", gracePeriodSeconds });
  }

  logs(pod, { namespace, container, previous = false, sinceSeconds, tailLines, timestamps = false } = {}) {
    const query = { container, previous, sinceSeconds, tailLines, timestamps };
    return host().client({ verb: "logs", of: POD, key: this.#key(pod, namespace), subresource: "log", query });
  }

  #key(name, namespace = this.#namespace) {
    return namespace === null || namespace === undefined ? { name } : { namespace, name };
  }

  #of(verb, object) {
    return { verb, of: typeMetaOf(object), key: keyOf(object), body: object };
  }
}

/** The response of a server. */
class Response {
  constructor({ status, headers, body }) {
    Object.assign(this, { status, headers, body });
  }

  text() {
    return new TextDecoder().decode(this.body);
  }

  json() {
    return JSON.parse(this.text());
  }

  header(name) {
    return this.headers.find(([header]) => header === name.toLowerCase())?.[1];
  }

  errorForStatus() {
    if (this.status >= 200 && this.status < 300) return this;
    throw new HttpError("status", `the server answered with status ${this.status}`, { status: this.status });
  }
}

const http = {
  get: (url, options) => http.request("GET", url, options),
  post: (url, options) => http.request("POST", url, options),
  put: (url, options) => http.request("PUT", url, options),
  delete: (url, options) => http.request("DELETE", url, options),
  request(method, url, { headers = {}, body = "", json, timeout, redirects = 5 } = {}) {
    const sent = Object.entries(headers);
    if (json !== undefined) {
      body = JSON.stringify(json);
      sent.push(["content-type", "application/json"]);
    }
    const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
    return new Response(host().http({ method, url, headers: sent, body: bytes, timeout, redirects }));
  },
};

/** What every function can call in the host. `key` is that of the object that the call is about. */
class CallContext {
  constructor(key, config) {
    this.key = key;
    this.config = config;
    this.log = log;
  }

  get(kind, name, namespace = this.key.namespace) {
    return host().get(typeMeta(kind), namespace === null || namespace === undefined ? { name } : { namespace, name });
  }

  list(kind, options = {}) {
    const query = this.#query(kind, options);
    return pages((after) => host().list({ ...query, after }));
  }

  keys(kind, options = {}) {
    const query = this.#query(kind, options);
    return pages((after) => host().keys({ ...query, after }));
  }

  now() {
    return new Date(host().now());
  }

  random(count) {
    return host().random(count);
  }

  #query(kind, { namespace = this.key.namespace, labels, index, fields = [], pageSize = 0 }) {
    return { of: typeMeta(kind), namespace: namespace ?? undefined, labels, index, fields: [...fields], limit: pageSize };
  }
}

/** One review. It may not write, because the API server may still reject the request. */
export class ReviewContext extends CallContext {}

/** One change. */
export class ObserverContext extends CallContext {
  constructor(key, config) {
    super(key, config);
    this.http = http;
    this.client = new Client(key.namespace);
  }
}

/** One call of a reconcile. */
export class Context extends CallContext {
  #generation;

  constructor(request, config) {
    super(request.key, config);
    this.controller = request.controller;
    this.phase = request.phase;
    this.attempt = request.attempt;
    this.lastError = request.lastError;
    this.http = http;
    this.client = new Client(request.key.namespace);
    this.events = [];
    this.#generation = request.object.metadata?.generation;
  }

  event(reason, message, { warning = false, about } = {}) {
    this.events.push({ reason, message, type: warning ? "Warning" : "Normal", about });
  }

  condition(type, status, reason, message = "") {
    return {
      type,
      status: typeof status === "boolean" ? (status ? "True" : "False") : status,
      reason,
      message,
      lastTransitionTime: this.now().toISOString().replace(/\.\d+Z$/, "Z"),
      ...(this.#generation === undefined ? {} : { observedGeneration: this.#generation }),
    };
  }
}

/**
 * Returns the conditions with `added` instead of the condition of the same type. If its status stays the same,
 * `lastTransitionTime` stays, too.
 */
export function setCondition(conditions, added) {
  const kept = [...(conditions ?? [])];
  const at = kept.findIndex((old) => old.type === added.type);
  if (at < 0) return [...kept, added];
  const same = kept[at].status === added.status && kept[at].lastTransitionTime;
  kept[at] = same ? { ...added, lastTransitionTime: kept[at].lastTransitionTime } : added;
  return kept;
}

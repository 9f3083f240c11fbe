// A plugin as a value: its controllers, and what its manifest says.

import { Context, ObserverContext, ReviewContext } from "./context.js";
import { host } from "./host.js";
import { keyOf, keyText, kindText, sameKind, selects, typeMeta, typeMetaOf } from "./kinds.js";
import { permission, watch, webhook } from "./manifest.js";

const EVENT = { apiVersion: "v1", kind: "Event" };
const DEFINITION = { apiVersion: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition" };

/** Frames of a stack in a message. The log has the others. */
const FRAMES = 8;

/** Fails a reconcile with a message for people. */
export class Failure extends Error {
  constructor(message, { terminal = false, status, events = [] } = {}) {
    super(message);
    this.name = "Failure";
    Object.assign(this, { terminal, status, events });
  }
}

/** An object that should exist because the reconciled object exists, with settings. */
export class Child {
  constructor(object, { adopt = false, replace = false } = {}) {
    Object.assign(this, { object, adopt, replace });
  }
}

/** Returns what was thrown and where, in one line with the innermost frame first. */
export function describeError(thrown) {
  if (!(thrown instanceof Error)) return `thrown: ${typeof thrown === "string" ? thrown : JSON.stringify(thrown)}`;
  return [String(thrown), ...frames(thrown).slice(0, FRAMES)].join(", at ");
}

/** Returns the lines of a stack, without those of this package. Engines write them differently. */
export function frames(error) {
  const lines = (error.stack ?? "").split("\n").map((line) => line.trim());
  const found = [];
  for (const line of lines) {
    // V8: `at name (file:1:2)` or `at file:1:2`. SpiderMonkey: `name@file:1:2`.
    const [, v8, v8Place] = line.match(/^at (?:(.*?) \()?(.*?:\d+:\d+)\)?$/) ?? [];
    const [, other, otherPlace] = line.match(/^(.*?)@(.*:\d+:\d+)$/) ?? [];
    const place = v8Place ?? otherPlace;
    if (place === undefined) continue;
    const name = (v8 ?? other ?? "").replace(/[/<]+$/, "") || "a function";
    // What calls the plugin's function is of this package.
    if (name.includes("callPlugin")) break;
    found.push(`${place.replace(/:\d+$/, "").split("/").pop()} in ${name}`);
  }
  return found;
}

/** Checks an outcome where a mistake can still be told. */
function checked(outcome) {
  if (outcome === undefined || outcome === null) return {};
  if (typeof outcome !== "object" || typeof outcome.then === "function") {
    throw new TypeError("a reconcile returns an outcome or nothing, and is not asynchronous");
  }
  const { children, status, requeueAfter, watches, events = [] } = outcome;
  const unknown = Object.keys(outcome).find((name) => !OUTCOME.includes(name));
  if (unknown) throw new TypeError(`an outcome has no \`${unknown}\`: it has ${OUTCOME.join(", ")}`);
  const result = { status, requeueAfter, events };
  result.children = children?.map((child) => {
    const { object, adopt, replace } = child instanceof Child ? child : new Child(child);
    const of = typeMetaOf(object);
    if (!keyOf(object).name) throw new TypeError(`a child of kind ${kindText(of)} has no \`metadata.name\``);
    return { object, adopt, replace };
  });
  if (requeueAfter !== undefined && !(requeueAfter >= 0)) {
    throw new TypeError(`\`requeueAfter\` is no number of seconds: ${requeueAfter}`);
  }
  result.watches = watches?.map(watch);
  return result;
}

const OUTCOME = ["children", "status", "requeueAfter", "watches", "events"];

/** The plugin's function is called from a function of this name, which ends the stack. */
function callPlugin(called, context, object) {
  return called(context, object);
}

const DECISION = ["denied", "object", "code", "warnings", "audit"];

/** Checks a decision where a mistake can still be told. */
function decided(ofType, decision) {
  if (decision === undefined || decision === null) return {};
  if (typeof decision !== "object" || typeof decision.then === "function") {
    throw new TypeError("a review returns a decision or nothing, and is not asynchronous");
  }
  const unknown = Object.keys(decision).find((name) => !DECISION.includes(name));
  if (unknown) throw new TypeError(`a decision has no \`${unknown}\`: it has ${DECISION.join(", ")}`);
  if (decision.object && ofType === "validating") {
    throw new TypeError("a validating webhook changes no object: declare it with `mutate`");
  }
  return decision;
}

/** Returns what a function of the plugin returns, or why it failed. The log has the stack. */
function attempted(call) {
  try {
    return { result: call() };
  } catch (thrown) {
    if (thrown instanceof Failure) return { failure: thrown.message };
    logStack(thrown);
    return { failure: describeError(thrown) };
  }
}

function logStack(thrown) {
  // V8 begins a stack with the message, and SpiderMonkey does not.
  const stack = thrown?.stack ?? "";
  host().log("error", stack.startsWith(String(thrown)) ? stack : `${String(thrown)}\n${stack}`, []);
}

/** A plugin. */
export class Plugin {
  #controllers = new Map();
  #handlers = new Map();
  #observers = [];
  #permissions;
  #manifest;

  constructor(
    description,
    { version = "0.1.0", crds = [], permissions = [], http = [], indexes = [], configSchema, instances = "reuse" } = {},
  ) {
    this.#permissions = permissions.map(permission);
    if (crds.length > 0) {
      const names = crds.map((crd) => crd.metadata.name);
      this.#permissions.push(permission({ kind: DEFINITION, verbs: ["apply"], names }));
    }
    this.#manifest = {
      version,
      description,
      indexes: indexes.map(({ name, kind, path }) => ({ name, of: typeMeta(kind), path })),
      observes: [],
      crds: crds.map((crd) => JSON.stringify(crd)),
      configSchema: configSchema && JSON.stringify(configSchema),
      instances,
      metrics: [],
      http: http.map(({ host, port, plain = false, methods }) => ({ host, port, plain, methods: [...methods] })),
      webhooks: [],
    };
  }

  controller(kind, options, reconcile) {
    if (typeof options === "function") [options, reconcile] = [{}, options];
    const { owns = [], reads = [], watches = [], status = true, events = false, finalizer, ...more } = options;
    const { name, namespaces, labels, when, maxConcurrency = 1, resync, timeout } = more;
    const selected = typeof kind === "object" && !kind.apiVersion ? kind : { kind };
    const given = Object.entries({ namespaces, labels, when }).filter(([, value]) => value !== undefined);
    const for_ = watch({ ...selected, ...Object.fromEntries(given) });
    const loop = {
      name: name ?? for_.of.kind.toLowerCase(),
      for: for_,
      owns: owns.map(watch),
      watches: watches.map(([of, mapping]) => ({ watch: watch(of), mapping })),
      reads: reads.map(watch),
      maxConcurrency,
      // Rounded up: 0 is never.
      resyncSeconds: resync === undefined ? undefined : Math.ceil(resync),
      timeoutMs: timeout === undefined ? undefined : Math.round(timeout * 1000),
      finalizer,
    };
    if (this.#controllers.has(loop.name)) {
      throw new Error(`two controllers have the name ${loop.name}: give one of them another \`name\``);
    }
    this.#controllers.set(loop.name, { loop, reconcile, status, events });
    return this;
  }

  observe(kinds, observer) {
    for (const watched of (Array.isArray(kinds) ? kinds : [kinds]).map(watch)) {
      if (this.#observers.some(({ of }) => sameKind(of, watched.of))) {
        throw new Error(`${kindText(watched.of)} is observed twice: observe it once, with a \`Watch\` that covers both`);
      }
      this.#observers.push({ of: watched.of, observer });
      this.#manifest.observes.push(watched);
    }
    return this;
  }

  validate(name, options, handler) {
    return this.#webhook(name, "validating", { ...options, reinvoke: false }, handler);
  }

  mutate(name, options, handler) {
    return this.#webhook(name, "mutating", options, handler);
  }

  #webhook(name, ofType, options, handler) {
    if (this.#handlers.has(name)) throw new Error(`two webhooks have the name ${name}`);
    this.#handlers.set(name, { ofType, handler });
    this.#manifest.webhooks.push(webhook(name, ofType, options));
    return this;
  }

  counter(name, help, labels = []) {
    this.#metric(name, "counter", help, labels);
    const add = (more, ...values) => host().metric("add", name, values, more);
    return { name, add, inc: (...values) => add(1, ...values) };
  }

  gauge(name, help, labels = []) {
    this.#metric(name, "gauge", help, labels);
    return {
      name,
      add: (more, ...values) => host().metric("add", name, values, more),
      set: (value, ...values) => host().metric("set", name, values, value),
    };
  }

  histogram(name, help, labels = [], buckets = []) {
    this.#metric(name, "histogram", help, labels, buckets);
    return { name, observe: (value, ...values) => host().metric("observe", name, values, value) };
  }

  #metric(name, ofType, help, labels, buckets = []) {
    this.#manifest.metrics.push({ name, ofType, help, labels: [...labels], buckets: buckets.map(String) });
  }

  /** Returns the contract's form of what the plugin is and needs. */
  manifest() {
    const controllers = [...this.#controllers.values()];
    const read = [...this.#manifest.observes, ...this.#manifest.webhooks.flatMap(({ reads }) => reads)];
    const reading = read.map(({ of, namespaces }) => permission({ kind: of, verbs: ["read"], namespaces }));
    return {
      ...this.#manifest,
      controllers: controllers.map(({ loop }) => loop),
      permissions: [...controllers.flatMap(permissions), ...reading, ...this.#permissions],
    };
  }

  /** Calls the function of a controller. Returns an outcome or a failure. */
  reconcile(request, config = {}) {
    const controller = this.#controllers.get(request.controller);
    if (!controller) return { failure: { message: `the plugin has no controller ${request.controller}`, terminal: true, events: [] } };
    const context = new Context(request, config);
    try {
      const outcome = checked(callPlugin(controller.reconcile, context, request.object));
      return { outcome: { ...outcome, events: [...context.events, ...(outcome.events ?? [])] } };
    } catch (thrown) {
      if (thrown instanceof Failure) {
        const { message, terminal, status, events } = thrown;
        return { failure: { message, terminal, status, events: [...context.events, ...events] } };
      }
      logStack(thrown);
      return { failure: { message: describeError(thrown), terminal: false, events: context.events } };
    }
  }

  /** Calls the function of a webhook. Returns its decision as `result`, or why it failed as `failure`. */
  review(name, review, config = {}) {
    const webhook = this.#handlers.get(name);
    if (!webhook) return { failure: `the plugin has no webhook ${name}` };
    const context = new ReviewContext(review.key, config);
    return attempted(() => decided(webhook.ofType, callPlugin(webhook.handler, context, review)));
  }

  /** Calls the functions that observe these changes, until one fails. Returns why it failed. */
  observed(changes, config = {}) {
    for (const change of changes) {
      // A kind that is observed by its name is no part of a pattern.
      const found = this.#observers.find(({ of }) => sameKind(of, change.of)) ?? this.#observers.find(({ of }) => selects(of, change.of));
      if (!found) continue;
      const context = new ObserverContext(change.key, config);
      const { failure } = attempted(() => callPlugin(found.observer, context, change));
      if (failure) return `cannot observe ${kindText(change.of)} ${keyText(change.key)}: ${failure}`;
    }
    return undefined;
  }
}

/** Returns the permissions that a controller needs. */
function permissions({ loop, status, events }) {
  const of = (watched, verbs, subresource) =>
    permission({ kind: watched.of, verbs, subresource, namespaces: watched.namespaces });
  return [
    of(loop.for, ["read"]),
    ...(status ? [of(loop.for, ["apply"], "status")] : []),
    ...(loop.finalizer === undefined ? [] : [of(loop.for, ["patch"])]),
    ...(events ? [permission({ kind: EVENT, verbs: ["create"], namespaces: loop.for.namespaces })] : []),
    ...loop.owns.map((child) => of(child, ["read", "apply", "delete"])),
    ...loop.watches.map(({ watch }) => of(watch, ["read"])),
    ...loop.reads.map((read) => of(read, ["read"])),
  ];
}

/** Returns the plugin for a configuration: the plugin itself, or what a function makes of the configuration. */
export function define(plugin, config) {
  const defined = typeof plugin === "function" ? plugin(config) : plugin;
  if (!(defined instanceof Plugin)) throw new TypeError("`plugin` is no Plugin, and no function that returns one");
  if (Object.keys(config).length > 0 && defined.manifest().configSchema === undefined) {
    throw new Failure("this plugin takes no configuration: give it a `configSchema`");
  }
  return defined;
}

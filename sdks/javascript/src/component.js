// The contract: what the component exports and imports.

import * as cache from "pilothouse:plugin/cache@0.1.0";
import * as client from "pilothouse:plugin/client@0.1.0";
import { now } from "pilothouse:plugin/clock@0.1.0";
import { send } from "pilothouse:plugin/http@0.1.0";
import { write } from "pilothouse:plugin/log@0.1.0";
import * as metrics from "pilothouse:plugin/metrics@0.1.0";
import { bytes } from "pilothouse:plugin/random@0.1.0";

import { ClientError, HttpError, ReadError, serve } from "./host.js";
import { keyOf, typeMetaOf } from "./kinds.js";
import { Failure, define, describeError } from "./plugin.js";

const optional = (value) => (value === undefined || value === null ? undefined : JSON.stringify(value));

/** Calls an import. What it throws carries the contract's error. */
function called(of, error) {
  try {
    return of();
  } catch (thrown) {
    throw thrown?.payload === undefined ? thrown : error(thrown.payload);
  }
}

function readError({ tag, val }) {
  switch (tag) {
    case "not-granted":
      return new ReadError(tag, `cannot read the cache: ${val}`);
    case "too-large":
      return new ReadError(tag, `an object of ${val} bytes is too large to be read as a whole: read some of its fields`);
    default:
      return new ReadError(tag, `the query is not valid: ${val}`);
  }
}

function clientError({ tag, val }) {
  switch (tag) {
    case "not-granted":
      return new ClientError(tag, `the request is not granted: ${val}`);
    case "api":
      return new ClientError(
        tag,
        `the API server rejected the request with ${val.code} ${val.reason}: ${val.message}`,
        val,
      );
    case "unreachable":
      return new ClientError(tag, `the API server did not answer: ${val}`);
    default:
      return new ClientError(tag, `the request is not valid: ${val}`);
  }
}

const HTTP_ERRORS = {
  "not-granted": (why) => `the request is not granted: ${why}`,
  invalid: (why) => `the request is not valid: ${why}`,
  timeout: () => "the server did not answer in time",
  unreachable: (why) => `the server cannot be reached: ${why}`,
  "too-large": () => "the response has more than 4 MiB",
  "too-many": () => "the plugin sends too many requests",
};

function request(call) {
  const { verb, of, key, subresource, body } = call;
  const preconditions = { uid: call.uid, resourceVersion: call.resourceVersion };
  switch (verb) {
    case "get":
      return JSON.parse(client.get(of, key, subresource));
    case "list": {
      const { labels, fields, limit, after } = call;
      const page = client.list({ of, namespace: key.namespace, labels, fields, limit, after });
      return { items: page.items.map((item) => JSON.parse(item)), next: page.next };
    }
    case "create":
      return JSON.parse(client.create(JSON.stringify(body)));
    case "update":
      return JSON.parse(client.update(JSON.stringify(body), subresource));
    case "patch":
      return JSON.parse(client.patch(of, key, { tag: call.patch, val: JSON.stringify(body) }, subresource));
    case "apply":
      return JSON.parse(client.apply(JSON.stringify(body), subresource, call.force));
    case "delete":
      return client["delete"](of, key, call.propagation, preconditions);
    case "evict":
      return client.evict({ pod: key, gracePeriodSeconds: call.gracePeriodSeconds, preconditions });
    case "logs":
      return client.logs(key, call.query);
  }
}

/** The host that runs this component. */
const componentHost = {
  get(of, key) {
    const found = called(() => cache.get(of, key), readError);
    return found === undefined ? undefined : JSON.parse(found);
  },
  list(query) {
    const page = called(() => cache.list(query), readError);
    return { items: page.items.map((item) => JSON.parse(item)), next: page.next };
  },
  keys: (query) => called(() => cache.keys(query), readError),
  client: (call) => called(() => request(call), clientError),
  http({ timeout, ...sent }) {
    const timeoutMs = timeout === undefined ? undefined : Math.round(timeout * 1000);
    return called(() => send({ ...sent, timeoutMs }), ({ tag, val }) => new HttpError(tag, HTTP_ERRORS[tag](val)));
  },
  log: (level, message, fields) => write(level, message, fields),
  metric: (change, name, labels, value) => metrics[change](name, labels, value),
  now: () => Number(now()),
  random: (count) => bytes(count),
};

function event({ reason, message, type = "Normal", about }) {
  return {
    about: about && { ...typeMetaOf(about), ...keyOf(about) },
    ofType: type.toLowerCase(),
    reason,
    message,
  };
}

function wireOutcome({ children, status, requeueAfter, watches, events }) {
  const child = ({ object, adopt, replace }) => ({ object: JSON.stringify(object), adopt, replace });
  return {
    children: children ? { tag: "desired", val: children.map(child) } : { tag: "unchanged" },
    status: optional(status),
    requeueAfter: requeueAfter === undefined ? undefined : BigInt(Math.round(requeueAfter * 1000)),
    watches: watches ? { tag: "desired", val: watches } : { tag: "unchanged" },
    events: events.map(event),
  };
}

function wireFailure({ message, terminal, status, events }) {
  return { message, terminal, status: optional(status), events: events.map(event) };
}

const parsed = (text) => (text === undefined ? undefined : JSON.parse(text));

function changeOf({ of, old, "new": latest, merged, missed, initial }) {
  const [before, after] = [parsed(old), parsed(latest)];
  return { of, key: keyOf(after ?? before), old: before, new: after, merged, missed, initial };
}

function wireDecision({ denied, code, warnings = [], audit = {} }) {
  return { denied, code, warnings: [...warnings], auditAnnotations: Object.entries(audit) };
}

/** Returns what the component exports as the contract's `controller`, `observer` and `admission`. */
export function exported(plugin) {
  // An instance serves one configuration. So this holds one plugin, or a few.
  const defined = new Map();
  const configured = (text) => {
    if (!defined.has(text)) {
      const config = JSON.parse(text);
      defined.set(text, [define(plugin, config), config]);
    }
    return defined.get(text);
  };
  /** Calls the plugin. Throws a text, as the contract has it. */
  const calls = (config, call) => {
    serve(componentHost);
    try {
      return call(...configured(config));
    } catch (thrown) {
      throw typeof thrown === "string" ? thrown : describeError(thrown);
    }
  };
  const decide = (config, { webhook, object, old, ...review }) =>
    calls(config, (served, value) => {
      const { result, failure } = served.review(webhook, { ...review, object: parsed(object), old: parsed(old) }, value);
      if (failure) throw failure;
      return [wireDecision(result), optional(result.object)];
    });
  const observer = {
    observe: (config, changes) =>
      calls(config, (served, value) => {
        const failure = served.observed(changes.map(changeOf), value);
        if (failure) throw failure;
      }),
  };
  const admission = { validate: (config, review) => decide(config, review)[0], mutate: decide };
  const controller = {
    describe(config) {
      try {
        return configured(config)[0].manifest();
      } catch (thrown) {
        throw thrown instanceof Failure ? thrown.message : describeError(thrown);
      }
    },

    reconcile(config, request) {
      serve(componentHost);
      let failure;
      try {
        const [served, value] = configured(config);
        const result = served.reconcile({ ...request, object: JSON.parse(request.object) }, value);
        if (result.outcome) return wireOutcome(result.outcome);
        failure = wireFailure(result.failure);
      } catch (thrown) {
        // The outcome holds what JSON does not have, or the plugin cannot be made.
        failure = { message: describeError(thrown), terminal: false, events: [] };
      }
      // A complete failure: anything else would trap.
      throw failure;
    },
  };
  return { controller, observer, admission };
}

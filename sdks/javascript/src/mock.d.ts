/**
 * A mock host for native tests: the plugin's own code runs without a cluster and without a sandbox.
 *
 * ```ts
 * import assert from "node:assert/strict";
 * import { test } from "node:test";
 * import { MockHost } from "@pilothouse/sdk/mock";
 * import { plugin } from "../src/plugin.ts";
 *
 * test("it greets", () => {
 *   const hello = { apiVersion: "example.com/v1", kind: "Hello", metadata: { name: "a", namespace: "b" }, spec: { to: "you" } };
 *   assert.equal(new MockHost(plugin, [hello]).reconcile("a", "b").children?.length, 1);
 * });
 * ```
 *
 * It refuses reads, requests, children, a status and Events that the manifest does not ask for. It is not an API server: it
 * does not validate by a schema, and an applied list replaces the old one. Field selectors are ignored.
 */

import type { AnyObject, ClientError, Event, Kind, KubernetesObject, Mutation, Operation, Plugin, Verb } from "./index.js";

/** A plugin, or a function that makes one for the administrator's configuration. */
export type Define = Plugin | ((config: any) => Plugin);

/** A call that failed. `failure` is what the host gets. */
export class Failed extends Error {
  readonly failure: { message: string; terminal: boolean; status?: AnyObject; events: Event[] };
}

export interface MockOutcome {
  children?: AnyObject[];
  status?: any;
  requeueAfter?: number;
  events: Event[];
}

export interface ReconcileOptions {
  /** Needed if the plugin has several. */
  controller?: string;
  phase?: "live" | "deleting" | "gone";
  attempt?: number;
  lastError?: string;
}

export class MockHost {
  /** `refuse` lists verbs and kinds that the administrator does not grant. */
  constructor(
    plugin: Define,
    objects?: KubernetesObject | KubernetesObject[],
    options?: { config?: object; now?: string | Date; refuse?: [Verb, Kind][] },
  );

  /** What `describe` returns. */
  readonly manifest: any;
  /** The requests to the API server that changed something, in order. */
  readonly calls: { verb: string; of: { apiVersion: string; kind: string }; key: { namespace?: string; name: string }; body?: any }[];
  readonly httpCalls: { method: string; url: string; headers: [string, string][]; body: Uint8Array }[];
  readonly logs: { level: string; message: string; fields: { [name: string]: string } }[];
  /** Those of outcomes and failures, in order. */
  readonly events: Event[];
  /** By name and label values, separated by blanks: the last value of a gauge, the sum of a counter, the list of a histogram. */
  readonly metrics: Map<string, any>;

  /** Adds or replaces an object. Fills in `uid`, `resourceVersion` and `generation`. */
  put<K extends KubernetesObject>(object: K): K;
  /** Removes an object at once. */
  remove(kind: Kind, name: string, namespace?: string): void;
  /** Returns an object of the cluster. */
  find<K = AnyObject>(kind: Kind, name: string, namespace?: string): K | undefined;
  /** Sets the response to a request to another server. A `body` that is no text is sent as JSON. */
  respond(method: string, url: string, status?: number, body?: unknown): void;
  /** Fails the next such request to the API server. */
  fail(verb: string, kind: Kind, name: string, error: ClientError): void;
  /** Calls the plugin for an object, and returns the outcome without writing it. Throws `Failed` if the reconcile fails. */
  reconcile(name: string, namespace?: string, options?: ReconcileOptions): MockOutcome;
  /**
   * Calls a webhook as the API server does, and returns its decision. Without `operation`, `object` is created. With `old`, `old`
   * is changed to `object`, or deleted if `object` is missing. Throws `Failed` if the function throws.
   */
  review(
    webhook: string,
    object: KubernetesObject | undefined,
    old?: KubernetesObject,
    options?: {
      operation?: Operation;
      subresource?: string;
      user?: { name?: string; uid?: string; groups?: string[] };
      dryRun?: boolean;
    },
  ): Mutation;
  /** Calls the functions that observe these changes. Throws `Failed` if one throws. */
  observe(
    ...changes: { old?: KubernetesObject; new?: KubernetesObject; merged?: number; missed?: boolean; initial?: boolean }[]
  ): void;
  /** Reconciles and writes the outcome, until a call changes nothing. Returns the last outcome. */
  settle(name: string, namespace?: string, options?: { controller?: string }): MockOutcome;
}

/** Returns `true` if a label selector of Kubernetes matches. */
export function matches(selector: string, labels: { [name: string]: string }): boolean;
/** Returns what an object holds at a field path. */
export function values(object: object, path: string): any[];

/**
 * Write a Pilothouse plugin in JavaScript or TypeScript.
 *
 * A plugin is a `Plugin` with a function for each kind that it reconciles. The function takes the object, reads what it needs
 * from the host's cache, and returns what should exist. The host does the rest: it watches and caches, queues and retries,
 * applies children and status, and deletes children that are no longer wanted.
 *
 * ```ts
 * import { Plugin, crd } from "@pilothouse/sdk";
 *
 * const HELLO = "example.com/v1/Hello";
 *
 * export const plugin = new Plugin("Greets.", { crds: [crd(HELLO, { spec: { to: { type: "string" } } })] });
 *
 * plugin.controller(HELLO, { owns: ["v1/ConfigMap"], status: false }, (ctx, hello) => ({
 *   children: [
 *     { apiVersion: "v1", kind: "ConfigMap", metadata: { name: ctx.key.name }, data: { text: `Hello, ${hello.spec.to}!` } },
 *   ],
 * }));
 * ```
 */

/** What JSON can hold. */
export type Json = string | number | boolean | null | undefined | Json[] | { [name: string]: Json };

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export interface ObjectMeta {
  name?: string;
  generateName?: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: { [name: string]: string };
  annotations?: { [name: string]: string };
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
}

/** A Kubernetes object. Extend it for a kind, or use it as it is. */
export interface KubernetesObject {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
}

/** An object of any kind. */
export interface AnyObject extends KubernetesObject {
  [field: string]: any;
}

export interface TypeMeta {
  apiVersion: string;
  kind: string;
}

/** A kind of object: `v1/ConfigMap`, `apps/v1/Deployment`, or a `TypeMeta`. */
export type Kind = string | TypeMeta;

/** Identifies one object of a kind. Cluster-scoped kinds have no namespace. */
export interface Key {
  namespace?: string;
  name: string;
}

export function typeMeta(kind: Kind): TypeMeta;
export function typeMetaOf(object: KubernetesObject): TypeMeta;
export function keyOf(object: KubernetesObject): Key;

export type Verb = "read" | "create" | "update" | "patch" | "apply" | "delete";
export type Subresource = "status" | "scale" | "eviction" | "log" | "approval" | "ephemeral-containers" | "resize";

/**
 * Selects changes. All tests except `cel` compare an object with its previous state. They let every change pass if the object
 * is new or gone, negated or not.
 */
export class Predicate {
  private constructor();
  /** Changes of `metadata.generation`. For most kinds, that means changes of the spec. */
  static generation(): Predicate;
  static labels(): Predicate;
  static annotations(): Predicate;
  static finalizers(): Predicate;
  /** The change that sets `metadata.deletionTimestamp`. */
  static deletion(): Predicate;
  /** Changes of `metadata.resourceVersion`: everything except a resync. */
  static resourceVersion(): Predicate;
  /** Changes for which a CEL expression over `object` and `old` is true. */
  static cel(expression: string): Predicate;
  or(other: Predicate): Predicate;
  and(other: Predicate): Predicate;
  not(): Predicate;
}

/** A kind that the host caches for the plugin, and which of its objects. */
export interface Watch {
  kind: Kind;
  /** Empty means every granted namespace. */
  namespaces?: string[];
  /** A label selector. Other objects are not watched. */
  labels?: string;
  /** A field selector by which the API server can select this kind. Other objects are not watched. */
  fields?: string;
  /** Caches `apiVersion`, `kind` and metadata only. */
  metadataOnly?: boolean;
  /** Field paths that are not cached. */
  without?: string[];
  /** Caches the objects compressed, for large kinds that are rarely read. */
  compressed?: boolean;
  /** Which changes matter. Without it, every change does. */
  when?: Predicate;
  /** Kinds that are no part of a pattern, for `Plugin.observe`. They may be patterns themselves. */
  excluding?: Kind[];
}

/** A kind, or a `Watch` for some of its objects. */
export type WatchLike = Kind | Watch;

/** Which keys a changed object concerns. */
export interface Mapping {
  readonly tag: "owner" | "any-owner" | "same-key" | "label" | "index";
  readonly val?: string;
}

export const Mapping: {
  /** The controlling owner reference, if it names an object of the controller's kind. */
  owner(): Mapping;
  /** All owner references that name an object of the controller's kind. */
  anyOwner(): Mapping;
  /** The same namespace and name as the changed object. */
  sameKey(): Mapping;
  /** The name in this label of the changed object, in the same namespace. */
  label(name: string): Mapping;
  /** Every object of the controller's kind that holds the changed object's name in this index. */
  index(name: string): Mapping;
};

/** What the plugin may do, if the administrator grants it. */
export interface Permission {
  kind: Kind;
  verbs: Verb[];
  subresource?: Subresource;
  /** Empty means every namespace. */
  namespaces?: string[];
  /** Empty means every name. */
  names?: string[];
}

/** Servers that the plugin sends requests to. */
export interface HttpPermission {
  /** A host name, `*.example.com` for all names below one, or an IP address. */
  host: string;
  /** In upper case, such as `POST`. */
  methods: string[];
  /** 443 by default, or 80 for `plain`. */
  port?: number;
  /** `true` for `http://` instead of `https://`. */
  plain?: boolean;
}

/** Finds cached objects by the value of a field. */
export interface Index {
  /** Unique within the plugin. */
  name: string;
  /** A kind that a controller is for, owns, watches or reads. */
  kind: Kind;
  /** A field path, such as `spec.nodeName` or `spec.volumes[*].configMap.name`. */
  path: string;
}

/** A JSON schema. */
export type Schema = { [name: string]: Json };

/** The schema of `conditions` in a status. Server-side apply merges the list by `type`. */
export const CONDITIONS: Schema;

export interface CrdOptions {
  /** The name of each field, and its JSON schema. */
  spec: { [name: string]: Schema };
  /** As `spec`. With it, the kind has the subresource `status`. */
  status?: { [name: string]: Schema };
  /** The fields of `spec` that must be there. */
  required?: string[];
  plural?: string;
  singular?: string;
  shortNames?: string[];
  /** Columns that `kubectl get` prints. A `path` is such as `.spec.replicas`. */
  columns?: { name: string; path: string; type?: "string" | "integer" | "number" | "boolean" | "date" }[];
  namespaced?: boolean;
}

/** Returns the CustomResourceDefinition of a kind with one version. For more, give `Plugin` an object of your own. */
export function crd(kind: string, options: CrdOptions): AnyObject;

/** A condition in a status. */
export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  lastTransitionTime: string;
  observedGeneration?: number;
}

/**
 * Returns the conditions with `added` instead of the condition of the same type. If its status stays the same,
 * `lastTransitionTime` stays, too. So a reconcile that finds nothing new changes nothing.
 */
export function setCondition(conditions: Condition[] | undefined, added: Condition): Condition[];

/** An Event of Kubernetes, as `kubectl describe` shows it. */
export interface Event {
  /** Why, in one word of `UpperCamelCase`. */
  reason: string;
  /** One sentence for people. */
  message: string;
  type?: "Normal" | "Warning";
  /** The object that it is about. Without it, that is the reconciled object. */
  about?: KubernetesObject;
}

/** An object that should exist because the reconciled object exists, with settings. */
export class Child<K extends KubernetesObject = KubernetesObject> {
  /**
   * With `adopt`, the host may take over an existing object that this plugin did not create. With `replace`, it may delete the
   * object and create it again, when a field is immutable.
   */
  constructor(object: K, options?: { adopt?: boolean; replace?: boolean });
  readonly object: K;
}

/** What should exist after this reconcile. An empty outcome changes nothing, and waits for the next change. */
export interface Outcome {
  /** The complete list of children. The host deletes others that this plugin created for the object. */
  children?: (KubernetesObject | Child)[];
  /** The complete status. */
  status?: object;
  /** Seconds until the next call, even if nothing changes. */
  requeueAfter?: number;
  /** Kinds that this key reads and that are known only at run time. */
  watches?: WatchLike[];
  /** Written after the status. `Context.event` adds to them. */
  events?: Event[];
}

/**
 * Fails a reconcile with a message for people. The host retries with a growing delay, or if it is `terminal`, waits until the
 * object or a child changes. Everything else that is thrown fails a reconcile too: its message then names what was thrown and
 * where.
 */
export class Failure extends Error {
  constructor(message: string, options?: { terminal?: boolean; status?: object; events?: Event[] });
  readonly terminal: boolean;
  readonly status?: object;
  readonly events: Event[];
}

/** A read from the cache failed. */
export class ReadError extends Error {
  readonly kind: "not-granted" | "invalid" | "too-large";
}

/** A request to the API server failed. */
export class ClientError extends Error {
  constructor(
    kind: "not-granted" | "invalid" | "api" | "unreachable",
    message: string,
    status?: { code?: number; reason?: string; causes?: [string, string][] },
  );
  readonly kind: "not-granted" | "invalid" | "api" | "unreachable";
  /** The HTTP status code, if the API server rejected the request. */
  readonly code: number;
  /** The reason of Kubernetes in the contract's spelling, such as `not-found` or `conflict`. */
  readonly reason: string;
  readonly causes: [string, string][];
}

/** No response arrived, or `Response.errorForStatus` rejected it. */
export class HttpError extends Error {
  readonly kind: "not-granted" | "invalid" | "timeout" | "unreachable" | "too-large" | "too-many" | "status";
  readonly status?: number;
}

/** Writes lines to the host's log. A message is constant; values that vary are fields. */
export interface Log {
  error(message: string, fields?: object): void;
  warn(message: string, fields?: object): void;
  info(message: string, fields?: object): void;
  debug(message: string, fields?: object): void;
  trace(message: string, fields?: object): void;
}

/** A namespace: that of the reconciled object by default. `null` is for cluster-scoped kinds, and for all namespaces. */
export type Namespace = string | null;

export interface ListOptions {
  namespace?: Namespace;
  /** A label selector. */
  labels?: string;
  pageSize?: number;
}

/** Sends requests to the API server in the plugin's name. Each needs a permission, and throws a `ClientError` if it fails. */
export interface Client {
  get<K = AnyObject>(kind: Kind, name: string, options?: { namespace?: Namespace; subresource?: Subresource }): K;
  list<K = AnyObject>(kind: Kind, options?: ListOptions & { fields?: string }): Generator<K>;
  create<K extends object>(object: K): K & AnyObject;
  update<K extends KubernetesObject>(object: K, options?: { subresource?: Subresource }): K;
  apply<K extends KubernetesObject>(object: K, options?: { subresource?: Subresource; force?: boolean }): K;
  patch<K = AnyObject>(
    kind: Kind,
    name: string,
    body: object,
    options?: { namespace?: Namespace; type?: "json" | "merge" | "strategic-merge"; subresource?: Subresource },
  ): K;
  delete(
    kind: Kind,
    name: string,
    options?: {
      namespace?: Namespace;
      propagation?: "background" | "foreground" | "orphan";
      uid?: string;
      resourceVersion?: string;
    },
  ): void;
  evict(pod: string, options?: { namespace?: Namespace; gracePeriodSeconds?: number }): void;
  logs(
    pod: string,
    options?: {
      namespace?: Namespace;
      container?: string;
      previous?: boolean;
      sinceSeconds?: number;
      tailLines?: number;
      timestamps?: boolean;
    },
  ): string;
}

export interface HttpOptions {
  headers?: { [name: string]: string };
  body?: string | Uint8Array;
  /** Encoded as the body. Sets `Content-Type`. */
  json?: unknown;
  /** Seconds, 10 by default. */
  timeout?: number;
  redirects?: number;
}

/** The response of a server. */
export interface Response {
  readonly status: number;
  /** Names are in lower case. */
  readonly headers: [string, string][];
  readonly body: Uint8Array;
  text(): string;
  json(): any;
  header(name: string): string | undefined;
  /** Throws an `HttpError` unless the status is 2xx. */
  errorForStatus(): Response;
}

/** Sends requests to servers outside the cluster's API. Each needs an `HttpPermission`. */
export interface Http {
  get(url: string, options?: HttpOptions): Response;
  post(url: string, options?: HttpOptions): Response;
  put(url: string, options?: HttpOptions): Response;
  delete(url: string, options?: HttpOptions): Response;
  request(method: string, url: string, options?: HttpOptions): Response;
}

/** What every function can call in the host. */
export interface CallContext {
  /** The key of the object that the call is about. */
  readonly key: Key;
  /** The administrator's configuration. */
  readonly config: any;
  readonly log: Log;

  /** Returns an object of the cache, or `undefined` if the cluster has no such object. */
  get<K = AnyObject>(kind: Kind, name: string, namespace?: Namespace): K | undefined;
  /**
   * Iterates over objects of the cache, ordered by namespace and name. `index` is the name of an index in the manifest and a
   * value. With `fields`, only these field paths are returned.
   */
  list<K = AnyObject>(kind: Kind, options?: ListOptions & { index?: [string, string]; fields?: string[] }): Generator<K>;
  /** Iterates over the keys of objects of the cache. Changes of the objects wake no reconcile. */
  keys(kind: Kind, options?: ListOptions & { index?: [string, string] }): Generator<Key>;
  /** Returns when this call began. */
  now(): Date;
  /** Returns random bytes from the host's generator, fit for secrets. At most 65,536. */
  random(count: number): Uint8Array;
}

/** One review. It may not write, because the API server may still reject the request. */
export interface ReviewContext extends CallContext {}

/** One change. */
export interface ObserverContext extends CallContext {
  readonly client: Client;
  readonly http: Http;
}

/** One call of a reconcile. Its reads are tracked: the reconcile runs again when their results change. */
export interface Context extends CallContext {
  /** The controller's name in the manifest. */
  readonly controller: string;
  /** `gone` comes with the last known state of the object. */
  readonly phase: "live" | "deleting" | "gone";
  /** 1 for the first attempt after a success. */
  readonly attempt: number;
  /** Why the previous attempt failed, if `attempt` is greater than 1. */
  readonly lastError?: string;
  readonly client: Client;
  readonly http: Http;

  /** Adds an Event to the outcome, or to the failure. Needs `events: true` of the controller. */
  event(reason: string, message: string, options?: { warning?: boolean; about?: KubernetesObject }): void;
  /** Returns a condition of the reconciled object, for `setCondition`. */
  condition(type: string, status: boolean | "True" | "False" | "Unknown", reason: string, message?: string): Condition;
}

export interface ControllerOptions {
  /** Instead of the kind in lower case. */
  name?: string;
  /** Kinds of children. */
  owns?: WatchLike[];
  /** Kinds that the reconcile reads from the cache. A change of what it read wakes it. */
  reads?: WatchLike[];
  /** Kinds that it does not read, and which keys their changes concern. */
  watches?: [WatchLike, Mapping][];
  namespaces?: string[];
  labels?: string;
  when?: Predicate;
  /** `false` if the reconcile never writes a status. */
  status?: boolean;
  /** `true` if it writes Events. */
  events?: boolean;
  /** The reconcile runs with the phase `deleting` before an object goes. */
  finalizer?: string;
  maxConcurrency?: number;
  /** Seconds after which every key is reconciled again, 36,000 by default, 0 for never. */
  resync?: number;
  /** Seconds that a call may take, 10 by default. */
  timeout?: number;
}

export interface Counter {
  readonly name: string;
  inc(...labels: string[]): void;
  add(more: number, ...labels: string[]): void;
}

export interface Gauge {
  readonly name: string;
  set(value: number, ...labels: string[]): void;
  add(more: number, ...labels: string[]): void;
}

export interface Histogram {
  readonly name: string;
  observe(value: number, ...labels: string[]): void;
}

export interface PluginOptions {
  version?: string;
  /** CustomResourceDefinitions, which the host applies before the controllers start. */
  crds?: AnyObject[];
  /** Permissions that no controller implies, such as for `Context.client`. */
  permissions?: Permission[];
  http?: HttpPermission[];
  indexes?: Index[];
  /** The JSON schema of the administrator's configuration. Without it, the plugin takes none. */
  configSchema?: Schema;
  /** `fresh` gives each call a new interpreter, which takes milliseconds. */
  instances?: "reuse" | "fresh";
}

export type Operation = "create" | "update" | "delete" | "connect";

/** Which requests a webhook reviews. `*` is allowed in each list. */
export interface Rule {
  /** `""` is the core group. */
  groups: string[];
  versions: string[];
  /** Plural names, such as `pods`, `pods/status` and `pods/*`. */
  resources: string[];
  /** Creations and updates by default. */
  operations?: Operation[];
}

export interface WebhookOptions {
  rules: Rule | Rule[];
  /** Kinds that the function reads from the cache. */
  reads?: WatchLike[];
  /** A label selector over the namespace of the object. */
  namespaces?: string;
  /** A label selector over the object. */
  labels?: string;
  /** Match conditions: a CEL expression for each name. */
  conditions?: { [name: string]: string };
  /** Seconds that the API server waits, 1 to 30, 10 by default. */
  timeout?: number;
  /** `true` lets the API server allow a request that nobody reviewed. */
  ignoreFailures?: boolean;
}

/** A request to the API server. */
export interface Review<K = AnyObject> {
  readonly operation: Operation;
  readonly of: TypeMeta;
  /** The name is empty if the API server generates it later. */
  readonly key: Key;
  /** Without it, the request is for the object itself. */
  readonly subresource?: string;
  /** Missing for `delete`. */
  readonly object?: K;
  /** The object before. Missing for `create` and `connect`. */
  readonly old?: K;
  readonly user: { name: string; uid: string; groups: string[] };
  /** `true` if nothing will be stored. */
  readonly dryRun: boolean;
}

/** The answer to a review. An empty one allows the request. */
export interface Decision {
  /** Why the request is denied. The user sees it. */
  denied?: string;
  /** The HTTP status code of a denial, 400 to 599. 403 by default. */
  code?: number;
  /** Shown to the user. At most 16 of 256 bytes. */
  warnings?: string[];
  /** Entries of the API server's audit log. At most 16. */
  audit?: { [key: string]: string };
}

/** A decision that may change the object. */
export interface Mutation extends Decision {
  /** The object as it should be. */
  object?: KubernetesObject;
}

/** A change of one object. At least one of `old` and `new` is there. */
export interface Change<K = AnyObject> {
  readonly of: TypeMeta;
  readonly key: Key;
  /** Missing if the object was added. */
  readonly old?: K;
  /** Missing if the object was deleted. `old` is then its last known state. */
  readonly new?: K;
  /** How many changes were merged into this one, because they came faster than the plugin took them. */
  readonly merged: number;
  /** `true` if the host found the deletion by a later list. `old` may then be out of date. */
  readonly missed: boolean;
  /** `true` if the object was there when the plugin began to observe it. */
  readonly initial: boolean;
}

export type Reconcile<K> = (ctx: Context, object: K) => Outcome | void;

/** A plugin. Export it as `plugin`. */
export class Plugin {
  /** `description` is one sentence, for people. */
  constructor(description: string, options?: PluginOptions);
  /** Adds a reconcile loop. Asks for the permissions that it needs. */
  controller<K extends KubernetesObject = AnyObject>(kind: WatchLike, options: ControllerOptions, reconcile: Reconcile<K>): this;
  controller<K extends KubernetesObject = AnyObject>(kind: WatchLike, reconcile: Reconcile<K>): this;
  /**
   * Calls a function for every change of these kinds. A kind may be a pattern, such as `apps/v1/*`.
   * Each kind is observed once. If the function throws, the host calls it again with a growing delay.
   */
  observe<K = AnyObject>(kinds: WatchLike | WatchLike[], observer: (ctx: ObserverContext, change: Change<K>) => void): this;
  /**
   * Allows or denies requests to the API server, before it stores their objects. If the function throws, the API server denies
   * the request, or allows it with `ignoreFailures`. The administrator must grant the webhook by its name.
   */
  validate<K = AnyObject>(
    name: string,
    options: WebhookOptions,
    handler: (ctx: ReviewContext, review: Review<K>) => Decision | void,
  ): this;
  /**
   * As `validate`, and may change the object. With `reinvoke`, the API server calls the webhook again if a later one changed the
   * object.
   */
  mutate<K = AnyObject>(
    name: string,
    options: WebhookOptions & { reinvoke?: boolean },
    handler: (ctx: ReviewContext, review: Review<K>) => Mutation | void,
  ): this;
  /** Declares a counter. `name` ends in `_total`. */
  counter(name: string, help: string, labels?: string[]): Counter;
  gauge(name: string, help: string, labels?: string[]): Gauge;
  /** Declares a histogram. Its buckets go from 0.005 to 10, unless they are given. */
  histogram(name: string, help: string, labels?: string[], buckets?: number[]): Histogram;
  /** Returns what the plugin is and needs, in the contract's form. */
  manifest(): any;
}

// What a plugin is and needs. Everything that the contract lets a plugin leave out has a default here.

import { typeMeta } from "./kinds.js";

/** Selects changes. */
export class Predicate {
  constructor(alternatives) {
    this.alternatives = alternatives;
  }

  static #test(tag) {
    return new Predicate([[{ test: { tag }, negated: false }]]);
  }

  static generation() {
    return Predicate.#test("generation");
  }

  static labels() {
    return Predicate.#test("labels");
  }

  static annotations() {
    return Predicate.#test("annotations");
  }

  static finalizers() {
    return Predicate.#test("finalizers");
  }

  static deletion() {
    return Predicate.#test("deletion");
  }

  static resourceVersion() {
    return Predicate.#test("resource-version");
  }

  static cel(expression) {
    return new Predicate([[{ test: { tag: "cel", val: expression }, negated: false }]]);
  }

  or(other) {
    return new Predicate([...this.alternatives, ...other.alternatives]);
  }

  and(other) {
    return new Predicate(this.alternatives.flatMap((one) => other.alternatives.map((two) => [...one, ...two])));
  }

  not() {
    const negated = this.alternatives.map((tests) =>
      new Predicate(tests.map(({ test, negated }) => [{ test, negated: !negated }])));
    return negated.reduce((all, one) => all.and(one));
  }
}

/** Which keys a changed object concerns. */
export const Mapping = {
  owner: () => ({ tag: "owner" }),
  anyOwner: () => ({ tag: "any-owner" }),
  sameKey: () => ({ tag: "same-key" }),
  label: (name) => ({ tag: "label", val: name }),
  index: (name) => ({ tag: "index", val: name }),
};

/** Returns the contract's form of what an author wrote: a kind, or a watch for some of its objects. */
export function watch(of) {
  const { kind, namespaces = [], labels, fields, metadataOnly = false, without = [], compressed = false, when, excluding = [] } =
    typeof of === "object" && !of.apiVersion ? of : { kind: of };
  return {
    of: typeMeta(kind),
    except: excluding.map(typeMeta),
    withVerbs: [],
    namespaces: [...namespaces],
    labels,
    fields,
    metadataOnly,
    without: [...without],
    compressed,
    when: when?.alternatives ?? [],
  };
}

/** Returns the contract's form of a webhook. */
export function webhook(name, ofType, options) {
  const { rules, reads = [], namespaces, labels, conditions = {}, timeout, ignoreFailures = false, reinvoke = false } = options;
  if (!rules) throw new TypeError(`the webhook ${name} has no \`rules\`: they say which requests it reviews`);
  return {
    name,
    ofType,
    rules: [rules].flat().map(({ groups, versions, resources, operations = ["create", "update"] }) => ({
      apiGroups: [...groups],
      apiVersions: [...versions],
      resources: [...resources],
      operations: [...operations],
    })),
    onFailure: ignoreFailures ? "ignore" : "fail",
    timeoutSeconds: timeout,
    namespaces,
    labels,
    matchConditions: Object.entries(conditions),
    reinvoke,
    reads: reads.map(watch),
  };
}

/** Returns the contract's form of a permission. */
export function permission({ kind, verbs, subresource, namespaces = [], names = [] }) {
  return { of: typeMeta(kind), subresource, verbs: [...verbs], namespaces: [...namespaces], names: [...names] };
}

/** The schema of `conditions` in a status. Server-side apply merges the list by `type`. */
export const CONDITIONS = {
  type: "array",
  "x-kubernetes-list-type": "map",
  "x-kubernetes-list-map-keys": ["type"],
  items: {
    type: "object",
    required: ["type", "status", "lastTransitionTime", "reason", "message"],
    properties: {
      type: { type: "string", maxLength: 316 },
      status: { type: "string", enum: ["True", "False", "Unknown"] },
      observedGeneration: { type: "integer", format: "int64", minimum: 0 },
      lastTransitionTime: { type: "string", format: "date-time" },
      reason: { type: "string", minLength: 1, maxLength: 1024 },
      message: { type: "string", maxLength: 32768 },
    },
  },
};

/** Returns the CustomResourceDefinition of a kind with one version. */
export function crd(kind, { spec, status, required = [], plural, singular, shortNames = [], columns = [], namespaced = true }) {
  const { apiVersion, kind: name } = typeMeta(kind);
  const [group, version] = apiVersion.split("/");
  if (!version) throw new TypeError(`${kind} has no group: write GROUP/VERSION/KIND, such as example.com/v1/${name}`);
  singular ??= name.toLowerCase();
  plural ??= `${singular}s`;
  const properties = { spec: { type: "object", properties: spec } };
  if (required.length > 0) properties.spec.required = [...required];
  const served = { name: version, served: true, storage: true };
  if (status) {
    properties.status = { type: "object", properties: status };
    served.subresources = { status: {} };
  }
  served.schema = { openAPIV3Schema: { type: "object", required: ["spec"], properties } };
  if (columns.length > 0) {
    served.additionalPrinterColumns =
      columns.map(({ name, path, type = "string" }) => ({ name, type, jsonPath: path }));
  }
  const names = { kind: name, listKind: `${name}List`, plural, singular };
  if (shortNames.length > 0) names.shortNames = [...shortNames];
  return {
    apiVersion: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    metadata: { name: `${plural}.${group}` },
    spec: { group, names, scope: namespaced ? "Namespaced" : "Cluster", versions: [served] },
  };
}

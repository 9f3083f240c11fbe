// The example plugin in JavaScript: a ConfigMap for each apple that a MyApple asks for, and a status that counts those which are there.

import { get } from "pilothouse:plugin/cache@0.1.0";

const APPLES = { apiVersion: "stable.example.com/v1", kind: "MyApple" };
const CONFIG_MAPS = { apiVersion: "v1", kind: "ConfigMap" };

const NOTHING_ELSE = { watches: { tag: "unchanged" }, events: [] };

const watch = (of) => ({ of, except: [], withVerbs: [], namespaces: [], metadataOnly: false, without: [], compressed: false, when: [] });
const permission = (of, verbs, subresource) => ({ of, subresource, verbs, namespaces: [], names: [] });

function configMap(apple, index) {
  return {
    ...CONFIG_MAPS,
    metadata: { name: `${apple.metadata.name}-${index}` },
    data: { color: apple.spec.color, size: apple.spec.size },
  };
}

function isAvailable(apple, wanted) {
  const text = get(CONFIG_MAPS, { namespace: apple.metadata.namespace, name: wanted.metadata.name });
  if (text === undefined) return false;
  const found = JSON.parse(text);
  const isOwned = (found.metadata.ownerReferences ?? []).some((owner) => owner.controller && owner.uid === apple.metadata.uid);
  return isOwned && Object.entries(wanted.data).every(([key, value]) => found.data?.[key] === value);
}

export const controller = {
  describe() {
    return {
      version: "0.1.0",
      description: "Keeps a ConfigMap for each apple that a MyApple asks for.",
      controllers: [
        {
          name: "apples",
          for: watch(APPLES),
          owns: [watch(CONFIG_MAPS)],
          watches: [],
          reads: [],
          maxConcurrency: 4,
        },
      ],
      indexes: [],
      observes: [],
      permissions: [
        permission(APPLES, ["read"]),
        permission(APPLES, ["apply"], "status"),
        permission(CONFIG_MAPS, ["read", "apply", "delete"]),
      ],
      crds: [],
      instances: "reuse",
      metrics: [],
      http: [],
      webhooks: [],
    };
  },

  reconcile(_config, request) {
    if (request.phase !== "live") return { children: { tag: "unchanged" }, ...NOTHING_ELSE };
    const apple = JSON.parse(request.object);
    const wanted = Array.from({ length: apple.spec.quantity }, (_, index) => configMap(apple, index));
    const available = wanted.filter((child) => isAvailable(apple, child)).length;
    const status = { available, observedGeneration: apple.metadata.generation };
    return {
      children: { tag: "desired", val: wanted.map((child) => ({ object: JSON.stringify(child), adopt: false, replace: false })) },
      status: JSON.stringify(status),
      ...NOTHING_ELSE,
    };
  },
};

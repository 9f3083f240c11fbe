// Reviews and observes the ConfigMaps of one namespace.

import { Failure, Plugin } from "@pilothouse/sdk";
import type { Change, Decision, KubernetesObject, Mutation, ObserverContext, Review, ReviewContext } from "@pilothouse/sdk";

interface ConfigMap extends KubernetesObject {
  data?: { [key: string]: string };
}

const rules = { groups: [""], versions: ["v1"], resources: ["configmaps"] };

export function plugin(config: { namespace: string }): Plugin {
  const namespaces = `kubernetes.io/metadata.name=${config.namespace}`;
  return new Plugin("A policy in TypeScript.", { configSchema: { type: "object" } })
    .validate<ConfigMap>("words", { rules, namespaces, reads: [{ kind: "v1/ConfigMap", labels: "policy" }] }, words)
    .mutate<ConfigMap>("marks", { rules, namespaces, labels: "!policy" }, marks)
    .observe<ConfigMap>({ kind: "v1/ConfigMap", labels: "watched" }, seen);
}

function words(ctx: ReviewContext, { object }: Review<ConfigMap>): Decision | undefined {
  const forbidden = ctx.get<ConfigMap>("v1/ConfigMap", "policy")?.data?.forbidden;
  const word = object?.data?.word;
  if (forbidden === undefined || word !== forbidden) return undefined;
  return { denied: `${word} is forbidden`, code: 422, warnings: ["mind your words"] };
}

function marks(_: ReviewContext, { object, dryRun }: Review<ConfigMap>): Mutation | undefined {
  if (object) object.metadata.labels = { ...object.metadata.labels, marked: dryRun ? "dry" : "yes" };
  return { object };
}

function seen(ctx: ObserverContext, change: Change<ConfigMap>): void {
  const { namespace, name } = change.key;
  const word = change.new?.data?.word;
  if (word === "fails") throw new Failure("no pears left");
  ctx.log.info(change.new ? `seen: ${namespace}/${name} with ${word}` : `gone: ${namespace}/${name}`);
}

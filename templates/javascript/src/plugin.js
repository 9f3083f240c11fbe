// Keeps a ConfigMap with the message of each {{kind}}.

import { CONDITIONS, Plugin, crd, setCondition } from "@pilothouse/sdk";

const KIND = "{{group}}/{{version}}/{{kind}}";
const CONFIG_MAP = "v1/ConfigMap";

export const plugin = new Plugin("Keeps a ConfigMap with the message of each {{kind}}.", {
  crds: [
    crd(KIND, {
      plural: "{{plural}}",
      singular: "{{singular}}",
      spec: { message: { type: "string" } },
      required: ["message"],
      status: { observedGeneration: { type: "integer" }, conditions: CONDITIONS },
      columns: [{ name: "Message", path: ".spec.message" }],
    }),
  ],
});

// Returns what should exist because of the object. Changes nothing itself.
plugin.controller(KIND, { owns: [CONFIG_MAP] }, (ctx, object) => {
  const { message } = object.spec;
  const child = { apiVersion: "v1", kind: "ConfigMap", metadata: { name: ctx.key.name }, data: { message } };
  // The host runs this again when the result of a read changes.
  const ready = ctx.get(CONFIG_MAP, ctx.key.name)?.data?.message === message;
  ctx.log.debug("reconciled", { ready });
  const condition = ctx.condition("Ready", ready, ready ? "Written" : "Progressing");
  return {
    children: [child],
    status: {
      observedGeneration: object.metadata.generation,
      conditions: setCondition(object.status?.conditions, condition),
    },
  };
});

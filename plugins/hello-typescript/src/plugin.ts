// Greets everybody that a Hello names: a ConfigMap with the greeting, and a status.

import { CONDITIONS, Failure, Plugin, crd, setCondition } from "@pilothouse/sdk";
import type { Condition, KubernetesObject } from "@pilothouse/sdk";

const HELLO = "example.com/v1/Hello";
const CONFIG_MAP = "v1/ConfigMap";

export interface Hello extends KubernetesObject {
  spec: { to: string };
  status?: { greeting?: string; observedGeneration?: number; conditions?: Condition[] };
}

interface ConfigMap extends KubernetesObject {
  data?: { [key: string]: string };
}

export const plugin = new Plugin("Greets everybody that a Hello names.", {
  crds: [
    crd(HELLO, {
      plural: "hellos",
      spec: { to: { type: "string", minLength: 1 } },
      required: ["to"],
      status: { greeting: { type: "string" }, observedGeneration: { type: "integer" }, conditions: CONDITIONS },
      columns: [{ name: "Greeting", path: ".status.greeting" }],
    }),
  ],
});

plugin.controller<Hello>(HELLO, { owns: [CONFIG_MAP], events: true }, (ctx, hello) => {
  const { to } = hello.spec;
  if (to === "nobody") throw new Failure("there is nobody to greet", { terminal: true });
  const text = `Hello, ${to}!`;
  const greeting: ConfigMap = {
    apiVersion: "v1",
    kind: "ConfigMap",
    metadata: { name: `${ctx.key.name}-greeting` },
    data: { text },
  };
  const ready = ctx.get<ConfigMap>(CONFIG_MAP, `${ctx.key.name}-greeting`)?.data?.text === text;
  if (hello.status?.greeting !== text) ctx.event("Greeted", text);
  return {
    children: [greeting],
    status: {
      greeting: text,
      observedGeneration: hello.metadata.generation,
      conditions: setCondition(
        hello.status?.conditions,
        ctx.condition("Ready", ready, ready ? "Written" : "Progressing"),
      ),
    },
  };
});

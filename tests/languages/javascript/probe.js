// Prints, reads the clock, draws random numbers, and fails in the way that the object asks for.

import { Failure, Plugin } from "@pilothouse/sdk";

export function plugin() {
  console.log("described at", new Date().toISOString());
  const probe = new Plugin("A probe in JavaScript.", { instances: "fresh" });
  return probe.controller("v1/ConfigMap", { name: "maps", status: false }, reconcile);
}

function reconcile(_, configMap) {
  const data = configMap.data ?? {};
  if (!data.probe) return;
  console.error("a warning");
  if (data.fail === "returned") throw new Failure("no pears left");
  if (data.fail === "thrown") throw new TypeError("no apples left");
  const result = {
    time: Date.now() / 1000,
    year: new Date().getFullYear(),
    unique: crypto.randomUUID(),
    random: Math.random(),
  };
  console.log(`result of ${data.probe}: ${JSON.stringify(result)}`);
}

// Tests against the SDK's mock host: `npm test`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Failed, MockHost } from "@pilothouse/sdk/mock";

import { plugin } from "../src/plugin.ts";
import type { Hello } from "../src/plugin.ts";

const hello = (to: string): Hello => ({
  apiVersion: "example.com/v1",
  kind: "Hello",
  metadata: { name: "morning", namespace: "default" },
  spec: { to },
});

test("a Hello gives a ConfigMap and a status", () => {
  const host = new MockHost(plugin, hello("world"));
  const { status } = host.settle("morning", "default");
  assert.deepEqual(host.find("v1/ConfigMap", "morning-greeting", "default")?.data, { text: "Hello, world!" });
  assert.equal(status.greeting, "Hello, world!");
  assert.equal(status.conditions[0].status, "True");
  assert.deepEqual(host.events.map(({ reason, message }) => [reason, message]), [["Greeted", "Hello, world!"]]);
});

test("a changed ConfigMap is set back", () => {
  const host = new MockHost(plugin, hello("world"));
  host.settle("morning", "default");
  const changed = host.find("v1/ConfigMap", "morning-greeting", "default");
  host.put({ ...changed!, data: { text: "Bye" } });
  host.settle("morning", "default");
  assert.deepEqual(host.find("v1/ConfigMap", "morning-greeting", "default")?.data, { text: "Hello, world!" });
});

test("nobody is a failure that waits for a change", () => {
  const host = new MockHost(plugin, hello("nobody"));
  assert.throws(() => host.reconcile("morning", "default"), (error) => error instanceof Failed && error.failure.terminal);
});

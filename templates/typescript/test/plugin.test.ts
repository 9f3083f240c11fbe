// Tests against a mock host: `npm test`. They need no cluster.

import assert from "node:assert/strict";
import { test } from "node:test";

import { MockHost } from "@pilothouse/sdk/mock";

import { plugin } from "../src/plugin.ts";
import type { {{kind}} } from "../src/plugin.ts";

const OBJECT: {{kind}} = {
  apiVersion: "{{group}}/{{version}}",
  kind: "{{kind}}",
  metadata: { name: "first", namespace: "default" },
  spec: { message: "hello" },
};

test("an object gives a ConfigMap", () => {
  const { children } = new MockHost(plugin, OBJECT).reconcile("first", "default");
  assert.deepEqual(children?.map((child) => child.data), [{ message: "hello" }]);
});

test("it becomes ready when the ConfigMap is there", () => {
  const { status } = new MockHost(plugin, OBJECT).settle("first", "default");
  assert.deepEqual([status.conditions[0].type, status.conditions[0].status], ["Ready", "True"]);
});

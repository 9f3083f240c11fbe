// Prints, reads the clock, draws random numbers, and fails in the way that the object asks for.

const CONFIG_MAPS = { apiVersion: "v1", kind: "ConfigMap" };

const watch = (of) => ({
  of,
  except: [],
  withVerbs: [],
  namespaces: [],
  metadataOnly: false,
  without: [],
  compressed: false,
  when: [],
});

export const controller = {
  describe() {
    console.log("described at", new Date().toISOString());
    return {
      version: "0.1.0",
      description: "A probe in JavaScript.",
      controllers: [{ name: "maps", for: watch(CONFIG_MAPS), owns: [], watches: [], reads: [], maxConcurrency: 1 }],
      indexes: [],
      observes: [],
      permissions: [{ of: CONFIG_MAPS, verbs: ["read"], namespaces: [], names: [] }],
      crds: [],
      instances: "fresh",
      metrics: [],
      http: [],
      webhooks: [],
    };
  },

  reconcile(_config, request) {
    try {
      return reconcile(request);
    } catch (thrown) {
      // An `Error` is no complete failure: it lacks `events`.
      throw thrown instanceof Error ? { message: String(thrown), terminal: false, events: [] } : thrown;
    }
  },
};

function reconcile(request) {
  const unchanged = { children: { tag: "unchanged" }, watches: { tag: "unchanged" }, events: [] };
  const data = JSON.parse(request.object).data ?? {};
  if (!data.probe) return unchanged;
  console.error("a warning");
  if (data.fail === "returned") throw { message: "no pears left", terminal: false, events: [] };
  if (data.fail === "thrown") throw new TypeError("no apples left");
  const result = {
    time: Date.now() / 1000,
    year: new Date().getFullYear(),
    unique: crypto.randomUUID(),
    random: Math.random(),
  };
  console.log(`result of ${data.probe}: ${JSON.stringify(result)}`);
  return unchanged;
}

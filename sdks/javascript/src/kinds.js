// Kinds and keys of objects.

/** Returns the kind that a text names, such as `apps/v1/Deployment`. */
export function typeMeta(kind) {
  if (typeof kind === "object" && kind?.apiVersion && kind?.kind) return { apiVersion: kind.apiVersion, kind: kind.kind };
  const at = String(kind).lastIndexOf("/");
  if (typeof kind !== "string" || at < 1 || at === kind.length - 1) {
    const hint = "write VERSION/KIND or GROUP/VERSION/KIND, such as apps/v1/Deployment";
    throw new TypeError(`${JSON.stringify(kind)} is not a kind: ${hint}`);
  }
  return { apiVersion: kind.slice(0, at), kind: kind.slice(at + 1) };
}

/** Returns the kind of an object. */
export function typeMetaOf(object) {
  if (!object?.apiVersion || !object.kind) throw new TypeError("an object needs `apiVersion` and `kind`");
  return { apiVersion: object.apiVersion, kind: object.kind };
}

/** Returns the kind as a text. */
export function kindText(of) {
  return `${of.apiVersion}/${of.kind}`;
}

/** Returns the key of an object. */
export function keyOf(object) {
  const { namespace, name } = object.metadata ?? {};
  return namespace === undefined || namespace === null ? { name: name ?? "" } : { namespace, name: name ?? "" };
}

/** Returns the key as a text. */
export function keyText(key) {
  return key.namespace ? `${key.namespace}/${key.name}` : key.name;
}

// Returns `true` if a kind, or a pattern such as `apps/v1/*`, `apps/*/*` and `*/*`, selects another kind.
export function selects(pattern, of) {
  if (pattern.kind !== "*") return sameKind(pattern, of);
  const group = of.apiVersion.includes("/") ? of.apiVersion.split("/")[0] : "";
  return ["*", of.apiVersion, `${group}/*`].includes(pattern.apiVersion);
}

/** Returns `true` if both are the same kind. */
export function sameKind(one, two) {
  return one.apiVersion === two.apiVersion && one.kind === two.kind;
}

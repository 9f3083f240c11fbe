// Write a Pilothouse plugin in JavaScript or TypeScript: see `index.d.ts`.

export { Context, ObserverContext, ReviewContext, setCondition } from "./context.js";
export { ClientError, HttpError, ReadError } from "./host.js";
export { keyOf, typeMeta, typeMetaOf } from "./kinds.js";
export { CONDITIONS, Mapping, Predicate, crd } from "./manifest.js";
export { Child, Failure, Plugin } from "./plugin.js";

// What the host offers to a plugin. In a component, it is the contract's imports. In a test, it is `MockHost`.

/** A read from the cache failed. */
export class ReadError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "ReadError";
    this.kind = kind;
  }
}

/** A request to the API server failed. */
export class ClientError extends Error {
  constructor(kind, message, { code = 0, reason = "", causes = [] } = {}) {
    super(message);
    this.name = "ClientError";
    Object.assign(this, { kind, code, reason, causes });
  }
}

/** No response arrived, or `errorForStatus` rejected it. */
export class HttpError extends Error {
  constructor(kind, message, { status } = {}) {
    super(message);
    this.name = "HttpError";
    Object.assign(this, { kind, status });
  }
}

let present;

/** Returns the host of the present call. */
export function host() {
  if (!present) throw new Error("there is no host: call this in a reconcile, and test it with MockHost");
  return present;
}

/** Sets the host of the calls that follow. Returns the one before. */
export function serve(by) {
  const before = present;
  present = by;
  return before;
}

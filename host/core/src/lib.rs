//! The pure part of Pilothouse: store, reflector, routes, workqueue, diff, manifests and grants.

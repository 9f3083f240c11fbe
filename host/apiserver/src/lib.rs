//! The embedded Kubernetes API server of pilothouse dev and of tests.

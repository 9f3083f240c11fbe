//! End-to-end tests, one body for the embedded and the real API server.

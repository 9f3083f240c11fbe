//! Hostile and peculiar plugins for tests.

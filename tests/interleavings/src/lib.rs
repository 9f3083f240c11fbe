//! An empty library: this package has only tests.
//!
//! They compile files of the host with substitutes for its locks and notifications. Through these Shuttle chooses which
//! thread runs at each step. `queue` tests a controller's workqueue this way.

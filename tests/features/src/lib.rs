//! An empty library. Its dependencies name the features that only tests need. Built beside the host, it makes Cargo
//! compile each dependency once, with one set of features.

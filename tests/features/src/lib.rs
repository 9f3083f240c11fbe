//! Nothing by itself. The dependencies of this package have the features that only tests ask for, as tests' own dependencies have others:
//! built beside the host, whatever both need is the same, and Cargo compiles it once.

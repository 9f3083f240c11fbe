//! The `pilothouse` command.

fn main() {}

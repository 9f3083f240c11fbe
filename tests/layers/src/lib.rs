//! Checks that the modules of a crate import downwards.
//!
//! Two rules, both read from the sources:
//!
//! - **No circles.** Modules of one folder do not import each other in a circle. Parent and child may.
//! - **Layers.** A top-level module imports only modules that the crate's `lib.rs` lists before it.
//!
//! `lib.rs` states its layers in its module doc, lowest first. The names in backticks before the first colon of each
//! item are modules:
//!
//! ```text
//! //! # Layers
//! //!
//! //! - `json`, [`rate`]: use no other module
//! //! - [`store`]: holds objects
//! ```
//!
//! An import is any path that begins with `crate`, `super`, `self` or a child module, in a `use` or elsewhere. It
//! counts for the module that defines the name: a path through `use` in a parent is followed. What only tests compile
//! does not count.

mod graph;
mod source;
mod token;

use std::{fs, path::Path};

use self::{graph::Graph, source::Sources};

/// Checks the crate whose sources are in `src`. `allowed` names the circles that are accepted, each as the report
/// writes it: `plugin::{lifecycle, task}`.
///
/// # Panics
/// Panics with the files and lines of every import that breaks a rule, and for an allowed circle that does not exist.
#[track_caller]
pub fn check(src: impl AsRef<Path>, allowed: &[&str]) {
    let problems = problems(src.as_ref(), allowed);
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn problems(src: &Path, allowed: &[&str]) -> Vec<String> {
    let sources = Sources::read(src);
    let lib = fs::read_to_string(src.join("lib.rs")).expect("the crate has a lib.rs");
    let graph = Graph::new(&sources);
    let mut problems = graph.against(&layers(&lib));
    problems.extend(graph.circles(allowed));
    problems
}

/// Returns the modules that the doc of `lib.rs` lists under "Layers", in their order.
fn layers(lib: &str) -> Vec<String> {
    let doc = lib.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let section = doc.skip_while(|line| *line != "# Layers").skip(1).take_while(|line| !line.starts_with('#'));
    let mut items: Vec<String> = Vec::new();
    for line in section {
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        match line.strip_prefix("- ").or_else(|| number.strip_prefix(". ").filter(|_| number != line)) {
            Some(item) => items.push(item.to_owned()),
            None if line.is_empty() => {}
            None => {
                if let Some(last) = items.last_mut() {
                    *last += " ";
                    *last += line;
                }
            }
        }
    }
    let names = items.iter().map(|item| item.split(':').next().unwrap_or_default());
    names.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;

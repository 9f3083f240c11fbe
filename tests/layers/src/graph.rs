//! The imports between modules of one folder.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Module, Sources};

/// For two modules of one folder, the imports from the first to the second, as `file:line`.
type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// The imports of a crate, each between two siblings: the modules of one folder in which it begins and ends.
pub(crate) struct Graph {
    folders: BTreeMap<Module, Edges>,
    top: BTreeSet<String>,
}

impl Graph {
    pub(crate) fn new(sources: &Sources) -> Self {
        let mut folders: BTreeMap<Module, Edges> = BTreeMap::new();
        for import in &sources.imports {
            let Some(target) = sources.target(import) else { continue };
            let shared = import.from.iter().zip(&target).take_while(|(a, b)| a == b).count();
            // Within one module, or between parent and child.
            let (Some(from), Some(to)) = (import.from.get(shared), target.get(shared)) else { continue };
            let folder = folders.entry(target[..shared].to_vec()).or_default();
            let lines = folder.entry((from.clone(), to.clone())).or_default();
            lines.insert(format!("{}:{}", import.file.display(), import.line));
        }
        let top = sources.modules.iter().filter(|module| module.len() == 1).map(|module| module[0].clone()).collect();
        Self { folders, top }
    }

    /// Returns what contradicts the order of the top-level modules, lowest first.
    pub(crate) fn against(&self, order: &[String]) -> Vec<String> {
        let place = |name: &String| order.iter().position(|listed| listed == name);
        let mut problems = Vec::new();
        for name in &self.top {
            if place(name).is_none() {
                problems.push(format!("lib.rs does not list the module {name} under \"# Layers\""));
            }
        }
        for (n, name) in order.iter().enumerate() {
            if !self.top.contains(name) {
                problems.push(format!("lib.rs lists a module {name}, which does not exist"));
            }
            if order[..n].contains(name) {
                problems.push(format!("lib.rs lists the module {name} twice"));
            }
        }
        for ((from, to), lines) in self.folders.get(&Vec::new()).into_iter().flatten() {
            if let (Some(below), Some(above)) = (place(from), place(to))
                && below < above
            {
                let lines = Vec::from_iter(lines.iter().map(String::as_str)).join(", ");
                problems.push(format!("{from} imports {to}, which lib.rs lists after it: {lines}"));
            }
        }
        problems
    }

    /// Returns the circles that are not allowed, and the allowed ones that do not exist.
    pub(crate) fn circles(&self, allowed: &[&str]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut unseen: BTreeSet<&str> = allowed.iter().copied().collect();
        for (folder, edges) in &self.folders {
            for circle in circles(edges) {
                let members = Vec::from_iter(circle.iter().copied()).join(", ");
                let name: String =
                    folder.iter().map(|part| format!("{part}::")).chain([format!("{{{members}}}")]).collect();
                if unseen.remove(name.as_str()) {
                    continue;
                }
                problems.push(format!("modules import each other in a circle: {name}"));
                for ((from, to), lines) in edges
                    .iter()
                    .filter(|((from, to), _)| circle.contains(from.as_str()) && circle.contains(to.as_str()))
                {
                    let lines = Vec::from_iter(lines.iter().map(String::as_str)).join(", ");
                    problems.push(format!("    {from} imports {to}: {lines}"));
                }
            }
        }
        problems.extend(unseen.iter().map(|name| format!("the allowed circle {name} does not exist")));
        problems
    }
}

/// Returns the largest sets of two or more modules in which each reaches all others.
fn circles(edges: &Edges) -> BTreeSet<BTreeSet<&str>> {
    let nodes: BTreeSet<&str> = edges.keys().flat_map(|(from, to)| [from.as_str(), to.as_str()]).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = nodes.iter().map(|&node| (node, reachable(edges, node))).collect();
    let circle = |node: &str| {
        reached[node].iter().copied().filter(|other| reached[other].contains(node)).collect::<BTreeSet<_>>()
    };
    nodes.iter().map(|node| circle(node)).filter(|circle| circle.len() > 1).collect()
}

/// Returns the modules that `start` imports, directly or through others.
fn reachable<'a>(edges: &'a Edges, start: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![start];
    while let Some(node) = todo.pop() {
        let next = edges.keys().filter(|(from, _)| from == node).map(|(_, to)| to.as_str());
        todo.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}

//! `pilothouse build`: builds the plugin of a project, and checks the result.

use std::{fmt::Write as _, path::PathBuf, time::Instant};

use anyhow::Context;

use super::{
    describe::{Described, describe},
    project::{Component, Profile, Project},
};
use crate::plugin::{all_grants, ungranted};

/// Build the plugin of a project
///
/// Finds the project's language by Cargo.toml, pyproject.toml, package.json or go.mod, and runs the language's own tools. A tool that is missing is
/// named with how to install it. Then loads the component in the sandbox, as the host would, and prints what it asks for.
///
/// The component is DIR/build/NAME.wasm. DIR/NAME.yaml, which has the grants, is copied beside it. So `pilothouse run --plugins DIR/build` runs both.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse build
  pilothouse build operators/my-site --debug
  pilothouse build && pilothouse run --plugins build")]
pub(super) struct Args {
    /// The project
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Build soon, and write to DIR/build/debug: a Rust plugin without optimization
    #[arg(long)]
    debug: bool,
}

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    super::block_on(async {
        let project = Project::open(&args.dir)?;
        let profile = if args.debug { Profile::Debug } else { Profile::Release };
        let began = Instant::now();
        let built = project.build(profile).await?;
        for component in &built {
            eprintln!("Checking {}", component.file.display());
            let described = describe(&component.file, None).await;
            let described = described
                .with_context(|| format!("{} was built, and a host cannot load it", component.file.display()))?;
            print!("{}", report(component, &described));
        }
        eprintln!("Finished in {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    })
}

/// Returns what the component is and asks for.
fn report(component: &Component, described: &Described) -> String {
    let Component { name, file } = component;
    let manifest = described.revision.manifest();
    let mut text = format!("\n{:<12} {}\n", "plugin", file.display());
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    row("size", &size(described.size));
    row("imports", &described.revision.linked().imports().join(", "));
    let asked = all_grants(manifest);
    let asked = asked.lines().filter(|line| *line != "grants:" && *line != "http:" && *line != "grants: []");
    for (place, line) in asked.enumerate() {
        row(if place == 0 { "asks for" } else { "" }, line.trim_start_matches("  - "));
    }
    let lacks = ungranted(name, manifest, &described.file);
    if lacks.is_empty() {
        row("grants", &format!("{name}.yaml grants all of it"));
    } else {
        row("grants", &format!("{name}.yaml does not grant: {}", lacks.join("; ")));
        let _ = write!(text, "\nTo grant all that it asks for, put this into {name}.yaml:\n\n{}", all_grants(manifest));
    }
    text
}

/// `1.1 MB`.
fn size(bytes: usize) -> String {
    let bytes = u32::try_from(bytes).map_or(f64::INFINITY, f64::from);
    if bytes < 1e6 { format!("{:.0} kB", bytes / 1e3) } else { format!("{:.1} MB", bytes / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_units_of_people() {
        assert_eq!([size(1_234), size(1_234_567)], ["1 kB", "1.2 MB"]);
    }
}

//! Builds the real servers and Helm if they are missing, and prints the servers' folder.

use std::process::ExitCode;

use pilothouse_real::assets::{self, Assets};

fn say(line: &str) {
    eprintln!("real-assets: {line}");
}

fn main() -> ExitCode {
    let assets = match Assets::ready(say) {
        Ok(assets) => assets,
        Err(error) => {
            eprintln!("real-assets: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = assets::ready_helm(say) {
        say(&format!("{error:#}; the tests of the chart are skipped"));
    }
    println!("{}", assets.folder().display());
    ExitCode::SUCCESS
}

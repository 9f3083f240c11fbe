//! Builds the real servers if they are missing, and prints their folder.

use std::process::ExitCode;

use pilothouse_real::assets::Assets;

fn main() -> ExitCode {
    match Assets::ready(|line| eprintln!("real-assets: {line}")) {
        Ok(assets) => {
            println!("{}", assets.folder().display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("real-assets: {error:#}");
            ExitCode::FAILURE
        }
    }
}

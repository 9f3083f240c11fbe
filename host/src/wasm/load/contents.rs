//! Bounds what a component takes besides memories and tables, which the limits of each instance count.
//!
//! - **Functions and globals**: every instance has a record of each.
//! - **Names of functions**: they are copied for each frame of a failed call.

use wasmparser::{Instance, KnownCustom, Name, Parser, Payload};

use super::super::memory::MAX_INSTANCES;

/// Bytes of a function's name. The longest names in Rust have a few thousand.
const MAX_NAME: usize = 16 << 10;

/// Bytes of an instance's functions and globals. Fifty times what a component of componentize-py 0.25 takes, whose 14
/// core modules have at most 10,900 functions each.
const MAX_ROOM: usize = 32 << 20;

/// Bytes that the engine keeps in each instance for a referenced function. A global or an import takes no more.
const RECORD: usize = 32;

/// Checks a component that the engine accepts. Returns the most bytes that an instance needs for functions and globals.
///
/// # Errors
/// What exceeds its bound.
pub(crate) fn check(component: &[u8]) -> Result<usize, String> {
    // One count for each open module. A component has no such sections of its own.
    let mut within = Vec::new();
    let (mut depth, mut largest, mut instances) = (0_usize, 0, 0_usize);
    for payload in Parser::new(0).parse_all(component) {
        let records = match payload.map_err(|error| error.to_string())? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                depth += 1;
                within.push(0);
                continue;
            }
            Payload::End(_) => {
                depth = depth.saturating_sub(1);
                largest = largest.max(within.pop().unwrap_or_default());
                continue;
            }
            Payload::ImportSection(imports) => imports.into_imports().count(),
            Payload::FunctionSection(functions) => number(functions.count()),
            Payload::GlobalSection(globals) => number(globals.count()),
            Payload::InstanceSection(section) => {
                let made = section.into_iter().flatten().filter(|made| matches!(made, Instance::Instantiate { .. }));
                // A nested component may be instantiated as often as instances are allowed.
                instances += if depth == 0 { made.count() } else { made.count() * MAX_INSTANCES };
                continue;
            }
            Payload::CustomSection(section) => {
                if let KnownCustom::Name(names) = section.as_known() {
                    names.into_iter().flatten().try_for_each(|names| check_names(&names))?;
                }
                continue;
            }
            _ => continue,
        };
        if let Some(all) = within.last_mut() {
            *all += records;
        }
    }
    let room = largest * RECORD * instances.min(MAX_INSTANCES);
    if room > MAX_ROOM {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        return Err(format!(
            "its functions and globals take {} MiB in an instance, and at most {} are allowed",
            mib(room),
            mib(MAX_ROOM)
        ));
    }
    Ok(room)
}

fn check_names(names: &Name<'_>) -> Result<(), String> {
    let Name::Function(names) = names else { return Ok(()) };
    match names.clone().into_iter().flatten().find(|naming| naming.name.len() > MAX_NAME) {
        Some(long) => Err(format!(
            "the name of its function {} has {} bytes, and at most {MAX_NAME} are allowed: leave the name section out",
            long.index,
            long.name.len()
        )),
        None => Ok(()),
    }
}

fn number(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<usize, String> {
        check(&wat::parse_str(text).expect("it is WebAssembly text"))
    }

    #[test]
    fn functions_and_globals_are_bounded_over_all_instances() {
        let module = |globals: usize| format!("(core module $m {})", "(global i32 (i32.const 0))".repeat(globals));
        let made = |times: usize| "(core instance (instantiate $m))".repeat(times);
        assert_eq!(said(&format!("(component {} {})", module(20_000), made(50))), Ok(20_000 * 50 * RECORD));
        let message = "its functions and globals take 37 MiB in an instance, and at most 32 are allowed".to_owned();
        assert_eq!(said(&format!("(component {} {})", module(20_000), made(60))), Err(message));
        // A nested component counts as the largest number of instances.
        let within = format!("(component (component {} {}))", module(20_000), made(1));
        assert!(said(&within).is_err());
        assert_eq!(said(&format!("(component {} {})", module(100_000), made(1))), Ok(100_000 * RECORD));
        let functions = "(func) ".repeat(100_000);
        assert!(said(&format!("(component (core module $m {functions}) {})", made(11))).is_err());
    }

    #[test]
    fn names_of_functions_are_bounded() {
        let named = |length: usize| format!("(component (core module (func ${})))", "n".repeat(length));
        assert_eq!(said(&named(MAX_NAME)), Ok(0));
        let message =
            "the name of its function 0 has 16385 bytes, and at most 16384 are allowed: leave the name section out";
        assert_eq!(said(&named(MAX_NAME + 1)), Err(message.to_owned()));
    }
}

//! Which files are plugins, and the errors of the others.

use super::*;

#[tokio::test]
async fn module_and_component_of_one_plugin_are_alike() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reconcile(guest::LOG_AND_TRAP);
    for file in [guest.file(), guest.component()] {
        let linked = engine.compile(&file).unwrap().link().await.unwrap();
        assert_eq!(linked.digest(), Digest::of(&file));
        assert_eq!(linked.size(), file.len());
        // It imports only what it uses.
        assert_eq!(linked.imports(), ["pilothouse:plugin/types@0.1.0", "pilothouse:plugin/log@0.1.0"]);
    }
}

/// Compiles and links a file.
async fn taken(engine: &Engine, file: &[u8]) -> Result<Linked, LoadError> {
    engine.compile(file)?.link().await
}

#[tokio::test]
async fn file_that_is_no_plugin_is_refused_with_what_it_is() {
    let engine = Engine::new().unwrap();
    let said = async |file: &[u8]| match taken(&engine, file).await {
        Ok(_) => panic!("took {}", file.escape_ascii()),
        Err(error) => error.to_string(),
    };
    let component = async |text: &str| said(&wat::parse_str(text).unwrap()).await;
    let unlike = "the component does not fit the contract pilothouse:plugin@0.1.0: ";
    let lacking = "the component does not export pilothouse:plugin/controller@0.1.0: ";
    assert_eq!(said(b"").await, "the file is empty");
    assert_eq!(said(b"hello").await, "the file is not WebAssembly: it begins with \"hello\"");
    for damaged in
        [&Guest::new().file()[..300], &Guest::new().component()[..300], b"\0asm\x01\0\0\0\xff\xff\xff\xff\xff"]
    {
        let said = said(damaged).await;
        assert!(said.starts_with("cannot compile: "), "{said}");
    }
    assert_eq!(
        said(&Guest::new().module()).await,
        "the file is a plain core module without component metadata: build it against `wit/` with wit-bindgen, or make it a \
         component with `wasm-tools component new`"
    );
    assert_eq!(component("(component)").await, format!("{lacking}it exports nothing"));
    assert_eq!(
        component(r#"(component (instance $i) (export "wasi:cli/run@0.2.0" (instance $i)))"#).await,
        format!("{lacking}it exports wasi:cli/run@0.2.0")
    );
    assert_eq!(
        component(r#"(component (instance $i) (export "pilothouse:plugin/controller@0.2.0" (instance $i)))"#).await,
        format!(
            "{lacking}it was built for another version of the contract, and exports pilothouse:plugin/controller@0.2.0"
        )
    );
    assert_eq!(
        component(
            r#"(component
                (import "wasi:keyvalue/store@0.2.0" (instance))
                (import "pilothouse:plugin/teleport@0.1.0" (instance)))"#
        )
        .await,
        format!(
            "the component imports what this host does not offer: wasi:keyvalue/store@0.2.0, \
             pilothouse:plugin/teleport@0.1.0; a plugin may import {} of pilothouse:plugin@0.1.0, and cli, clocks, filesystem, \
             http, io, random and sockets of WASI 0.2",
            contract::imports::OFFERED.join(", ")
        )
    );
    // The rest of these messages is the engine's.
    let empty =
        component(r#"(component (instance $i) (export "pilothouse:plugin/controller@0.1.0" (instance $i)))"#).await;
    assert!(empty.starts_with(unlike) && empty.contains("`describe`"), "{empty}");
    let clock = component(
        r#"(component
            (import "pilothouse:plugin/clock@0.1.0" (instance (export "now" (func (result string)))))
            (instance $i) (export "pilothouse:plugin/controller@0.1.0" (instance $i)))"#,
    )
    .await;
    assert!(clock.starts_with(unlike) && clock.contains("`now` has the wrong type"), "{clock}");
}

/// Returns a component as a toolchain with version 0.1.7 of the contract writes it.
fn newer(mut component: Vec<u8>) -> Vec<u8> {
    const OURS: &[u8] = b"@0.1.0";
    for at in 0..component.len() {
        if component[at..].starts_with(OURS) {
            component[at..at + OURS.len()].copy_from_slice(b"@0.1.7");
        }
    }
    component
}

#[tokio::test]
async fn plugin_of_a_later_patch_version_runs_if_the_host_has_what_it_uses() {
    let guest = Guest::new().reconcile(guest::CLOCK_MOVES).map(guest::MAPS);
    let linked = Engine::new().unwrap().compile(&newer(guest.component())).unwrap().link().await.unwrap();
    assert_eq!(linked.imports(), ["pilothouse:plugin/types@0.1.7", "pilothouse:plugin/clock@0.1.7"]);
    let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

#[tokio::test]
async fn plugin_that_uses_what_a_later_version_added_is_refused_with_both_versions() {
    let engine = Engine::new().unwrap();
    let component = wat::parse_str(
        r#"(component
            (import "pilothouse:plugin/clock@0.1.7" (instance (export "tomorrow" (func (result u64)))))
            (instance $i) (export "pilothouse:plugin/controller@0.1.7" (instance $i)))"#,
    );
    let said = taken(&engine, &component.unwrap()).await.unwrap_err().to_string();
    let begin = "the component was built for pilothouse:plugin/clock@0.1.7 and uses what this host does not have, which has \
                 pilothouse:plugin@0.1.0: update the host, or build for this version; ";
    assert!(said.starts_with(begin) && said.contains("`tomorrow`"), "{said}");
}

#[tokio::test]
async fn no_prefix_of_a_plugin_is_taken_and_none_panics() {
    let engine = Engine::new().unwrap();
    for file in [Guest::new().file(), Guest::new().component()] {
        for end in (0..file.len()).step_by(97) {
            let taken = taken(&engine, &file[..end]).await;
            assert!(taken.is_err(), "{end} of {} bytes", file.len());
        }
    }
}

#[tokio::test]
async fn no_single_damaged_byte_panics() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new();
    // Behind a module's code are its metadata. Packages there that need each other overflow the stack of wit-parser.
    // That ends the process that compiles them, and no other: see
    // `a_file_that_kills_its_compiler_costs_nobody_else_anything` in tests/e2e.
    for (file, end) in [(guest.file(), guest.module().len()), (guest.component(), guest.component().len())] {
        for at in (0..end).step_by(61) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x55;
            // Some damage goes unnoticed, for example in a name. Other damage is an error.
            let _ = taken(&engine, &damaged).await;
        }
    }
}

#[tokio::test]
async fn same_file_is_loaded_once_under_however_many_names() {
    let engine = Engine::new().unwrap();
    let file = PluginFile::new(Guest::new().file());
    let (one, two) = tokio::join!(engine.load(file.clone()), engine.load(file.clone()));
    let (one, two) = (one.unwrap().link().await.unwrap(), two.unwrap().link().await.unwrap());
    let Figures { optimized: CompileFigures { compiled, .. }, loaded, mapped, .. } = engine.figures();
    assert_eq!((compiled, loaded, mapped), (1, 1, 1));
    drop((one, two));
    assert_eq!(engine.figures().loaded, 0);
}

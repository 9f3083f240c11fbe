//! Plugins for tests, assembled from text while the test runs.
//!
//! A [`Guest`] is a core module. Its answers lie in its memory, laid out as the canonical ABI requires. Its `describe`
//! and `reconcile` are a few instructions: give an answer, loop, trap, take memory, call an import. With the contract's
//! types in a custom section, the module is like the output of `cargo build --target wasm32-unknown-unknown`.
//!
//! ```ignore
//! let file = Guest::new().reconcile(guest::LOOP).file();
//! ```

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{fmt::Write as _, path::Path};

use image::{BASE, Image, Record};
use wit_component::StringEncoding;
use wit_parser::Resolve;

mod fake;
mod image;
pub(crate) mod wasi;

pub(crate) use fake::{Fake, apple, request, state};

/// Never returns.
pub(crate) const LOOP: &str = "(loop $again (br $again)) unreachable";
/// Panics as Rust does.
pub(crate) const TRAP: &str = "unreachable";
/// Takes 64 kB at a time until there is no more, and aborts, as Rust's allocator does.
pub(crate) const HOG: &str =
    "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable";
/// Grows a table until it cannot, and aborts.
pub(crate) const TABULATE: &str = "(loop $more (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1)))) unreachable";
/// Reads the clock `times` times, and answers.
pub(crate) fn looks(times: u32) -> String {
    format!(
        "(local $n i32) (loop $more (drop (call $now)) (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) \
         (i32.const {times})))) (i32.const {{answer}})"
    )
}
/// Reads an object from the cache `times` times, to the same place, and answers.
pub(crate) fn reads_again(times: u32) -> String {
    format!(
        "(local $n i32) (local $at i32) (local.set $at (global.get $free)) \
         (loop $more (global.set $free (local.get $at)) (call $cache_get {{key}} (i32.const 512)) \
         (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const {times})))) \
         (i32.const {{answer}})"
    )
}
/// Returns how often that can read [`apple`] within `bytes` exchanged with the host.
pub(crate) fn reads_that_fit(bytes: usize) -> u32 {
    let (apple, of) = (apple(), apple().type_meta().clone());
    // The object's name is its kind.
    let each = of.api_version.len() + 2 * of.kind.len() + apple.json().len();
    u32::try_from(bytes / each).unwrap()
}
/// Calls itself forever.
pub(crate) const RECURSE: &str = "(call $deep (i32.const 0))";
/// Calls itself until its stack in linear memory is used up.
pub(crate) const RECURSE_IN_MEMORY: &str = "(call $wide (i32.const 655352))";
/// Calls itself `times` times, and answers. As in compiled code, each frame has many locals, few of which are needed
/// after the call.
pub(crate) fn recurses(times: u32) -> String {
    format!("(drop (call $so_deep (i32.const {times}))) (i32.const {{answer}})")
}
/// Locals of a frame.
const LOCALS: usize = 60;
/// Writes a log line, and traps.
pub(crate) const LOG_AND_TRAP: &str =
    "(call $log (i32.const 0) (i32.const {said}) (i32.const {said.len}) (i32.const 0) (i32.const 0)) unreachable";
/// Writes a log line that is not UTF-8.
pub(crate) const LOG_GARBLED: &str = "(i32.store8 (i32.const {said}) (i32.const 255)) \
    (call $log (i32.const 0) (i32.const {said}) (i32.const {said.len}) (i32.const 0) (i32.const 0)) (i32.const {answer})";
/// Writes a log line one byte longer than the limit for a transfer, and answers.
pub(crate) const LOG_32_MIB: &str = "(call $log (i32.const 0) (i32.const 0) (i32.const 33554433) (i32.const 0) (i32.const 0)) \
    (i32.const {answer})";
/// Answers, after making the first byte of [`Answer::Garbled`] invalid UTF-8.
pub(crate) fn garbles() -> String {
    format!("(i32.store8 (i32.const {BASE}) (i32.const 255)) (i32.const {{answer}})")
}
/// Writes 300 log lines, and answers.
pub(crate) const LOG_300: &str = "(local $n i32) \
    (loop $more \
        (call $log (i32.const 2) (i32.const {said}) (i32.const {said.len}) (i32.const 0) (i32.const 0)) \
        (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 300)))) \
    (i32.const {answer})";
/// Reads an object from the API server, and answers.
pub(crate) const CLIENT_GET: &str =
    "(call $client_get {key} (i32.const 0) (i32.const 0) (i32.const 512)) (i32.const {answer})";
/// Takes a MiB, or traps if it gets none. Reads an object from the API server, and answers.
pub(crate) const GROWS_AND_ASKS: &str = "(if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable)) \
    (call $client_get {key} (i32.const 0) (i32.const 0) (i32.const 512)) (i32.const {answer})";
/// Answers if the cache has an object, and traps otherwise. The result's tag lies at 512, the option at 520 (an error
/// holds 64 bits).
pub(crate) const CACHE_HAS: &str = "(call $cache_get {key} (i32.const 512)) \
    (if (i32.or (i32.load8_u (i32.const 512)) (i32.eqz (i32.load8_u (i32.const 520)))) (then unreachable)) \
    (i32.const {answer})";
/// Reads `default/settings` of the first kind in `reads`, and answers.
pub(crate) const READS: &str = "(call $cache_get {settings} (i32.const 512)) (i32.const {answer})";
/// Reads `default/first`, waits until the API server has `default/go`, and reads `default/settings`. All are of the
/// first kind in `reads`. Then answers.
pub(crate) const READS_LATER: &str = "(local $at i32) (call $cache_get {first} (i32.const 512)) \
    (local.set $at (global.get $free)) \
    (loop $again (global.set $free (local.get $at)) (call $client_get {go} (i32.const 0) (i32.const 0) (i32.const 512)) \
        (br_if $again (i32.load8_u (i32.const 512)))) \
    (call $cache_get {settings} (i32.const 512)) (i32.const {answer})";
/// Reads like [`READS`], and traps if the object exists. The result lies as in [`CACHE_HAS`].
pub(crate) const READS_AND_TRAPS_IF_THERE: &str = "(call $cache_get {settings} (i32.const 512)) \
    (if (i32.load8_u (i32.const 520)) (then unreachable)) (i32.const {answer})";
/// Draws `count` random bytes, and answers. The list lies at 512.
pub(crate) fn draws(count: u32) -> String {
    format!("(call $random (i32.const {count}) (i32.const 512)) (i32.const {{answer}})")
}
/// Draws 300 random bytes, and traps if the last is not 43, which is what [`Fake`] has there.
pub(crate) const DRAWS_300: &str = "(call $random (i32.const 300) (i32.const 512)) \
    (if (i32.or (i32.ne (i32.load (i32.const 516)) (i32.const 300)) \
        (i32.ne (i32.load8_u (i32.add (i32.load (i32.const 512)) (i32.const 299))) (i32.const 43))) (then unreachable)) \
    (i32.const {answer})";
/// Traps if two reads of the clock differ, and answers otherwise.
pub(crate) const CLOCK_MOVES: &str = "(if (i64.ne (call $now) (call $now)) (then unreachable)) (i32.const {answer})";
/// Traps if an earlier call left a mark in memory. Otherwise leaves one, and answers.
pub(crate) const REMEMBERS: &str = "(if (i32.load8_u (i32.const 768)) (then unreachable)) \
    (i32.store8 (i32.const 768) (i32.const 1)) (i32.const {answer})";
/// Runs `first` in an instance's first call, and answers. Runs `then` in the second, which must not return.
pub(crate) fn at_first(first: &str, then: &str) -> String {
    format!(
        "(if (i32.load8_u (i32.const 768)) (then {then})) (i32.store8 (i32.const 768) (i32.const 1)) {first} (i32.const {{answer}})"
    )
}
/// Answers `most` calls of an instance, and traps in the next.
pub(crate) fn counts_to(most: u32) -> String {
    format!(
        "(i32.store (i32.const 768) (i32.add (i32.load (i32.const 768)) (i32.const 1))) \
         (if (i32.gt_u (i32.load (i32.const 768)) (i32.const {most})) (then unreachable)) (i32.const {{answer}})"
    )
}
/// Logs an error.
pub(crate) const LOG: &str =
    "(call $log (i32.const 0) (i32.const {said}) (i32.const {said.len}) (i32.const 0) (i32.const 0))";
/// Traps if the clock shows the time of the call before, and answers otherwise.
pub(crate) const CLOCK_STANDS: &str = "(if (i64.eq (i64.load (i32.const 776)) (call $now)) (then unreachable)) \
    (i64.store (i32.const 776) (call $now)) (i32.const {answer})";
/// A `map` or `observe` that traps if an earlier call left a mark in memory.
pub(crate) const FINDS_NOTHING: &str = "(if (i32.load8_u (i32.const 768)) (then unreachable))";
/// A `describe` that accepts only the configuration `{}`.
pub(crate) const PICKY: &str =
    "(select (i32.const {manifest}) (i32.const {refusal}) (i32.eq (local.get 1) (i32.const 2)))";
/// The message of [`PICKY`].
pub(crate) const REFUSAL: &str = "colour: not a colour";
/// A `map` that returns the key `default/mapped`.
pub(crate) const MAPS: &str = "(i32.const {keys})";
/// A `map` or `observe` that fails with [`MISTAKE`].
pub(crate) const MISTAKEN: &str = "(i32.const {mistake})";
/// An `observe` that succeeds.
pub(crate) const TAKES: &str = "(i32.const {taken})";
/// The message of [`MISTAKEN`].
pub(crate) const MISTAKE: &str = "cannot tell";
/// The log line of [`LOG_AND_TRAP`].
pub(crate) const SAID: &str = "panicked at src/lib.rs:7:5: no apples left";

/// A plugin to be assembled.
#[derive(Clone)]
pub(crate) struct Guest {
    version: &'static str,
    watched: (&'static str, &'static str),
    owned: Vec<(&'static str, &'static str)>,
    mapped: Vec<((&'static str, &'static str), Mapping)>,
    read: Vec<(&'static str, &'static str)>,
    observed: Vec<(&'static str, &'static str)>,
    indexes: Vec<(&'static str, (&'static str, &'static str), &'static str)>,
    /// Its CustomResourceDefinitions.
    definitions: Vec<String>,
    frugal: bool,
    reuse: bool,
    resync: Option<u32>,
    concurrency: u32,
    timeout_ms: Option<u32>,
    finalizer: Option<&'static str>,
    controller: &'static str,
    start: Option<&'static str>,
    describe: String,
    reconcile: String,
    map: Option<String>,
    observe: Option<String>,
    answer: Answer,
    /// Reasons and messages.
    events: Vec<(&'static str, &'static str)>,
    pages: u32,
    memories: usize,
    globals: usize,
}

/// The mapping of a watch.
#[derive(Clone, Copy)]
pub(crate) enum Mapping {
    SameKey,
    Index(&'static str),
    Plugin,
}

/// What `reconcile` returns when it answers.
#[derive(Clone)]
pub(crate) enum Answer {
    Children {
        children: Vec<(String, bool)>,
        status: Option<String>,
        requeue_after: Option<u64>,
    },
    Unchanged,
    Failure {
        message: String,
        terminal: bool,
        status: Option<String>,
    },
    /// A child that [`garbles`] makes unreadable.
    Garbled,
    /// Children that all lie in the same place.
    Aliased {
        children: u32,
        bytes: u32,
    },
    /// Bytes that do not fit the contract.
    Nonsense,
}

/// Takes a few hundredths of a second: more than pre-warming may take on any machine, and less than `describe` may take
/// on a slow one.
pub(crate) const SLOWLY: &str = "(local $n i32) \
    (loop $more (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100000000))))";

/// Answers.
pub(crate) const ANSWER: &str = "(i32.const {answer})";

impl Guest {
    /// Watches `MyApple`, owns `ConfigMap`, wants no children.
    pub(crate) fn new() -> Self {
        Self {
            version: "1.0.0",
            watched: ("stable.example.com/v1", "MyApple"),
            owned: vec![("v1", "ConfigMap")],
            mapped: Vec::new(),
            read: Vec::new(),
            observed: Vec::new(),
            indexes: Vec::new(),
            definitions: Vec::new(),
            frugal: false,
            reuse: false,
            resync: None,
            concurrency: 0,
            timeout_ms: None,
            finalizer: None,
            controller: "apples",
            start: None,
            describe: "(i32.const {manifest})".to_owned(),
            reconcile: ANSWER.to_owned(),
            map: None,
            observe: None,
            answer: Answer::Unchanged,
            events: Vec::new(),
            pages: 2,
            memories: 1,
            globals: 0,
        }
    }

    pub(crate) fn version(self, version: &'static str) -> Self {
        Self { version, ..self }
    }

    /// Reconciles objects of this kind.
    pub(crate) fn watches(self, api_version: &'static str, kind: &'static str) -> Self {
        Self { watched: (api_version, kind), ..self }
    }

    /// Owns this kind only.
    pub(crate) fn owns(self, api_version: &'static str, kind: &'static str) -> Self {
        Self { owned: vec![(api_version, kind)], ..self }
    }

    /// Adds a CustomResourceDefinition.
    pub(crate) fn brings(mut self, definition: String) -> Self {
        self.definitions.push(definition);
        self
    }

    /// Owns nothing.
    pub(crate) fn owns_nothing(self) -> Self {
        Self { owned: Vec::new(), ..self }
    }

    /// Adds this kind to `watches`.
    pub(crate) fn maps(mut self, api_version: &'static str, kind: &'static str, mapping: Mapping) -> Self {
        self.mapped.push(((api_version, kind), mapping));
        self
    }

    /// Adds this kind to `reads`.
    pub(crate) fn reads(mut self, api_version: &'static str, kind: &'static str) -> Self {
        self.read.push((api_version, kind));
        self
    }

    /// Adds this kind to `observes`.
    pub(crate) fn observes(mut self, api_version: &'static str, kind: &'static str) -> Self {
        self.observed.push((api_version, kind));
        self
    }

    /// Adds an index of this kind by a field.
    pub(crate) fn index(mut self, name: &'static str, of: (&'static str, &'static str), path: &'static str) -> Self {
        self.indexes.push((name, of, path));
        self
    }

    /// Watches all kinds but its own as metadata only, without annotations, compressed.
    pub(crate) fn frugal(self) -> Self {
        Self { frugal: true, ..self }
    }

    /// Asks for its instances to be reused.
    pub(crate) fn reuse(self) -> Self {
        Self { reuse: true, ..self }
    }

    /// Sets the resync interval in seconds.
    pub(crate) fn resync(self, seconds: u32) -> Self {
        Self { resync: Some(seconds), ..self }
    }

    pub(crate) fn concurrency(self, concurrency: u32) -> Self {
        Self { concurrency, ..self }
    }

    pub(crate) fn controller(self, controller: &'static str) -> Self {
        Self { controller, ..self }
    }

    pub(crate) fn timeout_ms(self, timeout: u32) -> Self {
        Self { timeout_ms: Some(timeout), ..self }
    }

    /// Sets the finalizer, and asks to patch its kind.
    pub(crate) fn finalizer(self, finalizer: &'static str) -> Self {
        Self { finalizer: Some(finalizer), ..self }
    }

    /// The instructions that run at the start of each instance.
    pub(crate) fn start(self, body: &'static str) -> Self {
        Self { start: Some(body), ..self }
    }

    /// The instructions of `describe`.
    pub(crate) fn describe(self, body: &str) -> Self {
        Self { describe: body.to_owned(), ..self }
    }

    /// The instructions of `reconcile`.
    pub(crate) fn reconcile(self, body: &str) -> Self {
        Self { reconcile: body.to_owned(), ..self }
    }

    /// The instructions of `map`. Without them it is not exported. Parameters: config, controller, changes.
    pub(crate) fn map(self, body: &str) -> Self {
        Self { map: Some(body.to_owned()), ..self }
    }

    /// The instructions of `observe`. Without them it is not exported. Parameters: config, changes.
    pub(crate) fn observe(self, body: &str) -> Self {
        Self { observe: Some(body.to_owned()), ..self }
    }

    pub(crate) fn answer(self, answer: Answer) -> Self {
        Self { answer, ..self }
    }

    /// Adds an Event to its answer.
    pub(crate) fn event(mut self, reason: &'static str, message: &'static str) -> Self {
        self.events.push((reason, message));
        self
    }

    /// Initial memory in pages of 64 kB.
    pub(crate) fn pages(self, pages: u32) -> Self {
        Self { pages, ..self }
    }

    /// The number of memories.
    pub(crate) fn memories(self, memories: usize) -> Self {
        Self { memories, ..self }
    }

    /// The number of additional globals.
    pub(crate) fn globals(self, globals: usize) -> Self {
        Self { globals, ..self }
    }

    /// Returns the plugin's file: a core module with component metadata.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut module = wat::parse_str(self.text()).unwrap();
        let mut resolve = Resolve::default();
        let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        let (package, _) = resolve.push_dir(&wit).unwrap();
        let worlds = [("plugin", true), ("mapping", self.map.is_some()), ("observing", self.observe.is_some())];
        for (name, _) in worlds.iter().filter(|(_, exported)| *exported) {
            let world = resolve.select_world(&[package], Some(name)).unwrap();
            wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        }
        if self.text().contains("$wasi:") {
            let world = wasi::world(&mut resolve);
            wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        }
        module
    }

    /// Returns the module without metadata.
    pub(crate) fn module(&self) -> Vec<u8> {
        wat::parse_str(self.text()).unwrap()
    }

    /// Returns the plugin as a component.
    pub(crate) fn component(&self) -> Vec<u8> {
        wit_component::ComponentEncoder::default().module(&self.file()).unwrap().encode().unwrap()
    }

    fn text(&self) -> String {
        let mut image = Image::default();
        let manifest = self.manifest(&mut image);
        let events: Vec<Vec<u8>> = self.events.iter().map(|event| image.event(*event)).collect();
        image.events = image.list(&events);
        let answer = self.answer.lay_out(&mut image);
        let refusal = image.text(REFUSAL);
        let refusal = image.record(|r| {
            r.u8(1).align(4).pair(refusal);
        });
        let mapped = image.mapped();
        let mistake = image.text(MISTAKE);
        let mistake = image.record(|r| {
            r.u8(1).align(4).pair(mistake);
        });
        let taken = image.record(|r| {
            r.u8(0).align(4).pair((0, 0));
        });
        let (said, said_len) = image.text(SAID);
        let (api_version, api_version_len) = image.text(self.watched.0);
        let (kind, kind_len) = image.text(self.watched.1);
        let read = self.read.first().copied().unwrap_or(("v1", "None"));
        let [settings, first, go] = ["settings", "first", "go"].map(|name| {
            if name != "settings" && !self.reconcile.contains(&format!("{{{name}}}")) {
                return String::new();
            }
            let texts = [read.0, read.1, "default", name].map(|text| image.text(text));
            let [api_version, kind, namespace, name] =
                texts.map(|(at, len)| format!("(i32.const {at}) (i32.const {len})"));
            format!("{api_version} {kind} (i32.const 1) {namespace} {name}")
        });
        let fill = |body: &str| {
            body.replace("{manifest}", &manifest.to_string())
                .replace("{refusal}", &refusal.to_string())
                .replace("{answer}", &answer.to_string())
                .replace("{keys}", &mapped.to_string())
                .replace("{mistake}", &mistake.to_string())
                .replace("{taken}", &taken.to_string())
                .replace("{settings}", &settings)
                .replace("{first}", &first)
                .replace("{go}", &go)
                .replace("{said}", &said.to_string())
                .replace("{said.len}", &said_len.to_string())
                .replace(
                    "{key}",
                    // A type-meta, and a key without a namespace whose name is the kind.
                    &format!(
                        "(i32.const {api_version}) (i32.const {api_version_len}) (i32.const {kind}) (i32.const {kind_len}) \
                         (i32.const 0) (i32.const 0) (i32.const 0) (i32.const {kind}) (i32.const {kind_len})"
                    ),
                )
        };
        let (describe, reconcile) = (fill(&self.describe), fill(&self.reconcile));
        let exported = |body: Option<&String>, function: &str, parameters: usize| {
            body.map_or_else(String::new, |body| {
                let parameters = "i32 ".repeat(parameters);
                format!(
                    r#"(func (export "pilothouse:plugin/{function}") (param {parameters}) (result i32) {})"#,
                    fill(body)
                )
            })
        };
        let map = exported(self.map.as_ref(), "mapper@0.1.0#map", 6);
        let observe = exported(self.observe.as_ref(), "observer@0.1.0#observe", 4);
        let used = |name: &str| [&describe, &reconcile, &map, &observe].iter().any(|body| body.contains(name));
        let mut imports = String::new();
        let contract = [
            ("log", "write", "$log", "(param i32 i32 i32 i32 i32)"),
            ("cache", "get", "$cache_get", "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)"),
            ("client", "get", "$client_get", "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)"),
            ("clock", "now", "$now", "(result i64)"),
            ("random", "bytes", "$random", "(param i32 i32)"),
            ("host", "has", "$has", "(param i32 i32) (result i32)"),
        ];
        let contract = contract.map(|(interface, function, name, signature)| {
            (format!("pilothouse:plugin/{interface}@0.1.0"), function, name.to_owned(), signature)
        });
        let wasi = wasi::FUNCTIONS.map(|(interface, function, signature)| {
            (interface.to_owned(), function, wasi::name(interface, function), signature)
        });
        for (interface, function, name, signature) in contract.into_iter().chain(wasi) {
            if used(&name) {
                writeln!(imports, r#"(import "{interface}" "{function}" (func {name} {signature}))"#).unwrap();
            }
        }
        let export = "pilothouse:plugin/controller@0.1.0";
        format!(
            r#"(module
                {imports}
                (memory (export "memory") {pages}) {memories} {globals} {table}
                (global $free (mut i32) (i32.const {free}))
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                    (local $at i32)
                    (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                    (global.set $free (i32.add (local.get $at) (local.get 3)))
                    (local.get $at))
                (func $deep (param i32) (result i32)
                    (i32.add (i32.const 1) (call $deep (i32.add (local.get 0) (i32.const 1)))))
                (func $wide (param i32) (result i32) (drop (i32.load (local.get 0)))
                    (i32.add (i32.const 1) (call $wide (i32.sub (local.get 0) (i32.const 65536)))))
                (func $so_deep (param i32) (result i32) (local {locals})
                    (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
                    {loads}
                    (call $so_deep (i32.sub (local.get 0) (i32.const 1)))
                    (i32.add (i32.add (local.get 1) (local.get 2))))
                (func $describe (export "{export}#describe") (param i32 i32) (result i32) {describe})
                (func $reconcile (export "{export}#reconcile")
                    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) {reconcile})
                {map}
                {observe}
                {start}
                (data (i32.const {BASE}) "{data}"))"#,
            locals = "i32 ".repeat(LOCALS),
            loads = (1..=LOCALS).fold(String::new(), |loads, local| {
                let before = local - 1;
                format!("{loads} (local.set {local} (i32.add (local.get {before}) (i32.load (i32.const {local}))))")
            }),
            pages = self.pages,
            table = if used("$table") { "(table $table 1 funcref)" } else { "" },
            start = self.start.map_or_else(String::new, |body| format!("(func $start {body}) (start $start)")),
            memories = "(memory 1)".repeat(self.memories - 1),
            globals = "(global i64 (i64.const 0)) ".repeat(self.globals),
            free = BASE + image.bytes.len(),
            data = image.escaped(),
        )
    }

    /// `result<manifest, string>`.
    fn manifest(&self, image: &mut Image) -> usize {
        let name = image.text(self.controller);
        let owned = image.watches(&self.owned);
        image.frugal = self.frugal;
        let watched = image.watch(self.watched);
        let mapped: Vec<Vec<u8>> = self.mapped.iter().map(|(of, mapping)| image.mapped_watch(*of, *mapping)).collect();
        let mapped = image.list(&mapped);
        let read = image.watches(&self.read);
        let finalizer = self.finalizer.map(|finalizer| image.text(finalizer));
        let controller = Record::build(|r| {
            r.pair(name).bytes(&watched).pair(owned).pair(mapped).pair(read).u32(self.concurrency);
            r.number(self.resync).number(self.timeout_ms).option(finalizer);
        });
        let controllers = image.list(&[controller]);
        let indexes: Vec<Vec<u8>> = self.indexes.iter().map(|index| image.index(*index)).collect();
        let (indexes, observed) = (image.list(&indexes), image.watches(&self.observed));
        // Read, apply and delete for each kind, apply for the status.
        let mut permissions: Vec<Vec<u8>> = Vec::new();
        let others = self.mapped.iter().map(|(of, _)| of).chain(&self.read).chain(&self.observed);
        for of in std::iter::once(&self.watched).chain(&self.owned).chain(others) {
            permissions.push(image.permission(*of, None, &[0, 4, 5]));
        }
        permissions.push(image.permission(self.watched, Some(0), &[4]));
        if self.finalizer.is_some() {
            permissions.push(image.permission(self.watched, None, &[3]));
        }
        if !self.events.is_empty() {
            permissions.push(image.permission(("v1", "Event"), None, &[1]));
        }
        if !self.definitions.is_empty() {
            permissions.push(image.permission(("apiextensions.k8s.io/v1", "CustomResourceDefinition"), None, &[0, 4]));
        }
        let permissions = image.list(&permissions);
        let mut definition = |text: &String| {
            let text = image.text(text);
            Record::build(|r| {
                r.pair(text);
            })
        };
        let definitions: Vec<Vec<u8>> = self.definitions.iter().map(&mut definition).collect();
        let definitions = image.list(&definitions);
        let (version, description) = (image.text(self.version), image.text("A plugin for tests."));
        image.record(|r| {
            r.u8(0).align(4).pair(version).pair(description).pair(controllers).pair(indexes).pair(observed);
            r.pair(permissions).pair(definitions).u32(0).u32(0).u32(0).u8(u8::from(self.reuse)).align(4);
            // No metrics, servers and webhooks.
            r.pair((0, 0)).pair((0, 0)).pair((0, 0));
        })
    }
}

impl Answer {
    /// `result<outcome, failure>`.
    fn lay_out(&self, image: &mut Image) -> usize {
        match self {
            Self::Unchanged => image.outcome(0, (0, 0), None, None),
            Self::Children { children, status, requeue_after } => {
                let children: Vec<Vec<u8>> = children
                    .iter()
                    .map(|(object, adopt)| {
                        let object = image.text(object);
                        Record::build(|r| {
                            r.pair(object).u8(u8::from(*adopt)).u8(0).align(4);
                        })
                    })
                    .collect();
                let list = image.list(&children);
                let status = status.as_deref().map(|s| image.text(s));
                image.outcome(1, list, status, *requeue_after)
            }
            Self::Garbled => {
                let child = Record::build(|r| {
                    r.pair((BASE, 2)).u8(0).u8(0).align(4);
                });
                let list = image.list(&[child]);
                image.outcome(1, list, None, None)
            }
            Self::Aliased { children, bytes } => {
                let text = image.text(&" ".repeat(*bytes as usize));
                let child = Record::build(|r| {
                    r.pair(text).u8(0).u8(0).align(4);
                });
                let list = image.list(&vec![child; *children as usize]);
                image.outcome(1, list, None, None)
            }
            Self::Failure { message, terminal, status } => {
                let message = image.text(message);
                let status = status.as_deref().map(|s| image.text(s));
                let events = image.events;
                image.record(|r| {
                    r.u8(1).align(8).pair(message).u8(u8::from(*terminal)).align(4).option(status).pair(events);
                })
            }
            Self::Nonsense => image.record(|r| {
                r.u8(77).align(8);
            }),
        }
    }
}

//! Plugins that were built for each version of the contract still load and answer: `tests/fixtures`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, iter,
    path::{Path, PathBuf},
};

use pilothouse_core::manifest::{Operation, WebhookType};
use wit_component::WitPrinter;
use wit_parser::{PackageId, Resolve};

use super::*;
use crate::wasm::contract::{
    package::EXPORTS,
    review::{Review, User},
};

/// Returns the folder of each version.
fn versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")).unwrap();
    let folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    assert!(!folders.is_empty());
    folders
}

#[tokio::test]
async fn plugins_of_each_version_answer_each_call() {
    for folder in versions() {
        for file in ["module.wasm", "component.wasm"].map(|name| folder.join(name)) {
            let linked = Engine::new().unwrap().compile(&fs::read(file).unwrap()).unwrap().link().await.unwrap();
            assert!(EXPORTS.into_iter().all(|export| linked.exports().iter().any(|name| name.contains(export))));
            let name = PluginName::new("fixture").unwrap();
            let revision = linked.describe(name, "{}".into(), Limits::default()).await.unwrap();
            answers(&revision).await;
        }
    }
}

async fn answers(revision: &Revision) {
    // Time 0 would be no time.
    let imports = || Arc::new(Fake { time: 1.into(), ..Fake::default() });
    let request = Request { controller: "maps".into(), ..request() };
    let outcome = revision.reconcile(imports(), request).await.unwrap().unwrap();
    let seen = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"red-seen"},"data":{"attempt":"1","phase":"live","clock.now":"true","random.bytes":"8"}}"#;
    let child = Child { object: seen.to_owned(), adopt: false, replace: false };
    assert_eq!(outcome.children, Children::Desired(vec![child]));

    let keys = revision.map(imports(), "maps", &[news()]).await.unwrap();
    assert_eq!(keys, Ok(vec![Key::new(Some("orchard"), "red")]));
    let observing = imports();
    assert_eq!(revision.observe(observing.clone(), &[news()]).await.unwrap(), Ok(()));
    assert_eq!(observing.lines.lock()[0].message, "observed red");

    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"deny":"yes"},"name":"red"}}"#;
    let review = Review {
        webhook: "validates".to_owned(),
        operation: Operation::Create,
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        namespace: None,
        name: "red".to_owned(),
        subresource: None,
        object: Some(object.to_owned()),
        old: None,
        user: User { name: "admin".to_owned(), uid: String::new(), groups: Vec::new() },
        dry_run: false,
    };
    let second = Duration::from_secs(60);
    let (decision, _) = revision.review(imports(), WebhookType::Validating, &review, second).await.unwrap().unwrap();
    assert_eq!((decision.denied.as_deref(), decision.code), (Some("red is denied"), Some(422)));
    assert_eq!(decision.audit_annotations, [("by".to_owned(), "admin".to_owned())]);
    let (_, changed) = revision.review(imports(), WebhookType::Mutating, &review, second).await.unwrap().unwrap();
    let labelled = object.replace(r#""deny""#, r#""mutated":"yes","deny""#);
    assert_eq!(changed, Some(labelled));

    let converted = revision.convert("v2", &[object.to_owned()], second).await.unwrap();
    assert_eq!(converted, Ok(vec![object.replace("\"v1\"", "\"v2\"")]));
}

/// The items of each interface and world, as text without comments.
type Items = BTreeMap<String, BTreeSet<String>>;

/// Reads the contract of a folder, or of a file.
fn contract(path: &Path) -> Items {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(path).unwrap();
    items(&resolve, package)
}

fn items(resolve: &Resolve, package: PackageId) -> Items {
    let mut printer = WitPrinter::default();
    printer.emit_docs(false).print(resolve, package, &[]).unwrap();
    let text = printer.output.to_string();
    let (mut items, mut block, mut item) = (Items::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(" {").filter(|line| !line.starts_with(' ')) {
            name.clone_into(&mut block);
            continue;
        }
        let Some(line) = line.strip_prefix("  ") else { continue };
        item.push_str(line);
        // A declaration ends with its line, or with a brace of its own.
        if (line.starts_with(' ') || !line.ends_with(';')) && line != "}" {
            continue;
        }
        let used = item.strip_prefix("use ").and_then(|used| used.strip_suffix("};")?.split_once(".{"));
        let items = items.entry(block.clone()).or_default();
        match used {
            Some((from, names)) => items.extend(names.split(", ").map(|name| format!("use {from}.{name}"))),
            None => drop(items.insert(item.clone())),
        }
        item.clear();
    }
    assert!(item.is_empty(), "{item}");
    items
}

/// Returns what a plugin for the contract `then` misses in the contract `now`.
fn missed(then: &Items, now: &Items) -> Vec<String> {
    let none = BTreeSet::new();
    let mut missed = Vec::new();
    for (block, old) in then {
        let new = now.get(block).unwrap_or(&none);
        missed.extend(old.difference(new).map(|item| format!("{block} lacks {item}")));
        // A plugin exports all functions of an interface, or none.
        if EXPORTS.iter().any(|export| *block == format!("interface {export}")) {
            let functions = new.difference(old).filter(|item| item.contains(": func("));
            missed.extend(functions.map(|item| format!("{block} has more: {item}")));
        }
    }
    missed
}

#[test]
fn contract_has_all_that_it_had_in_each_version() {
    let now = contract(Path::new("../wit"));
    for folder in versions() {
        let then = contract(&folder.join("contract.wit"));
        let blocks = EXPORTS.iter().map(|export| format!("interface {export}"));
        assert!(blocks.chain(iter::once("world plugin".to_owned())).all(|block| then.contains_key(&block)), "{then:?}");
        assert_eq!(missed(&then, &now), Vec::<String>::new(), "{}", folder.display());
    }
}

#[test]
fn only_additions_that_no_plugin_has_to_follow_are_compatible() {
    const THEN: &str = "package pilothouse:plugin@0.1.0;
        interface cache { record key { name: string } enum verb { get } get: func(key: key) -> verb; }
        interface mapper { use cache.{key}; %map: func(key: key); }
        world plugin { import cache; export mapper; }";
    let parsed = |text: &str| {
        let mut resolve = Resolve::default();
        let package = resolve.push_str("contract.wit", text).unwrap();
        items(&resolve, package)
    };
    let missed = |from: &str, to: &str| {
        assert!(THEN.contains(from));
        missed(&parsed(THEN), &parsed(&THEN.replacen(from, to, 1)))
    };
    for (from, to) in [
        ("get: func", "%list: func(); get: func"),
        ("enum verb", "enum other { one } enum verb"),
        ("world", "interface clock { now: func() -> u64; } world"),
        ("import cache", "import clock: func() -> u64; import cache"),
        ("use cache.{key}", "use cache.{key, verb}"),
    ] {
        assert_eq!(missed(from, to), Vec::<String>::new(), "{to}");
    }
    for (from, to, why) in [
        ("name: string", "name: string, namespace: string", "interface cache lacks record key {"),
        ("{ get }", "{ get, put }", "interface cache lacks enum verb {"),
        ("-> verb", "-> key", "interface cache lacks get: func(key: key) -> verb;"),
        ("%map: func", "unmap: func(); %map: func", "interface mapper has more: unmap: func();"),
        ("export mapper; ", "", "world plugin lacks export mapper;"),
    ] {
        let missed = missed(from, to);
        assert!(missed.first().is_some_and(|missed| missed.starts_with(why)), "{to}: {missed:?}");
    }
}

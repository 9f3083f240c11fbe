//! `pilothouse test`: the cases of the plugins in this repository, and what the command says about others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::host::{binary, built};

/// Runs the command in a new folder with these files. Returns its exit code, and both outputs.
fn test(plugin: &str, files: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("a file");
    }
    test_in(dir.path(), plugin, arguments)
}

fn test_in(dir: &Path, plugin: &str, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(binary().expect("run `make build` first"));
    command.arg("test").arg(built(plugin)).args(arguments).current_dir(dir);
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text.into_owned())
}

#[test]
fn cases_of_every_plugin_pass() {
    let mut count = 0;
    for folder in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins")).expect("the plugins") {
        let folder = folder.expect("an entry").path();
        let cases: PathBuf = folder.join("cases");
        if !cases.is_dir() {
            continue;
        }
        count += 1;
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let (code, said) = test(&format!("plugins/{name}.wasm"), &[], &[&cases.display().to_string()]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(" 0 failed"), "{said}");
    }
    assert!(count > 1, "no cases were found");
}

const APPLE: &str = "{apiVersion: stable.example.com/v1, kind: MyApple, metadata: {name: pie}, \
                     spec: {color: red, size: small, quantity: 1}}";

#[test]
fn difference_is_shown_with_its_line_and_what_has_happened() {
    let text = format!(
        "name: one apple\nwhen:\n  apply: {APPLE}\nthen:\n  objects:\n    - apiVersion: v1\n      kind: ConfigMap\n      \
         metadata: {{name: pie-0}}\n      data: {{color: green}}\n  absent: [v1 ConfigMap default/pie-0]\n"
    );
    let (code, said) = test("plugins/myapple.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 1, "{said}");
    for line in [
        "FAILED  a.yaml:1: one apple",
        "a.yaml:9: v1 ConfigMap default/pie-0: data.color: expected \"green\", found \"red\"",
        "a.yaml:10: v1 ConfigMap default/pie-0: expected none, found one",
        "apply ConfigMap default/pie-0",
        "0 passed, 1 failed",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
}

#[test]
fn mistakes_in_case_files_are_told_with_their_lines_and_nothing_runs() {
    let unknown = "name: a\nwhen:\n  aply: {}\nthen: {}\n---\nname: a\nthen:\n  object: []\n";
    let files =
        [("unknown.yaml", unknown), ("broken.yaml", "name: [\n"), ("twice.yaml", "name: b\nname: c\nthen: {}\n")];
    let (code, said) = test("plugins/myapple.wasm", &files, &["."]);
    assert_eq!(code, 2, "{said}");
    for line in [
        "unknown.yaml:3: aply is not known here",
        "unknown.yaml:8: object is not known here",
        "broken.yaml: ",
        "twice.yaml:2: name is given twice",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    assert!(!said.contains("passed"), "{said}");
}

#[test]
fn update_writes_what_was_found_and_junit_has_the_results() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = |writes: &str, available: u8| {
        format!(
            "name: one apple # of many\nwhen:\n  apply: {APPLE}\nthen:\n  writes:\n{writes}  objects:\n    - apiVersion: \
             stable.example.com/v1\n      kind: MyApple\n      metadata: {{name: pie}}\n      status:\n        available: {available} # at last\n"
        )
    };
    let file = dir.path().join("a.yaml");
    fs::write(&file, text("    - apply ConfigMap default/other\n", 7)).expect("a file");
    let (code, said) =
        test_in(dir.path(), "plugins/myapple.wasm", &["a.yaml", "--update", "--junit", "a.xml", "--jobs", "1"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("updated a.yaml (2 values)"), "{said}");
    let writes = "    - apply ConfigMap default/pie-0\n    - apply MyApple/status default/pie\n";
    assert_eq!(fs::read_to_string(&file).expect("the file"), text(writes, 1));
    let xml = fs::read_to_string(dir.path().join("a.xml")).expect("the report");
    assert!(xml.contains("<testsuite name=\"a.yaml\" tests=\"1\" failures=\"0\""), "{xml}");
}

/// Gives the definition of MyApple, which the guests do not bring.
const KIND: &str = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
                    metadata: {name: myapples.stable.example.com}, spec: {group: stable.example.com, scope: Namespaced, \
                    names: {kind: MyApple, plural: myapples}, versions: [{name: v1, served: true, storage: true, \
                    subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, \
                    x-kubernetes-preserve-unknown-fields: true}}}]}}";

#[test]
fn plugin_that_dies_fails_its_case_with_the_backtrace_and_no_other() {
    let bad = APPLE.replace("pie", "bad-pie");
    let case = |name: &str, apple: &str, then: &str| {
        format!("---\nname: {name}\ngiven: {{objects: [{KIND}]}}\nwhen: {{apply: {apple}}}\nthen: {then}\n")
    };
    let text = case("dies", &bad, "{}")
        + &case("lives", APPLE, "{}")
        + &case("dies as expected", &bad, "{error: a bad apple}");
    let (code, said) = test("guests/trapping.wasm", &[("a.yaml", &text)], &["a.yaml", "-v"]);
    assert_eq!(code, 1, "{said}");
    for line in ["a.yaml:2: dies", "a bad apple", "trapping", ": lives (", ": dies as expected (", "2 passed, 1 failed"]
    {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    let (code, said) =
        test("guests/looping.wasm", &[("a.yaml", &case("loops", &bad, "{error: deadline}"))], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn metrics_requests_and_reviews_are_compared() {
    let text = format!(
        "name: measured\ngiven: {{objects: [{KIND}]}}\nwhen: {{apply: {APPLE}}}\nthen:\n  metrics: {{'apples_quantity{{color=red,size=small}}': 1, \
         apples_eaten_total: 0, apples_quantities_count: 2}}\n"
    );
    let (code, said) = test("guests/measuring.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");

    let conditions = "conditions: [{type: Granted, message: 201 made}, {type: Broken, reason: Unreachable}, {type: Slow, reason: Timeout}]";
    let answers = "[{url: 'http://127.0.0.1:8080/broken', unreachable: true}, {url: 'http://127.0.0.1:8080/slow', delay: 1s}, \
                   {url: 'http://*', status: 201, body: made}]";
    let text = format!(
        "name: sent\ngiven:\n  config: {{port: 8080, elsewhere: 8081}}\n  objects: [{KIND}]\n  http: {answers}\nwhen: {{apply: {APPLE}}}\nthen:\n  \
         objects: [{{apiVersion: stable.example.com/v1, kind: MyApple, metadata: {{name: pie}}, status: {{{conditions}}}}}]\n"
    );
    let (code, said) = test("guests/sending.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
    let unanswered = text.replace("'http://*'", "'http://nobody.example.com/'");
    let (code, said) = test("guests/sending.wasm", &[("a.yaml", &unanswered)], &["a.yaml"]);
    assert!(code == 1 && said.contains("the plugin sent POST http://127.0.0.1:8080/ok, and neither"), "{said}");

    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, image: evil.example.com/web}]}}";
    let policy = "{apiVersion: v1, kind: ConfigMap, metadata: {name: images}, data: {registry: good.example.com/}}";
    let text = format!(
        "name: reviewed\ngiven:\n  config: {{namespace: default}}\n  objects: [{policy}]\nsteps:\n- when: {{review: {{webhook: images, object: {pod}}}}}\n  \
         then: {{review: {{allowed: false, code: 422, message: the image evil.example.com/web is not from good.example.com/, warnings: [the images were \
         reviewed]}}}}\n- when: {{review: {{webhook: labels, object: {pod}, dryRun: true}}}}\n  then: {{review: {{allowed: true, object: {{metadata: \
         {{labels: {{reviewed: dry-run}}}}}}}}}}\n"
    );
    let (code, said) = test("guests/reviewing.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn compiled_code_of_a_short_run_is_kept_for_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = format!("name: one apple\nwhen: {{apply: {APPLE}}}\nthen: {{}}\n");
    fs::write(dir.path().join("a.yaml"), text).expect("a file");
    let kept = || {
        let entries = fs::read_dir(dir.path().join("code")).expect("the cache");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let run = || {
        let (code, said) = test_in(dir.path(), "plugins/myapple.wasm", &["a.yaml", "--cache-dir", "code"]);
        assert_eq!(code, 0, "{said}");
    };
    run();
    let first = kept();
    assert!(first.iter().any(|name| name.to_string_lossy().ends_with(".cwasm")), "{first:?}");
    run();
    assert_eq!(kept(), first);
}

#[test]
fn failed_conversions_and_unknown_versions_are_told() {
    let lamp = |spec: &str| {
        format!("{{apiVersion: converting.example.com/v2, kind: Lamp, metadata: {{name: hall}}, spec: {spec}}}")
    };
    let case = |name: &str, lamp: &str, to: &str, then: &str| {
        format!("---\nname: {name}\nwhen: {{convert: {{object: {lamp}, to: {to}}}}}\nthen: {then}\n")
    };
    let text = case("panics", &lamp("{percent: 1001}"), "v1", "{}")
        + &case("differs", &lamp("{percent: 5}"), "v1", "{converted: {spec: {lit: false}}}")
        + &case("not served", &lamp("{percent: 5}"), "v3", "{}")
        + &case(
            "same version",
            &lamp("{percent: 5}"),
            "converting.example.com/v2",
            "{converted: {spec: {percent: 5}}}",
        );
    let (code, said) = test("guests/converting.wasm", &[("a.yaml", &text)], &["a.yaml", "-v"]);
    assert_eq!(code, 1, "{said}");
    for line in [
        "the conversion failed: plugin trapped",
        "converted.spec.lit: expected false, found true",
        "converting.example.com/v3 Lamp is not served",
        ": same version (",
        "1 passed, 3 failed",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    let (code, said) = test("plugins/myapple.wasm", &[("a.yaml", &case("none", &lamp("{}"), "v1", "{}"))], &["a.yaml"]);
    assert!(code == 1 && said.contains("the plugin converts no objects"), "{said}");
}

/// Returns the blocks of code of a page: the language, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```");
            blocks.push((language.to_owned(), text.flat_map(|line| [line, "\n"]).collect()));
        }
    }
    blocks
}

/// Replaces the time at the end of the summary, which differs.
fn without_time(said: &str) -> String {
    let end = said.rfind("failed, in ").expect("a summary");
    format!("{}failed, in … s\n", &said[..end])
}

#[test]
fn examples_of_the_page_run_as_it_says() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/testing.md")).expect("the page");
    let blocks = blocks(&page);
    let of =
        |language: &'static str| blocks.iter().filter(move |(of, _)| of == language).map(|(_, text)| text.as_str());
    let yaml: Vec<&str> = of("yaml").collect();
    let [pie, fault, http, review, conversions] = yaml[..] else { panic!("{} blocks of YAML", yaml.len()) };
    let console = of("console").next().expect("the command");
    let (command, expected) = console.split_once('\n').expect("a command and its output");
    assert_eq!(command, "$ pilothouse test target/plugins/myapple.wasm pie.yaml");
    let pies = [("pie.yaml", pie)];
    let (code, said) = test("plugins/myapple.wasm", &pies, &["pie.yaml"]);
    assert_eq!((code, without_time(&said)), (0, without_time(expected)));
    let wrong = pie.replace("available: 1", "available: 7");
    let (code, said) = test("plugins/myapple.wasm", &[("pie.yaml", &wrong)], &["pie.yaml"]);
    // How often a key is reconciled after a write may differ.
    let without_repetition = |said: &str| {
        let mut lines: Vec<String> = without_time(said).lines().map(str::to_owned).collect();
        lines.dedup();
        lines
    };
    let expected = of("text").next().expect("its output");
    assert_eq!((code, without_repetition(&said)), (1, without_repetition(expected)));

    let given = "given:\n  objects: [{apiVersion: stable.example.com/v1, kind: MyApple, metadata: {name: pie}, spec: {color: red, size: small, \
                 quantity: 1}}]\n";
    let text = format!("name: a fault\n{given}{fault}");
    let (code, said) = test("plugins/myapple.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
    let text = format!("name: HTTP\n{http}then: {{}}\n");
    let (code, said) = test("plugins/myapple.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
    let text = format!("name: a review\n{review}");
    let (code, said) = test("plugins/registry-policy.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
    let text = format!("name: conversions\n{conversions}");
    let (code, said) = test("guests/converting.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn update_fills_an_empty_then_with_what_has_happened() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("a.yaml");
    let text = format!("name: one apple\nwhen:\n  apply: {APPLE}\nthen: {{}} # to be filled\n");
    fs::write(&file, &text).expect("a file");
    let (code, said) = test_in(dir.path(), "plugins/myapple.wasm", &["a.yaml"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(&file).expect("the file"), text);
    let (code, said) = test_in(dir.path(), "plugins/myapple.wasm", &["a.yaml", "--update"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("updated a.yaml (1 values)") && said.contains("1 passed, 0 failed"), "{said}");
    let filled = fs::read_to_string(&file).expect("the file");
    for part in [
        "then:\n  objects:\n",
        "color: red",
        "available: 1",
        "  writes:\n    - apply ConfigMap default/pie-0\n    - apply MyApple/status default/pie # to be filled\n",
    ] {
        assert!(filled.contains(part), "{part}:\n{filled}");
    }
    let wrong = filled.replace("available: 1", "available: 7");
    fs::write(&file, &wrong).expect("a file");
    let (code, said) = test_in(dir.path(), "plugins/myapple.wasm", &["a.yaml"]);
    assert_eq!(code, 1, "{said}");
}

//! Texts that reach the API server and come back unchanged, and objects that the host cannot read.

use anyhow::{Context, Result, ensure};
use http::header;
use pilothouse::cluster::{self, ConnectOptions, Patch, WriteOptions};
use pilothouse_core::key::TypeMeta;
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::contract::served_by;

/// Texts that are lost, changed or rejected if an apply sends them as they are.
const TEXTS: [&str; 10] = [
    "x\u{85}y",
    "a \u{2028} b",
    "a\u{2029} \u{2028}b",
    "\u{7f}",
    "\u{80}\u{9f}\u{a0}",
    "\u{feff}x\u{feff}",
    "\u{fffe}\u{ffff}\u{fffd}",
    "😀 / \\ \\/ \\u0085 \" ' \t\n\r\u{1}",
    " - # : {} [] & * ! | > % @ ` ",
    "0644 yes oFF ~ null 1e400",
];

pub(crate) async fn a_child_a_status_and_an_apply_keep_every_character(scene: Scene) -> Result<()> {
    let (_host, _) = served_by(&scene, "spelling").await?;
    for (at, text) in TEXTS.iter().enumerate() {
        let apple = scene.apple(&format!("apple-{at}"));
        apple.create_with(text, 1).await?;
        let status = apple.status_is("1", |status| status["available"] == 1).await?;
        let condition = &status["conditions"][0]["message"];
        ensure!(condition == *text, "the status of {text:?} says {condition}");
        for what in ["child", "applied"] {
            let map = scene.config_maps().get(&format!("apple-{at}-{what}")).await?;
            let data = json!(map.data);
            ensure!(data == json!({ "text": text }), "{what} of {text:?} has {data}");
            let annotations = map.metadata.annotations.unwrap_or_default();
            ensure!(annotations.get("guests.example.com/text").map(String::as_str) == Some(*text), "{annotations:?}");
        }
    }
    Ok(())
}

/// Members of an object whose kind accepts any members.
fn members() -> impl Strategy<Value = Value> {
    let odd = prop::sample::select(vec![
        '\u{85}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{fffe}', '\u{ffff}', '\u{7f}', '\u{90}', ' ', '\t', '\n', '"',
        '\\', '/', ':', '#', '-', '😀', '\u{0}',
    ]);
    let text = prop::collection::vec(prop_oneof![odd, any::<char>()], 0..20)
        .prop_map(|chars| chars.into_iter().collect::<String>());
    // Only digits and powers of ten that every reader keeps.
    let float = (-999_999_i32..999_999, -15_i32..16).prop_map(|(digits, exponent)| format!("{digits}e{exponent}"));
    let leaf = prop_oneof![
        4 => text.clone().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => float.prop_map(|text| text.parse::<f64>().unwrap_or_default().into()),
        1 => any::<bool>().prop_map(Value::from),
    ];
    let list = prop::collection::vec(leaf.clone(), 0..4).prop_map(Value::from);
    let named = text.clone().prop_map(|text| format!("n{text}"));
    let names = prop_oneof![4 => named, 1 => prop::sample::select(vec!["y", "<<", "1", "null", "~", "-"]).prop_map(str::to_owned)];
    prop::collection::btree_map(names, prop_oneof![leaf, list], 1..8).prop_map(|members| json!(members))
}

pub(crate) async fn any_text_key_and_number_is_stored_as_it_was_applied(scene: Scene) -> Result<()> {
    trees(&scene).await?;
    let options = ConnectOptions { kubeconfig: Some(scene.cluster.kubeconfig()), context: None };
    let cluster = cluster::connect(&options).await?;
    let of = TypeMeta::new("guests.example.com/v1", "Tree");
    let options = WriteOptions { manager: "pilothouse.spelling", subresource: None };
    let apply = async |name: &str, body: String| {
        cluster.patch(&of, Some(&scene.namespace), name, Patch::Apply { force: true }, body.into_bytes(), options).await
    };
    let object = |name: &str, spec: &str| {
        format!(
            r#"{{"apiVersion":"{}","kind":"{}","metadata":{{"name":"{name}"}},"spec":{spec}}}"#,
            of.api_version, of.kind
        )
    };
    // The same objects at each run, so that a failure can be reproduced.
    let mut runner = TestRunner::deterministic();
    for case in 0..60 {
        let tree = members().new_tree(&mut runner).map_err(anyhow::Error::msg)?;
        let spec = tree.current();
        let name = format!("random-{case}");
        let text = if case % 2 == 0 { spec.to_string() } else { ascii(&serde_json::to_string_pretty(&spec)?) };
        let answer = apply(&name, object(&name, &text)).await.with_context(|| format!("cannot apply {text}"))?;
        let stored: Value = serde_json::from_slice(&answer)?;
        ensure!(same(&stored["spec"], &spec), "{spec} was stored as {}", stored["spec"]);
    }
    for (spec, why) in [
        (r#"{"a":1e400}"#, "the number 1e400 is out of range"),
        (r#"{"a":"\ud83d"}"#, "a string has \\ud83d"),
        (&*format!(r#"{{"{}":1}}"#, "k".repeat(1023)), "the member name kkkk"),
    ] {
        let refused = apply("refused", object("refused", spec)).await.err().context("it was applied")?.to_string();
        ensure!(refused.contains(why), "{refused}");
    }
    let longest = "k".repeat(1022);
    apply("longest", object("longest", &format!(r#"{{"{longest}":1}}"#))).await?;
    Ok(())
}

/// Writes JSON in ASCII only, as Python does, with escaped slashes.
fn ascii(json: &str) -> String {
    let escaped = |c: char| match c {
        '/' => "\\/".to_owned(),
        c if c.is_ascii() => c.to_string(),
        c => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    json.chars().map(escaped).collect()
}

/// Returns `true` if two values are equal, with numbers compared by value.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Bodies as people write them, sent unchanged.
pub(crate) async fn yaml_is_read_as_kubernetes_reads_it(scene: Scene) -> Result<()> {
    trees(&scene).await?;
    let path = format!("/apis/guests.example.com/v1/namespaces/{}/trees", scene.namespace);
    let head = "apiVersion: guests.example.com/v1\nkind: Tree\n";
    for (at, (text, value)) in [
        ("0644", json!(420)),
        ("-0644", json!(-420)),
        ("0888", json!(888)),
        ("1_000", json!(1000)),
        ("0b101", json!(5)),
        ("1e400", json!("1e400")),
        ("oFF", json!("oFF")),
        ("Off", json!(false)),
        ("{x: 1, y: 2}", json!({ "x": 1, "true": 2 })),
        ("\"x\u{85}y\"", json!("x y")),
        ("\"a \u{2028} b\"", json!("a\u{2028}b")),
        ("1\n---\nnot: [read", json!(1)),
    ]
    .into_iter()
    .enumerate()
    {
        for (form, method, content) in
            [("create", "POST", "application/yaml"), ("apply", "PATCH", "application/apply-patch+yaml")]
        {
            let name = format!("{form}-{at}");
            let uri = if method == "POST" { path.clone() } else { format!("{path}/{name}?fieldManager=test") };
            let body = format!("{head}metadata: {{name: {name}}}\nspec: {text}\n");
            let answer =
                send(&scene, method, &uri, content, body).await.with_context(|| format!("{form} of {text:?}"))?;
            let stored: Value = serde_json::from_str(&answer)?;
            ensure!(stored["spec"] == value, "{form}: {text:?} became {}", stored["spec"]);
        }
    }
    for text in ["!!null x", "\"\u{7f}\"", "\"\\/\"", "\"\\ud83d\\ude00\"", "{[a]: b}"] {
        let body = format!("{head}metadata: {{name: refused}}\nspec: {text}\n");
        let uri = format!("{path}/refused?fieldManager=test");
        let answer = send(&scene, "PATCH", &uri, "application/apply-patch+yaml", body).await;
        ensure!(answer.is_err(), "{text:?} was taken");
    }
    // The last of two wins. A strict reader rejects both.
    let twice = |name: &str| format!("{head}metadata: {{name: {name}}}\nspec: {{a: 1, a: 2}}\n");
    for (form, method, content) in
        [("created", "POST", "application/yaml"), ("applied", "PATCH", "application/apply-patch+yaml")]
    {
        let uri = |name: &str| match method {
            "POST" => format!("{path}?"),
            _ => format!("{path}/{name}?fieldManager=test&"),
        };
        let stored = send(&scene, method, &uri(form), content, twice(form)).await?;
        ensure!(serde_json::from_str::<Value>(&stored)?["spec"] == json!({ "a": 2 }), "{stored}");
        let strict = format!("strict-{form}");
        let uri = format!("{}fieldValidation=Strict", uri(&strict));
        ensure!(send(&scene, method, &uri, content, twice(&strict)).await.is_err(), "{strict} was taken");
    }
    Ok(())
}

pub(crate) async fn invariant_5_an_object_that_nests_too_deep_shows_as_unreadable_and_its_deletion_is_reconciled(
    scene: Scene,
) -> Result<()> {
    const UNREADABLE: &str = "the object cannot be read: it nests deeper than 127 levels";

    trees(&scene).await?;
    let path = format!("/apis/guests.example.com/v1/namespaces/{}/trees", scene.namespace);
    let tree = |name: &str, levels: usize| {
        let spec = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        let labels = if name == "beside" { r#""labels":{"beside":"tall"},"# } else { "" };
        format!(
            r#"{{"apiVersion":"guests.example.com/v1","kind":"Tree","metadata":{{{labels}"name":"{name}"}},"spec":{spec}}}"#
        )
    };
    let create = async |name: &str, levels| send(&scene, "POST", &path, "application/json", tree(name, levels)).await;
    let delete =
        async |name: &str| send(&scene, "DELETE", &format!("{path}/{name}"), "application/json", "{}".to_owned()).await;
    // One exists before the host starts, and comes with its list.
    create("listed", 200).await?;
    let tall: Value = serde_json::from_str(&create("tall", 3).await?)?;
    create("beside", 3).await?;
    let mut host = scene.with(&[Plugin::guest("nesting")?])?.host().await?;
    host.logs(&["called", "tall", "live"]).await?;
    host.logs(&["called", "beside", "a tree"]).await?;
    given_up(&mut host, &format!("{}/listed", scene.namespace), UNREADABLE).await?;

    let version = format!(r#"{{"resourceVersion":{},"#, tall["metadata"]["resourceVersion"]);
    let taller = tree("tall", 200).replacen(r#""metadata":{"#, &format!(r#""metadata":{version}"#), 1);
    send(&scene, "PUT", &format!("{path}/tall"), "application/json", taller).await?;
    given_up(&mut host, &format!("{}/tall", scene.namespace), UNREADABLE).await?;
    host.logs(&["called", "beside", UNREADABLE]).await?;

    delete("tall").await?;
    host.logs(&["called", "tall", "gone"]).await?;
    host.logs(&["called", "beside", "nothing"]).await?;
    delete("listed").await?;
    host.logs(&["called", "listed", "gone"]).await?;
    Ok(())
}

/// Waits until the host has given up a key for a reason.
async fn given_up(host: &mut Host, key: &str, why: &str) -> Result<()> {
    eventually("the key is given up", async || {
        let rows = host.plugins().await?;
        let keys = rows.iter().filter_map(|row| row["controllers"][0]["given_up"].as_array()).flatten();
        let of = keys.clone().find(|of| of["key"] == key).with_context(|| format!("{key} is not in {rows:?}"))?;
        ensure!(of["error"].as_str().is_some_and(|error| error.contains(why)), "{of}");
        Ok(())
    })
    .await
}

/// Defines a kind that accepts any spec, and waits until the server serves it.
async fn trees(scene: &Scene) -> Result<()> {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "trees.guests.example.com" },
        "spec": {
            "group": "guests.example.com",
            "scope": "Namespaced",
            "names": { "kind": "Tree", "plural": "trees" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    match send(scene, "POST", path, "application/json", definition.to_string()).await {
        // Another test has created it.
        Err(error) if format!("{error:#}").contains("already exists") => {}
        other => drop(other?),
    }
    eventually("the kind is served", async || {
        send(scene, "GET", "/apis/guests.example.com/v1/trees", "application/json", String::new()).await.map(drop)
    })
    .await
}

/// Sends a body unchanged and returns the raw answer, because kube cannot read an object that nests too deep.
async fn send(scene: &Scene, method: &str, uri: &str, content: &str, body: String) -> Result<String> {
    let request = http::Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content);
    let request = request.body(body.into_bytes()).context("cannot write the request")?;
    scene.client().request_text(request).await.with_context(|| format!("{method} {uri} failed"))
}

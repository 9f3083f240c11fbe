//! `pilothouse dev --manifests PATH`: applies what `kubectl apply -R -f PATH` or `kubectl apply -k PATH` applies.
//!
//! Reads the files, and applies their objects in order. An object that cannot be applied is reported with the reason, and the others are
//! applied.
//!
//! ```text
//! files ─► documents ─► objects (lists taken apart) ─► namespaces, definitions, the rest ─► applied │ waits for its kind or namespace │ refused
//! ```

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context;
use pilothouse_apiserver::yaml;
use pilothouse_core::key::TypeMeta;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::{self, Cluster, Patch, WriteOptions};

/// Time that an object may wait for its kind or namespace. A plugin may bring them, and has to be compiled first.
const WAITS: Duration = Duration::from_secs(60);

/// Pause between two rounds in which nothing could be applied.
const PAUSE: Duration = Duration::from_millis(50);

/// The field manager of what is applied.
const MANAGER: &str = "pilothouse-dev";

/// Lists in lists that are taken apart.
const LISTS: usize = 8;

/// The objects of files and folders.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    objects: Vec<Manifest>,
    /// What cannot be used or was skipped, for people.
    pub(super) problems: Vec<String>,
}

/// One object to apply, and the file it comes from.
#[derive(Debug)]
struct Manifest {
    file: PathBuf,
    of: TypeMeta,
    object: Value,
}

impl Manifest {
    /// Returns a text of the metadata, or an empty one.
    fn metadata(&self, member: &str) -> &str {
        self.object["metadata"][member].as_str().unwrap_or_default()
    }

    /// Returns the rank in the order of applies. Objects that others may need come first.
    fn rank(&self) -> usize {
        match (&*self.of.api_version, &*self.of.kind) {
            ("v1", "Namespace") => 0,
            (_, "CustomResourceDefinition") => 1,
            _ => 2,
        }
    }
}

/// `v1 ConfigMap a/b of a.yaml`.
impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.of)?;
        if !self.metadata("namespace").is_empty() {
            write!(f, "{}/", self.metadata("namespace"))?;
        }
        match self.metadata("name") {
            "" => write!(f, "{}…", self.metadata("generateName"))?,
            name => f.write_str(name)?,
        }
        write!(f, " of {}", self.file.display())
    }
}

impl Manifests {
    /// Reads files, folders and kustomizations; `-` is standard input. Of a folder, the YAML and JSON files in it and below it are read, in the order
    /// of their paths, as `kubectl apply -R -f` does. A folder with a kustomization is built by kubectl or kustomize instead.
    ///
    /// # Errors
    /// One of the paths itself cannot be read.
    pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut manifests = Self::default();
        for path in paths {
            let cannot = || format!("cannot read manifests from {}", path.display());
            if path.as_os_str() == "-" {
                let text = io::read_to_string(io::stdin().lock()).with_context(cannot)?;
                manifests.file(path, &text);
            } else if fs::metadata(path).with_context(cannot)?.is_dir() {
                fs::read_dir(path).with_context(cannot)?;
                manifests.folder(path);
            } else if is_kustomization(path) {
                manifests
                    .kustomization(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")));
            } else {
                let text = fs::read_to_string(path).with_context(cannot)?;
                manifests.file(path, &text);
            }
        }
        Ok(manifests)
    }

    fn folder(&mut self, folder: &Path) {
        let mut entries = Vec::new();
        match fs::read_dir(folder) {
            Ok(found) => entries.extend(found.flatten().map(|entry| entry.path())),
            Err(error) => self.problems.push(format!("cannot read {}: {error}", folder.display())),
        }
        entries.sort();
        if entries.iter().any(|entry| is_kustomization(entry)) {
            return self.kustomization(folder);
        }
        for path in entries {
            let known =
                ["yaml", "yml", "json"].iter().any(|known| path.extension().is_some_and(|found| found == *known));
            let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            // A symbolic link to a folder may lead in a circle.
            if path.is_dir() {
                if !path.is_symlink() && !is_hidden {
                    self.folder(&path);
                }
            } else if known {
                match fs::read_to_string(&path) {
                    Ok(text) => self.file(&path, &text),
                    Err(error) => self.problems.push(format!("cannot read {}: {error}", path.display())),
                }
            }
        }
    }

    /// Reads what a kustomization makes.
    fn kustomization(&mut self, folder: &Path) {
        match kustomize(folder, &["kubectl kustomize", "kustomize build"]) {
            Ok(text) => self.file(folder, &text),
            Err(error) => self.problems.push(error),
        }
    }

    fn file(&mut self, file: &Path, text: &str) {
        if let Some(values) = json(text) {
            values.into_iter().for_each(|value| self.value(file, value, None, LISTS));
            return;
        }
        let (documents, error) = yaml::documents(text);
        for yaml::Document { value, duplicates } in documents {
            if !duplicates.is_empty() {
                let paths = duplicates.join(", ");
                self.problems
                    .push(format!("in {} several values are given, and the last is used: {paths}", file.display()));
            }
            self.value(file, value, None, LISTS);
        }
        if let Some(error) = error {
            self.problems.push(format!("cannot read all of {}: {error}", file.display()));
        }
    }

    /// Takes an object, or the objects of a list. `item`: the kind of a list's items that do not say theirs.
    fn value(&mut self, file: &Path, mut value: Value, item: Option<&TypeMeta>, lists: usize) {
        if value.is_null() {
            return;
        }
        let text = |value: &Value, member: &str| value[member].as_str().unwrap_or_default().to_owned();
        if let (Some(item), Some(members)) = (item, value.as_object_mut())
            && !members.contains_key("kind")
        {
            members.insert("apiVersion".to_owned(), (*item.api_version).into());
            members.insert("kind".to_owned(), (*item.kind).into());
        }
        let (api_version, kind) = (text(&value, "apiVersion"), text(&value, "kind"));
        if let Some(of_items) = kind.strip_suffix("List")
            && let Some(lists) = lists.checked_sub(1)
            && value["items"].is_array()
        {
            let item = (!of_items.is_empty()).then(|| TypeMeta::new(&api_version, of_items));
            let items = value["items"].take();
            for item_value in items.as_array().cloned().unwrap_or_default() {
                self.value(file, item_value, item.as_ref(), lists);
            }
            return;
        }
        let name = text(&value["metadata"], "name") + &text(&value["metadata"], "generateName");
        let lacks = [("apiVersion", &api_version), ("kind", &kind), ("metadata.name", &name)];
        match lacks.into_iter().find(|(_, text)| text.is_empty()) {
            Some((member, _)) => {
                self.problems.push(format!("cannot use an object of {}: it has no {member}", file.display()));
            }
            None => {
                let of = TypeMeta::new(&api_version, &kind);
                self.objects.push(Manifest { file: file.to_owned(), of, object: value });
            }
        }
    }

    /// Applies the objects, and prints a line for each. An object whose kind or namespace is missing waits for it.
    pub(super) async fn apply(self, cluster: &Cluster, print: impl Fn(&str)) {
        let Self { objects: mut waiting, problems } = self;
        problems.iter().for_each(|problem| print(problem));
        waiting.sort_by_key(Manifest::rank);
        let deadline = Instant::now() + WAITS;
        let mut said = false;
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut left = Vec::new();
            for manifest in waiting {
                match manifest.apply(cluster).await {
                    Ok(()) => print(&format!("applied {manifest}")),
                    Err(error) if may_pass(&error) && Instant::now() < deadline => {
                        left.push((manifest, error));
                    }
                    Err(error) => print(&format!("cannot apply {manifest}: {error}")),
                }
            }
            if !left.is_empty() && left.len() == before {
                if !std::mem::replace(&mut said, true) {
                    for (manifest, error) in &left {
                        print(&format!("waiting up to {} s to apply {manifest}: {error}", WAITS.as_secs()));
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
            waiting = left.into_iter().map(|(manifest, _)| manifest).collect();
        }
    }
}

impl Manifest {
    async fn apply(&self, cluster: &Cluster) -> Result<(), cluster::Error> {
        let endpoint = cluster.endpoint(&self.of).await?;
        let namespace = endpoint.namespaced.then(|| match self.metadata("namespace") {
            "" => "default",
            namespace => namespace,
        });
        let mut object = self.object.clone();
        if let (Some(namespace), Some(metadata)) = (namespace, object["metadata"].as_object_mut()) {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        self.find_owners(cluster, namespace, &mut object).await?;
        let body = object.to_string().into_bytes();
        match self.metadata("name") {
            "" => cluster.create(&self.of, namespace, body, MANAGER).await?,
            name => {
                let options = WriteOptions { manager: MANAGER, subresource: None };
                cluster.patch(&self.of, namespace, name, Patch::Apply { force: true }, body, options).await?
            }
        };
        Ok(())
    }
}

impl Manifest {
    /// Fills in the uids of owners that are named without, as `pilothouse collect` writes them.
    async fn find_owners(
        &self,
        cluster: &Cluster,
        namespace: Option<&str>,
        object: &mut Value,
    ) -> Result<(), cluster::Error> {
        for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
            let text = |member: &str| owner[member].as_str().unwrap_or_default();
            if !text("uid").is_empty() {
                continue;
            }
            let of = TypeMeta::new(text("apiVersion"), text("kind"));
            let found = cluster.get(&of, namespace, text("name")).await?;
            let found: Value = serde_json::from_slice(&found).unwrap_or_default();
            owner["uid"] = found["metadata"]["uid"].clone();
        }
        Ok(())
    }
}

/// Returns `true` for the file of a kustomization.
fn is_kustomization(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    matches!(name, "kustomization.yaml" | "kustomization.yml" | "Kustomization")
}

/// Runs the first of these tools that is installed, and returns what it makes of a kustomization.
///
/// # Errors
/// No tool is installed, or the tool fails.
fn kustomize(folder: &Path, tools: &[&str]) -> Result<String, String> {
    let folder_name = folder.display();
    for tool in tools {
        let mut words = tool.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        match command.args(words).arg(folder).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("cannot build the kustomization {folder_name}: `{tool}` failed: {}", said.trim()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot run `{tool}` for the kustomization {folder_name}: {error}")),
        }
    }
    Err(format!(
        "skipped {folder_name}: it is a kustomization, and neither kubectl nor kustomize is installed; install one of them, or name its files \
         with --manifests"
    ))
}

/// Returns `true` if the kind or the namespace may be missing.
fn may_pass(error: &cluster::Error) -> bool {
    matches!(error, cluster::Error::Missing(_)) || error.is_not_found()
}

/// Returns the values of a JSON file, or `None` if it is not JSON.
fn json(text: &str) -> Option<Vec<Value>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::testing::Api;

    /// Writes files into a new folder.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        dir
    }

    fn read(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let dir = folder(files);
        let manifests = Manifests::read(&[dir.path().to_owned()]).expect("the folder is there");
        let place = format!("{}", dir.path().display());
        let short = |text: String| text.replace(&format!("{place}/"), "").replace(&place, "DIR");
        let objects = manifests.objects.iter().map(|manifest| short(manifest.to_string())).collect();
        (objects, manifests.problems.into_iter().map(short).collect())
    }

    fn map(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: {name} }}\n")
    }

    #[test]
    fn manifests_are_read_in_order_and_a_bad_one_costs_only_itself() {
        let (objects, problems) = read(&[
            ("b.yaml", &(map("b1") + "---\n# nothing\n---\n" + &map("b2"))),
            ("a.json", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#),
            ("notes.txt", "not a manifest"),
            ("c.yml", &("metadata: { name: c }\n---\n".to_owned() + &map("c") + "---\na: [\n")),
            ("empty.yaml", ""),
            ("twice.yaml", &(map("twice") + "data: { a: b, a: c }\n")),
        ]);
        let all = ["n/a of a.json", "b1 of b.yaml", "b2 of b.yaml", "c of c.yml", "twice of twice.yaml"];
        assert_eq!(objects, all.map(|name| format!("v1 ConfigMap {name}")));
        let [without, broken, twice] = &*problems else { panic!("{problems:?}") };
        assert_eq!(without, "cannot use an object of c.yml: it has no apiVersion");
        assert!(broken.starts_with("cannot read all of c.yml: "), "{broken}");
        assert_eq!(twice, "in twice.yaml several values are given, and the last is used: data.a");
    }

    #[test]
    fn several_paths_are_read_and_folders_with_all_below_them() {
        let dir = folder(&[
            ("one.yaml", &map("one")),
            ("all/a.yaml", &map("a")),
            ("all/sub/deep/b.yml", &map("b")),
            ("all/.git/c.yaml", &map("c")),
            ("z.yaml", &map("z")),
        ]);
        let path = |path: &str| dir.path().join(path);
        std::os::unix::fs::symlink(dir.path(), path("all/circle")).expect("a link");
        let manifests = Manifests::read(&[path("z.yaml"), path("all")]).expect("they are there");
        let names: Vec<&str> = manifests.objects.iter().map(|manifest| manifest.metadata("name")).collect();
        assert_eq!((names, manifests.problems), (vec!["z", "a", "b"], Vec::new()));
        assert!(Manifests::read(&[path("one.yaml"), path("none")]).is_err());
    }

    #[test]
    fn a_kustomization_is_built_by_the_first_tool_that_is_installed() {
        let dir = folder(&[("kustomization.yaml", "resources: [map.yaml]"), ("map.yaml", &map("plain"))]);
        let script = dir.path().join("tool");
        fs::write(&script, "cat \"$1/map.yaml\"; echo why >&2; test -e \"$1/kustomization.yaml\"").expect("a file");
        let tool = format!("sh {}", script.display());
        let tools = ["pilothouse-no-such-tool", &tool];
        assert_eq!(kustomize(dir.path(), &tools), Ok(map("plain")));
        let error = kustomize(&dir.path().join("none"), &tools).expect_err("there is no kustomization");
        assert!(error.starts_with("cannot build the kustomization ") && error.contains("why"), "{error}");
        let error = kustomize(dir.path(), &tools[..1]).expect_err("there is no tool");
        assert!(error.contains("neither kubectl nor kustomize is installed"), "{error}");
    }

    #[test]
    fn lists_are_taken_apart() {
        let (objects, problems) = read(&[(
            "list.yaml",
            "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}, \
             {apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: two}}]}, {kind: Secret}]}",
        )]);
        assert_eq!(objects, ["v1 ConfigMap one of list.yaml", "v1 ConfigMap two of list.yaml"]);
        assert_eq!(problems, ["cannot use an object of list.yaml: it has no apiVersion"]);
    }

    const PEARS: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pears.fruit.example.org}
spec:
  {group: fruit.example.org, scope: Namespaced, names: {kind: Pear, plural: pears},
   versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}
";

    #[tokio::test]
    async fn order_does_not_matter_and_one_that_is_refused_costs_only_itself() {
        let api = Api::start().await;
        let pear = "{apiVersion: fruit.example.org/v1, kind: Pear, metadata: {name: first, namespace: orchard}}";
        let dir = folder(&[
            ("apple.yaml", pear),
            ("bad.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: No_Name}}"),
            ("crd.yaml", PEARS),
            ("gen.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: some-}}"),
            (
                "mode.yaml",
                "{apiVersion: v1, kind: Pod, metadata: {name: octal}, spec: {containers: [{name: c, image: i}], \
                           volumes: [{name: s, secret: {secretName: x, defaultMode: 0644}}]}}",
            ),
            (
                "owned.yaml",
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: owned, namespace: orchard, \
                           ownerReferences: [{apiVersion: fruit.example.org/v1, kind: Pear, name: first}]}}",
            ),
            ("z-namespace.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: orchard}}"),
        ]);
        let lines = Mutex::new(Vec::new());
        let print = |line: &str| {
            let line = line.replace(&format!("{}/", dir.path().display()), "");
            lines.lock().expect("nobody panics").push(line.split(": ").next().unwrap_or_default().to_owned());
        };
        Manifests::read(&[dir.path().to_owned()]).expect("a folder").apply(&api.cluster, print).await;
        let mut lines = lines.into_inner().expect("nobody panics");
        lines.retain(|line| !line.starts_with("waiting"));
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "applied apiextensions.k8s.io/v1 CustomResourceDefinition pears.fruit.example.org of crd.yaml",
                "applied fruit.example.org/v1 Pear orchard/first of apple.yaml",
                "applied v1 ConfigMap orchard/owned of owned.yaml",
                "applied v1 ConfigMap some-… of gen.yaml",
                "applied v1 Namespace orchard of z-namespace.yaml",
                "applied v1 Pod octal of mode.yaml",
                "cannot apply v1 ConfigMap No_Name of bad.yaml",
            ]
        );
        let pod = api.cluster.get(&TypeMeta::new("v1", "Pod"), Some("default"), "octal").await.expect("it is there");
        let pod: Value = serde_json::from_slice(&pod).expect("JSON");
        assert_eq!(pod["spec"]["volumes"][0]["secret"]["defaultMode"], 420);
    }
}

//! Plugin files, and the folder that the host watches.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use wit_component::{ComponentEncoder, LibraryInfo};

use crate::host::built;

/// The colors that the guest `nonsense` takes as instructions, each another mistake.
pub const MISTAKES: [&str; 12] = [
    "foreign-kind",
    "no-json",
    "no-object",
    "no-name",
    "bad-name",
    "other-namespace",
    "twice",
    "nul",
    "deep",
    "status-no-json",
    "status-list",
    "status-type",
];

/// What a plugin may do while an instance of it is made: how the plugin is called, a core module of WebAssembly text, and how many instances
/// of that are made besides.
const AS_MADE: [(&str, &str, u32); 7] = [
    ("starting", "(module (func $loop (loop $again (br $again))) (start $loop))", 1),
    ("trapping", "(module (func $trap unreachable) (start $trap))", 1),
    ("crowded", "(module)", 900),
    ("thousand", "(module)", 1000),
    ("hungry", "(module (memory 2000))", 1),
    ("tabular", "(module (table 9000000 funcref))", 1),
    ("tabling", GROWS, 1),
];

/// A module that grows a table as it starts, and gives up when it is refused that.
const GROWS: &str = "(module (table $table 0 funcref) (start $grow)
    (func $grow (loop $on
        (br_if $on (i32.ne (i32.const -1) (table.grow $table (ref.null func) (i32.const 1000))))
        unreachable)))";

/// The guest that imports [`TABLE`].
const TABULATING: &str = "tabulating";

/// A table that the guest may make larger.
const TABLE: &str = r#"(module (table $table 0 funcref)
    (func (export "grow") (param i32) (result i32) (table.grow $table (ref.null func) (local.get 0))))"#;

/// A plugin as it would be put into the folder: a component, and what the administrator says beside it.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Both files are called so.
    pub name: String,
    /// The content of `<name>.wasm`.
    pub wasm: Vec<u8>,
    /// The content of `<name>.yaml`, if there is such a file.
    pub yaml: Option<String>,
}

impl Plugin {
    /// The example plugin, with the grants that it comes with.
    ///
    /// # Errors
    /// It is not built: says what to do.
    pub fn myapple() -> Result<Self> {
        Self::load(&built("plugins"), "myapple")
    }

    /// The example plugin that writes no mapping, with the grants that it comes with.
    ///
    /// # Errors
    /// It is not built: says what to do.
    pub fn bundle() -> Result<Self> {
        Self::load(&built("plugins"), "bundle")
    }

    /// One of the guests of `tests/guests`, with its grants if it has any.
    ///
    /// # Errors
    /// It is not built: says what to do.
    pub fn guest(name: &str) -> Result<Self> {
        let mut guest = Self::load(&built("guests"), name)?;
        if name == TABULATING {
            let table = wat::parse_str(TABLE).context("the text is no core module")?;
            let mut encoder = ComponentEncoder::default();
            let guests =
                encoder.module(&guest.wasm).context("the guest is no core module with a component's metadata")?;
            guests
                .library("table", &table, LibraryInfo { arguments: Vec::new() })
                .context("the table cannot be linked to it")?;
            guest.wasm = encoder.encode().context("the guest cannot become a component")?;
        }
        Ok(guest)
    }

    fn load(folder: &Path, name: &str) -> Result<Self> {
        let wasm = folder.join(format!("{name}.wasm"));
        ensure!(wasm.is_file(), "the plugin is not at {}: run `make build`", wasm.display());
        let yaml = folder.join(format!("{name}.yaml"));
        Ok(Self {
            name: name.to_owned(),
            wasm: fs::read(&wasm).with_context(|| format!("cannot read {}", wasm.display()))?,
            yaml: fs::read_to_string(yaml).ok(),
        })
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The same with another `<name>.yaml`.
    #[must_use]
    pub fn with_yaml(mut self, yaml: impl Into<String>) -> Self {
        self.yaml = Some(yaml.into());
        self
    }

    /// The same with a `<name>.yaml` that grants these permissions and no others.
    #[must_use]
    pub fn granted(self, permissions: &[Permission]) -> Self {
        let grants: Vec<&Value> = permissions.iter().map(|permission| &permission.0).collect();
        // JSON is YAML.
        self.with_yaml(json!({ "grants": grants }).to_string())
    }

    /// The same, granted in one namespace only what the example plugin and the guests need, and the plugin's CRD: two plugins for one
    /// kind would be at odds otherwise.
    #[must_use]
    pub fn confined_to(self, namespace: &str) -> Self {
        let secrets = Permission::to(&["read"], "v1", "Secret").within(namespace);
        let here = Permission::of_myapple().map(|permission| permission.within(namespace));
        self.granted(&[here.as_slice(), &[secrets, Permission::of_its_crd()]].concat())
    }

    /// The same under these `limits`, beside what is [granted](Self::granted).
    ///
    /// # Errors
    /// Nothing is granted in that way.
    pub fn limited(mut self, limits: &Value) -> Result<Self> {
        let mut yaml: Value = serde_json::from_str(self.yaml.as_deref().unwrap_or_default())?;
        yaml["limits"] = limits.clone();
        self.yaml = Some(yaml.to_string());
        Ok(self)
    }

    /// The same without `<name>.yaml`.
    #[must_use]
    pub fn without_yaml(mut self) -> Self {
        self.yaml = None;
        self
    }

    /// A file of some kB over which a compiler takes more memory than it may have: each of so many core modules has a hundred tables of
    /// functions, as many as there may be, whose last element is filled, so that all of them are laid out.
    ///
    /// # Errors
    /// The text is no component, which would be a fault of this function.
    pub fn that_takes_memory_to_compile(name: &str, modules: usize) -> Result<Self> {
        const ELEMENTS: u32 = 1 << 20;
        let tables = format!("(table {ELEMENTS} funcref)").repeat(100);
        let last = ELEMENTS - 1;
        let filled: String =
            (0..100).map(|table| format!("(elem (table {table}) (i32.const {last}) func $f)")).collect();
        let module = format!("(core module (func $f) {tables} {filled})");
        let wasm =
            wat::parse_str(format!("(component {})", module.repeat(modules))).context("the text is no component")?;
        Ok(Self { name: name.to_owned(), wasm, yaml: None })
    }

    /// The same with one damaged byte, over which a compiler overflows its stack: in the contract's types, which a custom section
    /// holds, `cache` becomes another package's, which uses `types` of the contract's package, whose world uses `cache`.
    ///
    /// # Errors
    /// It does not import `cache`.
    pub fn with_a_cycle_of_packages(mut self) -> Result<Self> {
        let name = b"pilothouse:plugin/cache@0.1.0";
        let last = self.wasm.windows(name.len()).rposition(|window| window == name);
        let at = last.context("the plugin does not import the cache")? + "pilothouse:p".len();
        if let Some(byte) = self.wasm.get_mut(at) {
            *byte = b'm';
        }
        Ok(self)
    }

    /// The same as a component in which so many instances of a core module are made besides, of WebAssembly text, whenever an instance of
    /// the plugin is.
    ///
    /// # Errors
    /// The text is no core module, or the plugin no core module with a component's metadata, as plugins in Rust are.
    pub fn beside(mut self, module: &str, instances: u32) -> Result<Self> {
        let module = wat::parse_str(module).context("the text is no core module")?;
        let mut encoder = ComponentEncoder::default();
        encoder.module(&self.wasm).context("the plugin is no core module with a component's metadata")?;
        self.wasm = encoder.encode().context("the plugin cannot become a component")?;
        let index = core_modules(&self.wasm).context("the component's sections cannot be read")?;
        section(&mut self.wasm, CORE_MODULE, &module)?;
        // Each instantiates that module with no arguments.
        let mut made = leb128(instances);
        let instance = [vec![0], leb128(index), vec![0]].concat();
        made.extend(instance.repeat(usize::try_from(instances)?));
        section(&mut self.wasm, CORE_INSTANCES, &made)?;
        Ok(self)
    }

    /// Those that misbehave while an instance is made, each in another way, that it is named after: a start function that loops or traps,
    /// many instances and too many, too much memory, a large table and one that grows, too many globals, and a function of too long a
    /// name. Apart from that they are the guest `second`.
    ///
    /// # Errors
    /// The guest is not built, or none that can be made [otherwise](Self::beside).
    pub fn misbehaving_as_made() -> Result<Vec<Self>> {
        let second = Self::guest("second")?;
        let globals = format!("(module {})", "(global i32 (i32.const 0))".repeat(20_000));
        let name = "n".repeat(17_000);
        let named = format!("(module (func ${name} unreachable) (start ${name}))");
        AS_MADE
            .into_iter()
            .chain([("roomy", &*globals, 60), ("named", &*named, 1)])
            .map(|(name, module, instances)| second.clone().named(name).beside(module, instances))
            .collect()
    }

    /// The same code with another digest: a custom section that holds `mark` is appended.
    #[must_use]
    pub fn revision(mut self, mark: u8) -> Self {
        // Section 0, 10 bytes: the length of the name, the name, the content.
        self.wasm.extend([0, 10, 8]);
        self.wasm.extend(b"revision");
        self.wasm.push(mark);
        self
    }
}

/// Sections of a component, by the numbers that they begin with.
const CORE_MODULE: u8 = 1;
const CORE_INSTANCES: u8 = 2;

fn section(component: &mut Vec<u8>, number: u8, content: &[u8]) -> Result<()> {
    component.push(number);
    component.extend(leb128(u32::try_from(content.len()).context("a section of 4 GiB")?));
    component.extend(content);
    Ok(())
}

/// How many core modules a component has, not counting what components within it have.
fn core_modules(component: &[u8]) -> Option<u32> {
    // What every binary begins with: magic, version, layer.
    let mut rest = component.get(8..)?;
    let mut modules = 0;
    while let Some((number, after)) = rest.split_first() {
        let last = after.iter().position(|byte| byte & 0x80 == 0)?;
        let length = after.get(..=last)?.iter().rev().fold(0_usize, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
        rest = after.get(last + 1..)?.get(length..)?;
        modules += u32::from(*number == CORE_MODULE);
    }
    Some(modules)
}

fn leb128(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// One entry of `grants` in a `<name>.yaml`.
#[derive(Clone, Debug)]
pub struct Permission(Value);

impl Permission {
    /// For all objects of a kind, or of a subresource of it (`MyApple/status`).
    pub fn to(verbs: &[&str], api_version: &str, kind: &str) -> Self {
        Self(json!({"apiVersion": api_version, "kind": kind, "verbs": verbs}))
    }

    /// The same in one namespace only.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.0["namespaces"] = json!([namespace]);
        self
    }

    /// What the example plugin needs to serve MyApples that are there.
    pub fn of_myapple() -> [Self; 3] {
        [
            Self::to(&["read"], "stable.example.com/v1", "MyApple"),
            Self::to(&["apply"], "stable.example.com/v1", "MyApple/status"),
            Self::to(&["read", "apply", "delete"], "v1", "ConfigMap"),
        ]
    }

    /// What it needs to bring its own CRD.
    pub fn of_its_crd() -> Self {
        Self::to(&["apply"], "apiextensions.k8s.io/v1", "CustomResourceDefinition")
    }
}

/// The folder that is given to `pilothouse run --plugins`.
#[derive(Debug)]
pub struct Plugins {
    folder: TempDir,
    /// Beside the folder, so that a file can be moved in as a whole.
    aside: TempDir,
}

impl Plugins {
    /// One with nothing in it. Dropped, it is gone.
    ///
    /// # Errors
    /// There is no place for temporary files.
    pub fn empty() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir().context("cannot create a folder for plugins")?,
            aside: tempfile::tempdir().context("cannot create a folder for files to be moved")?,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a plugin in, or another revision in its place: each file is moved in as a whole, the grants first.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn put(&self, plugin: &Plugin) -> Result<()> {
        self.put_yaml(plugin)?;
        self.move_in(&format!("{}.wasm", plugin.name), &plugin.wasm)
    }

    /// Puts in what the administrator says of a plugin, and leaves the component as it is.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_yaml(&self, plugin: &Plugin) -> Result<()> {
        match &plugin.yaml {
            Some(yaml) => self.move_in(&format!("{}.yaml", plugin.name), yaml.as_bytes()),
            None => remove(&self.file(&plugin.name, "yaml")),
        }
    }

    /// Writes the first `length` bytes of a plugin over the file that is there, in place, as a copy does that broke off.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_first_bytes(&self, plugin: &Plugin, length: usize) -> Result<()> {
        let path = self.file(&plugin.name, "wasm");
        let bytes = plugin.wasm.get(..length).context("the plugin has fewer bytes")?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes a plugin out.
    ///
    /// # Errors
    /// The files cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        remove(&self.file(name, "wasm"))?;
        remove(&self.file(name, "yaml"))
    }

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        self.path().join(format!("{name}.{extension}"))
    }

    fn move_in(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let aside = self.aside.path().join(name);
        fs::write(&aside, bytes).with_context(|| format!("cannot write {}", aside.display()))?;
        fs::rename(&aside, self.path().join(name)).with_context(|| format!("cannot move {name} to the plugins"))
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

//! Plugin files and the folder that the host watches.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use pilothouse_apiserver::yaml;
use serde_json::{Value, json};
use tempfile::TempDir;
use wit_component::{ComponentEncoder, LibraryInfo};

use crate::{examples, host::built};

/// Colors that the guest `nonsense` takes as instructions. Each makes it return another invalid outcome.
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

/// Plugins that misbehave during instantiation: name, a core module as WebAssembly text, and how often each instance of
/// the plugin instantiates that module besides.
const AS_MADE: [(&str, &str, u32); 7] = [
    ("starting", "(module (func $loop (loop $again (br $again))) (start $loop))", 1),
    ("trapping", "(module (func $trap unreachable) (start $trap))", 1),
    ("crowded", "(module)", 900),
    ("thousand", "(module)", 1000),
    ("hungry", "(module (memory 2000))", 1),
    ("tabular", "(module (table 9000000 funcref))", 1),
    ("tabling", GROWS, 1),
];

/// A module whose start function grows a table until the host refuses.
const GROWS: &str = "(module (table $table 0 funcref) (start $grow)
    (func $grow (loop $on
        (br_if $on (i32.ne (i32.const -1) (table.grow $table (ref.null func) (i32.const 1000))))
        unreachable)))";

/// The guest that imports [`TABLE`].
const TABULATING: &str = "tabulating";

/// A table that the guest may make larger.
const TABLE: &str = r#"(module (table $table 0 funcref)
    (func (export "grow") (param i32) (result i32) (table.grow $table (ref.null func) (local.get 0))))"#;

/// A plugin as an administrator puts it into the folder: a component, and perhaps a YAML file beside it.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Name of both files, without extension.
    pub name: String,
    /// The content of `<name>.wasm`.
    pub wasm: Vec<u8>,
    /// The content of `<name>.yaml`; `None` means no such file.
    pub yaml: Option<String>,
}

impl Plugin {
    /// Returns the example plugin with its own grants.
    ///
    /// # Errors
    /// The plugin is not built. The error says how to build it.
    pub fn myapple() -> Result<Self> {
        Self::load(&built("plugins"), "myapple")
    }

    /// Returns the example plugin without a mapping (`bundle`), with its own grants.
    ///
    /// # Errors
    /// The plugin is not built. The error says how to build it.
    pub fn bundle() -> Result<Self> {
        Self::load(&built("plugins"), "bundle")
    }

    /// Returns a plugin of the folder `plugins`, with its own grants.
    ///
    /// # Errors
    /// The plugin is not built. The error says how to build it.
    pub fn example(name: &str) -> Result<Self> {
        Self::load(&built("plugins"), name)
    }

    /// Returns the controllers of Deployments and ReplicaSets, enabled, with their own grants.
    ///
    /// # Errors
    /// The plugin is not built. The error says how to build it.
    pub fn deployment() -> Result<Self> {
        Self::example("deployment").map(Self::enabled)
    }

    /// Returns the stand-in for the kubelet, enabled, with its own grants.
    ///
    /// # Errors
    /// The plugin is not built. The error says how to build it.
    pub fn kubelet_stand_in() -> Result<Self> {
        Self::example("kubelet-stand-in").map(Self::enabled)
    }

    /// Returns all plugins that `make plugins` builds, enabled, with their own grants.
    ///
    /// # Errors
    /// A plugin is not built. The error says how to build it.
    pub fn examples() -> Result<Vec<Self>> {
        let names = examples::folders()?.into_iter().filter_map(|folder| Some(folder.file_name()?.to_owned()));
        names.map(|name| Self::example(&name.to_string_lossy()).map(Self::enabled)).collect()
    }

    /// Enables a plugin whose file says that it is not.
    fn enabled(mut self) -> Self {
        self.yaml = self.yaml.map(|yaml| yaml.replace("enabled: false", "enabled: true"));
        self
    }

    /// Returns a guest of `tests/guests`, with its grants if it has any.
    ///
    /// # Errors
    /// The guest is not built. The error says how to build it.
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

    /// Renames the plugin.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Replaces the content of `<name>.yaml`.
    #[must_use]
    pub fn with_yaml(mut self, yaml: impl Into<String>) -> Self {
        self.yaml = Some(yaml.into());
        self
    }

    /// Replaces `<name>.yaml` by one that grants exactly these permissions.
    #[must_use]
    pub fn granted(self, permissions: &[Permission]) -> Self {
        let grants: Vec<&Value> = permissions.iter().map(|permission| &permission.0).collect();
        // JSON is YAML.
        self.with_yaml(json!({ "grants": grants }).to_string())
    }

    /// Grants what the example plugin and the guests need, in one namespace only, and the plugin's CRD. The namespace
    /// keeps two plugins for one kind apart.
    #[must_use]
    pub fn confined_to(self, namespace: &str) -> Self {
        let secrets = Permission::to(&["read"], "v1", "Secret").within(namespace);
        let here = Permission::of_myapple().map(|permission| permission.within(namespace));
        self.granted(&[here.as_slice(), &[secrets, Permission::of_its_crd()]].concat())
    }

    /// Adds `limits` to a plugin that was [granted](Self::granted) something.
    ///
    /// # Errors
    /// The plugin has no grants of that form.
    pub fn limited(self, limits: &Value) -> Result<Self> {
        self.with("limits", limits)
    }

    /// Sets a member of `<name>.yaml`.
    ///
    /// # Errors
    /// The file is not YAML.
    pub fn with(mut self, member: &str, value: &Value) -> Result<Self> {
        let mut yaml = yaml::first(self.yaml.as_deref().unwrap_or_default())?.value;
        yaml[member] = value.clone();
        self.yaml = Some(yaml.to_string());
        Ok(self)
    }

    /// Removes `<name>.yaml`.
    #[must_use]
    pub fn without_yaml(mut self) -> Self {
        self.yaml = None;
        self
    }

    /// Returns a component of a few kB whose compilation needs more memory than the compiler may use.
    ///
    /// Each of its core modules has 100 function tables, the maximum. The last element of each is filled, so the
    /// compiler lays out the whole table.
    ///
    /// # Errors
    /// The text is not a component, which is a fault of this function.
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

    /// Damages one byte so that a compiler overflows its stack.
    ///
    /// The byte stands in the custom section with the contract's types. It moves `cache` to another package. That
    /// package uses `types` of the contract's package, and the contract's world uses `cache`: a cycle.
    ///
    /// # Errors
    /// The plugin does not import `cache`.
    pub fn with_a_cycle_of_packages(mut self) -> Result<Self> {
        let name = b"pilothouse:plugin/cache@0.1.0";
        let last = self.wasm.windows(name.len()).rposition(|window| window == name);
        let at = last.context("the plugin does not import the cache")? + "pilothouse:p".len();
        if let Some(byte) = self.wasm.get_mut(at) {
            *byte = b'm';
        }
        Ok(self)
    }

    /// Adds a core module (WebAssembly text) that every instance of the plugin instantiates `instances` times.
    ///
    /// # Errors
    /// The text is not a core module, or the plugin is not a core module with a component's metadata, as plugins in
    /// Rust are.
    pub fn beside(mut self, module: &str, instances: u32) -> Result<Self> {
        let module = wat::parse_str(module).context("the text is no core module")?;
        let mut encoder = ComponentEncoder::default();
        encoder.module(&self.wasm).context("the plugin is no core module with a component's metadata")?;
        self.wasm = encoder.encode().context("the plugin cannot become a component")?;
        let index = core_modules(&self.wasm).context("the component's sections cannot be read")?;
        section(&mut self.wasm, CORE_MODULE, &module)?;
        // Each of them instantiates the module without arguments.
        let mut made = leb128(instances);
        let instance = [vec![0], leb128(index), vec![0]].concat();
        made.extend(instance.repeat(usize::try_from(instances)?));
        section(&mut self.wasm, CORE_INSTANCES, &made)?;
        Ok(self)
    }

    /// Returns copies of the guest `second` that misbehave during instantiation, each named after what it does.
    ///
    /// Their start functions loop or trap, or they have too many instances, too much memory, too large tables, too many
    /// globals, or a function with too long a name.
    ///
    /// # Errors
    /// The guest is not built, or a module cannot be [added](Self::beside) to it.
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

    /// Appends a custom section that holds `mark`: the same code with another digest.
    #[must_use]
    pub fn revision(mut self, mark: u8) -> Self {
        // Section 0, 10 bytes: the length of the name, the name, the content.
        self.wasm.extend([0, 10, 8]);
        self.wasm.extend(b"revision");
        self.wasm.push(mark);
        self
    }
}

/// Numbers of a component's sections.
const CORE_MODULE: u8 = 1;
const CORE_INSTANCES: u8 = 2;

fn section(component: &mut Vec<u8>, number: u8, content: &[u8]) -> Result<()> {
    component.push(number);
    component.extend(leb128(u32::try_from(content.len()).context("a section of 4 GiB")?));
    component.extend(content);
    Ok(())
}

/// Counts a component's core modules, without those of nested components.
fn core_modules(component: &[u8]) -> Option<u32> {
    // Every binary begins with magic, version and layer.
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
    /// Grants verbs for all objects of a kind, or of one of its subresources (`MyApple/status`).
    pub fn to(verbs: &[&str], api_version: &str, kind: &str) -> Self {
        Self(json!({"apiVersion": api_version, "kind": kind, "verbs": verbs}))
    }

    /// Limits the grant to one namespace.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.0["namespaces"] = json!([namespace]);
        self
    }

    /// Returns the grants that the example plugin needs to serve MyApples.
    pub fn of_myapple() -> [Self; 3] {
        [
            Self::to(&["read"], "stable.example.com/v1", "MyApple"),
            Self::to(&["apply"], "stable.example.com/v1", "MyApple/status"),
            Self::to(&["read", "apply", "delete"], "v1", "ConfigMap"),
        ]
    }

    /// Returns the grant that the example plugin needs to install its CRD.
    pub fn of_its_crd() -> Self {
        Self::to(&["apply"], "apiextensions.k8s.io/v1", "CustomResourceDefinition")
    }
}

/// The folder that is given to `pilothouse run --plugins`.
#[derive(Debug)]
pub struct Plugins {
    folder: TempDir,
    /// A folder on the same file system, from which files are moved in atomically.
    aside: TempDir,
}

impl Plugins {
    /// Creates an empty folder. Dropping it removes it.
    ///
    /// # Errors
    /// No temporary folder can be created.
    pub fn empty() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir().context("cannot create a folder for plugins")?,
            aside: tempfile::tempdir().context("cannot create a folder for files to be moved")?,
        })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds or replaces a plugin. Each file is moved in atomically, the grants first.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn put(&self, plugin: &Plugin) -> Result<()> {
        self.put_yaml(plugin)?;
        self.move_in(&format!("{}.wasm", plugin.name), &plugin.wasm)
    }

    /// Replaces a plugin's YAML file and leaves its component as it is.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_yaml(&self, plugin: &Plugin) -> Result<()> {
        match &plugin.yaml {
            Some(yaml) => self.move_in(&format!("{}.yaml", plugin.name), yaml.as_bytes()),
            None => remove(&self.file(&plugin.name, "yaml")),
        }
    }

    /// Overwrites a plugin's file in place with its first `length` bytes, as an interrupted copy does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_first_bytes(&self, plugin: &Plugin, length: usize) -> Result<()> {
        let path = self.file(&plugin.name, "wasm");
        let bytes = plugin.wasm.get(..length).context("the plugin has fewer bytes")?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a plugin's files.
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

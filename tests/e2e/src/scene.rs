//! The surroundings of one test: its own API server, namespace, folder of plugins, and hosts.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, PostParams},
};
use pilothouse_real::process;
use serde_json::{from_value, json};
use tempfile::TempDir;

use crate::{
    apple::{Apple, resource},
    cluster::Cluster,
    host::{Access, Container, Environment, Host, Order, Pod, built},
    image::Image,
    plugin::{Plugin, Plugins},
    wait::eventually,
};

/// The surroundings of one test.
pub struct Scene {
    /// The API server.
    pub cluster: Arc<Cluster>,
    /// The test's own namespace.
    pub namespace: String,
    /// The folder that every host of the test watches.
    pub plugins: Plugins,
    /// Cache directory of its hosts. All tests share one, unless a test asks for its own.
    cache: PathBuf,
    /// `true` if the cache directory is a volume without free space.
    is_full: bool,
    /// The files of the image in which its hosts run.
    image: Option<PathBuf>,
    /// Further arguments of its hosts.
    arguments: Vec<String>,
    logs: Arc<Logs>,
}

impl Scene {
    pub(crate) async fn new(cluster: Arc<Cluster>) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let scene = Self {
            cluster,
            namespace,
            plugins: Plugins::empty()?,
            cache: built("e2e-cache"),
            is_full: false,
            image: None,
            arguments: Vec::new(),
            logs: Arc::new(Logs { folder: tempfile::tempdir().context("cannot create a folder for logs")? }),
        };
        scene.create_namespace(&scene.namespace).await?;
        Ok(scene)
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// Puts plugins into the folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn with(&self, plugins: &[Plugin]) -> Result<&Self> {
        for plugin in plugins {
            self.plugins.put(plugin)?;
        }
        Ok(self)
    }

    /// Gives this test's hosts a cache directory of their own, and returns it.
    pub fn with_cache_of_its_own(&mut self) -> PathBuf {
        self.cache = self.logs.folder.path().join("cache");
        self.cache.clone()
    }

    /// Gives this test's hosts a cache directory without free space, and returns it. Other processes see it empty.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn with_cache_without_room(&mut self) -> Result<PathBuf> {
        self.is_full = true;
        let cache = self.with_cache_of_its_own();
        std::fs::create_dir(&cache).context("cannot create a folder")?;
        Ok(cache)
    }

    /// Lets this test's hosts run in the files of an image, with a cache directory of their own.
    pub fn run_in(&mut self, image: &Image) {
        self.with_cache_of_its_own();
        self.image = Some(image.files().to_owned());
    }

    /// Lets this test's hosts serve webhooks at a free port of the loopback address. `more` are further arguments of
    /// `run`.
    ///
    /// # Errors
    /// There is no free port.
    pub fn serve_webhooks(&mut self, more: &[&str]) -> Result<()> {
        let address = format!("127.0.0.1:{}", pilothouse_real::port::free()?);
        let url = format!("https://{address}");
        let own = ["--webhook-url", &url, "--webhook-address", &address];
        self.arguments = own.iter().chain(more).map(|argument| (*argument).to_owned()).collect();
        Ok(())
    }

    /// Lets this test's hosts elect the one that acts, by a Lease in a namespace. Its duration, its deadline for renewals and the time
    /// between two are in seconds.
    pub fn elect(&mut self, namespace: &str, [lease, renew, retry]: [u32; 3]) {
        self.arguments = vec![
            "--leader-elect".to_owned(),
            format!("--leader-elect-resource-namespace={namespace}"),
            format!("--leader-elect-lease-duration={lease}"),
            format!("--leader-elect-renew-deadline={renew}"),
            format!("--leader-elect-retry-period={retry}"),
        ];
    }

    /// Gives this test's hosts further arguments of `run`.
    pub fn run_with(&mut self, arguments: &[String]) {
        self.arguments = arguments.to_vec();
    }

    /// Lets this test's hosts check the service accounts of plugins each second.
    pub fn check_accounts_every_second(&mut self) {
        self.arguments = vec!["--check-accounts-every=1".to_owned()];
    }

    /// Lets this test's hosts share the plugins, by Leases in a namespace. The times are those of [`Scene::elect`].
    pub fn spread(&mut self, namespace: &str, timings: [u32; 3]) {
        self.elect(namespace, timings);
        self.arguments.push("--spread".to_owned());
    }

    /// Adds an argument of this test's hosts.
    pub(crate) fn add_argument(&mut self, argument: String) {
        self.arguments.push(argument);
    }

    /// Lets this test's hosts serve metrics over TLS, with the certificate in `certificates`, and probes apart, each at
    /// a free port of the loopback address.
    pub fn serve_securely(&mut self, certificates: &Path) {
        self.arguments = vec![
            "--metrics-address=127.0.0.1:0".to_owned(),
            "--metrics-secure=true".to_owned(),
            format!("--metrics-cert-dir={}", certificates.display()),
            "--health-probe-address=127.0.0.1:0".to_owned(),
        ];
    }

    /// Starts a host with the folder's plugins and returns when it is ready.
    ///
    /// # Errors
    /// The host does not start, or does not become ready.
    pub async fn host(&self) -> Result<Host> {
        let mut host = self.starting_host()?;
        host.ready().await?;
        Ok(host)
    }

    /// Starts a host with the folder's plugins and returns at once.
    ///
    /// # Errors
    /// The host does not start.
    pub fn starting_host(&self) -> Result<Host> {
        self.host_as(self.cluster.kubeconfig())
    }

    /// As [`Scene::starting_host`], with another kubeconfig.
    ///
    /// # Errors
    /// The host does not start.
    pub fn host_as(&self, kubeconfig: PathBuf) -> Result<Host> {
        self.host_with(Access::Kubeconfig(kubeconfig))
    }

    /// As [`Scene::starting_host`], with variables in place of a kubeconfig.
    ///
    /// # Errors
    /// The host does not start.
    pub fn host_by(&self, environment: Environment) -> Result<Host> {
        self.host_with(Access::Environment(environment))
    }

    /// As [`Scene::starting_host`], with a pod's service account in place of a kubeconfig.
    ///
    /// # Errors
    /// The host does not start.
    pub fn host_in(&self, pod: Pod) -> Result<Host> {
        self.host_with(Access::Pod(pod))
    }

    /// Starts a host as a container of a pod, in the files of an image.
    pub(crate) fn host_of(&self, image: &Image, pod: Pod, container: Container) -> Result<Host> {
        Host::start(Order {
            plugins: self.plugins.path().to_owned(),
            cache: self.cache.clone(),
            is_full: false,
            access: Access::Container(pod, container),
            image: Some(image.files().to_owned()),
            logs: self.logs.folder.path().to_owned(),
            arguments: Vec::new(),
        })
    }

    fn host_with(&self, access: Access) -> Result<Host> {
        Host::start(Order {
            plugins: self.plugins.path().to_owned(),
            cache: self.cache.clone(),
            is_full: self.is_full,
            access,
            image: self.image.clone(),
            logs: self.logs.folder.path().to_owned(),
            arguments: self.arguments.clone(),
        })
    }

    /// Names a MyApple of the test's namespace. It need not exist.
    pub fn apple(&self, name: &str) -> Apple {
        Apple::new(self.client(), &self.namespace, name)
    }

    /// Names a MyApple of another namespace.
    pub fn apple_in(&self, namespace: &str, name: &str) -> Apple {
        Apple::new(self.client(), namespace, name)
    }

    /// The ConfigMaps of the test's namespace.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Waits until the caches of a host with the plugin `myapple` hold as many MyApples and ConfigMaps as the server.
    ///
    /// # Errors
    /// They do not in time. The error says what they hold.
    pub async fn is_cached(&self, host: &mut Host) -> Result<()> {
        let apples: Api<DynamicObject> = Api::all_with(self.client(), &resource());
        let maps: Api<ConfigMap> = Api::all(self.client());
        eventually("the host's caches hold what the server has", async || {
            let expected = [
                ("stable.example.com/v1 MyApple", apples.list(&ListParams::default()).await?.items.len()),
                ("v1 ConfigMap", maps.list(&ListParams::default()).await?.items.len()),
            ];
            let informers = host.informers().await?;
            for (kind, count) in expected {
                let informer = informers.iter().find(|informer| informer["kind"] == kind);
                let informer = informer.with_context(|| format!("no informer of {kind}"))?;
                ensure!(informer["objects"] == count, "the server has {count}, and {informer}");
            }
            Ok(())
        })
        .await
    }

    /// Creates a namespace.
    ///
    /// # Errors
    /// The server rejects the request.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace: Namespace = from_value(json!({"metadata": {"name": name}})).context("not a namespace")?;
        let namespaces: Api<Namespace> = Api::all(self.client());
        namespaces.create(&PostParams::default(), &namespace).await.context("cannot create the namespace")?;
        Ok(())
    }

    /// A folder for the test's own files, with the hosts' logs.
    pub fn folder(&self) -> &Path {
        self.logs.folder.path()
    }

    pub(crate) fn logs(&self) -> Arc<Logs> {
        Arc::clone(&self.logs)
    }
}

/// The logs of a test's hosts. They outlive the test.
#[derive(Debug)]
pub(crate) struct Logs {
    folder: TempDir,
}

impl Logs {
    pub(crate) fn last_lines(&self, count: usize) -> String {
        let mut logs: Vec<PathBuf> = std::fs::read_dir(self.folder.path())
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .collect();
        logs.sort();
        logs.iter()
            .map(|log| {
                let name = log.file_stem().unwrap_or_default().to_string_lossy();
                process::last_lines(&name, log, count)
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

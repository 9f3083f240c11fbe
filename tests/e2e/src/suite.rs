//! Runs the tests. It owns the runtime and the API servers, gives each test its own [`Scene`], and prints the logs of a
//! failed test.
//!
//! A test has an API server for itself, so it may count requests, kill the server, and delete CRDs. Each test gets a
//! new embedded server. A real one takes seconds to start, so the runner cleans the server of a passed test and uses it
//! again.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::LocalBoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Runtime;

use crate::{
    apple::resource,
    cluster::{Cluster, Kind},
    scene::Scene,
    wait::eventually,
};

/// Time after which a test counts as hanging.
const LIMIT: Duration = Duration::from_secs(600);
/// Number of lines of each log in a failure's report.
const LOG_LINES: usize = 60;

/// One test: a fact and the function that checks it.
pub struct Test {
    /// The fact.
    pub name: &'static str,
    /// Checks the fact.
    pub run: fn(Scene) -> LocalBoxFuture<'static, Result<()>>,
}

/// The tests of some modules, each an `async fn(Scene) -> anyhow::Result<()>`.
#[macro_export]
macro_rules! tests {
    ($($module:ident { $($name:ident),+ $(,)? })+) => {
        vec![$($($crate::suite::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |scene| Box::pin($module::$name(scene)),
        }),+),+]
    };
}

/// Returned by a test that cannot run here. The reason is shown, and the test counts as ignored.
#[derive(Debug)]
pub struct NotHere(pub &'static str);

impl std::fmt::Display for NotHere {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for NotHere {}

/// Runs those of `tests` that the command line selects, with the arguments of `cargo test`.
pub fn run(tests: Vec<Test>) -> ExitCode {
    run_within(LIMIT, tests)
}

/// As [`run`], with the time after which a test counts as hanging.
pub fn run_within(limit: Duration, tests: Vec<Test>) -> ExitCode {
    let arguments = Arguments::from_args();
    let kind = match Kind::chosen() {
        Ok(kind) => kind,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = match Runtime::new() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => {
            eprintln!("cannot start a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let servers = Arc::new(Servers { kind, left: Mutex::default() });
    let trials =
        tests.into_iter().map(|test| trial(&test, limit, Arc::clone(&runtime), Arc::clone(&servers))).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Stops the servers and removes their data, which `Conclusion::exit` would skip.
    drop(servers);
    conclusion.exit_code()
}

fn trial(test: &Test, limit: Duration, runtime: Arc<Runtime>, servers: Arc<Servers>) -> Trial {
    let run = test.run;
    Trial::ignorable_test(test.name, move || runtime.block_on(shown(run, limit, &servers)))
}

async fn shown(
    run: fn(Scene) -> LocalBoxFuture<'static, Result<()>>,
    limit: Duration,
    servers: &Servers,
) -> Result<Completion, Failed> {
    let cluster = servers.take().await.map_err(|error| Failed::from(format!("no API server: {error:#}")))?;
    let scene = Scene::new(Arc::clone(&cluster)).await.map_err(|error| Failed::from(format!("no scene: {error:#}")))?;
    let logs = scene.logs();
    let test = tokio::time::timeout(limit, AssertUnwindSafe(run(scene)).catch_unwind());
    let problem = match test.await {
        Ok(Ok(Ok(()))) => {
            servers.give_back(cluster).await;
            return Ok(Completion::Completed);
        }
        Ok(Ok(Err(error))) => match error.downcast_ref::<NotHere>() {
            Some(reason) => {
                let reason = reason.to_string();
                servers.give_back(cluster).await;
                return Ok(Completion::ignored_with(reason));
            }
            None => format!("{error:#}"),
        },
        Ok(Err(panic)) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_else(|| "panicked".to_owned()),
        Err(_) => format!("did not end within {} s", limit.as_secs()),
    };
    // The summary again, below the logs: tools that cut a long report keep its end.
    Err(Failed::from(format!("{problem}\n{}\n{}\n{problem}", logs.last_lines(LOG_LINES), cluster.last_lines(10))))
}

/// Starts API servers and keeps those of passed tests for reuse.
struct Servers {
    kind: Kind,
    left: Mutex<Vec<Arc<Cluster>>>,
}

impl Servers {
    async fn take(&self) -> Result<Arc<Cluster>> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match left {
            Some(cluster) => Ok(cluster),
            None => Ok(Arc::new(Cluster::start(self.kind).await?)),
        }
    }

    async fn give_back(&self, cluster: Arc<Cluster>) {
        if self.kind == Kind::Real && clean(&cluster).await.is_ok() {
            self.left.lock().unwrap_or_else(PoisonError::into_inner).push(cluster);
        }
    }
}

/// Removes what would disturb the next test: MyApples and their children. Namespaces differ by test. CRDs stay, because
/// the garbage collector takes half a minute to notice a new kind.
async fn clean(cluster: &Cluster) -> Result<()> {
    let apples: Api<DynamicObject> = Api::all_with(cluster.client(), &resource());
    let maps: Api<ConfigMap> = Api::all(cluster.client());
    eventually("nothing is left of the test", async || {
        let namespaces = match apples.list(&ListParams::default()).await {
            Ok(left) => self::namespaces(&left.items),
            Err(kube::Error::Api(status)) if status.code == 404 => BTreeSet::new(),
            Err(error) => return Err(error).context("cannot list the MyApples"),
        };
        for namespace in &namespaces {
            let apples: Api<DynamicObject> = Api::namespaced_with(cluster.client(), namespace, &resource());
            apples.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
        ensure!(namespaces.is_empty(), "MyApples are left");

        let mut left = maps.list(&ListParams::default()).await.context("cannot list the ConfigMaps")?.items;
        left.retain(|map| map.metadata.owner_references.is_some());
        for namespace in self::namespaces(&left) {
            let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
            maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
        ensure!(left.is_empty(), "{} ConfigMaps are left", left.len());
        Ok(())
    })
    .await
}

fn namespaces(objects: &[impl ResourceExt]) -> BTreeSet<String> {
    objects.iter().filter_map(ResourceExt::namespace).collect()
}

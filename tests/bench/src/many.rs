//! A host as a process of the bench. It runs what `pilothouse run` runs, and reports when plugins were called.
//!
//! ```text
//! says SECONDS SECONDS   from the start of the process until the first call, and until each plugin was called once and the host is idle
//! left   NUMBER          of plugin files whose code is not optimized yet
//! unmap  done            unmaps the code of plugins without a call since the last `unmap`
//! ```

use std::{
    env,
    io::{self, BufRead},
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pilothouse::{
    app::{self, Endpoints, Host, HostView, Options},
    cluster::{self, ConnectOptions},
    plugin::Mode,
};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    layer::{Context as Within, Layer, SubscriberExt},
    util::SubscriberInitExt,
};

use crate::server::say;

pub(crate) const NAME: &str = "host-of-many";
/// Environment variable with the folder of plugins. Each logs one line when it is called.
pub(crate) const PLUGINS: &str = "BENCH_HOST_PLUGINS";
/// Environment variable with the number of plugins.
pub(crate) const COUNT: &str = "BENCH_HOST_COUNT";
/// Environment variable with the cache directory.
pub(crate) const CACHE: &str = "BENCH_HOST_CACHE";
/// Environment variable with the kubeconfig.
pub(crate) const KUBECONFIG: &str = "BENCH_HOST_KUBECONFIG";

/// Tracing target of plugins' log lines.
const LOGGED: &str = "pilothouse::plugin_log";
const POLL: Duration = Duration::from_millis(5);

/// Runs the process until its input ends.
pub(crate) fn run() -> Result<()> {
    let called = Arc::new(Called { began: Instant::now(), first: OnceLock::new(), count: AtomicUsize::new(0) });
    tracing_subscriber::registry().with(Counting(Arc::clone(&called)).with_filter(LevelFilter::INFO)).try_init()?;
    let count = env::var(COUNT).ok().and_then(|text| text.parse().ok()).context("how many plugins?")?;
    let runtime = app::io_runtime()?;
    let done = runtime.block_on(async {
        let connect = ConnectOptions { kubeconfig: Some(folder(KUBECONFIG)?), context: None };
        let cluster = cluster::connect(&connect).await?;
        let options = Options {
            plugins: folder(PLUGINS)?,
            stand_ins: Vec::new(),
            cache: Some(folder(CACHE)?),
            mode: Mode::Granted,
            grace_period: Duration::from_secs(1),
            webhooks: None,
            election: None,
            check_accounts_every: Duration::from_secs(60),
        };
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let host = Host::new(options, &cluster)?;
        let view = host.view();
        tokio::select! {
            ended = host.run(Endpoints::plain(listener), std::future::pending()) => ended,
            asked = answer(&view, &called, count) => asked,
        }
    });
    runtime.shutdown_background();
    done
}

fn folder(name: &str) -> Result<PathBuf> {
    env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"))
}

async fn answer(view: &HostView, called: &Called, count: usize) -> Result<()> {
    while called.count.load(Ordering::Relaxed) < count || !view.is_idle() {
        sleep(POLL).await;
    }
    let (first, all) = (called.first.get().context("it was not called")?, called.began.elapsed());
    say(&format!("{} {}", first.as_secs_f64(), all.as_secs_f64()))?;
    let view = view.clone();
    // This thread only waits for commands.
    spawn_blocking(move || {
        for command in io::stdin().lock().lines() {
            match &*command.context("cannot read a command")? {
                "unmap" => {
                    view.unmap_idle();
                    say("done")?;
                }
                "left" => say(&view.unoptimized().to_string())?,
                command => bail!("not a command here: {command:?}"),
            }
        }
        Ok(())
    })
    .await?
}

/// Times and number of plugins' calls.
struct Called {
    began: Instant,
    first: OnceLock<Duration>,
    count: AtomicUsize,
}

/// Counts log lines instead of writing them.
struct Counting(Arc<Called>);

impl<S: tracing::Subscriber> Layer<S> for Counting {
    fn on_event(&self, event: &tracing::Event<'_>, _: Within<'_, S>) {
        if event.metadata().target() == LOGGED {
            self.0.first.get_or_init(|| self.0.began.elapsed());
            self.0.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

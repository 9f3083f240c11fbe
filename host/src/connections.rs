//! Accepts connections of a server, and bounds their number.
//!
//! Anybody who reaches the port may connect. A connection past the bound closes another one: the oldest that never had
//! a request, else the oldest without a request in flight, else the oldest. So the newest connection is always served.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::{self, AbortHandle, JoinSet},
};
use tracing::warn;

/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The server's name in the log.
    pub(crate) server: &'static str,
    /// Connections at once.
    pub(crate) connections: usize,
    /// Time that requests in flight have after the shutdown.
    pub(crate) drain: Duration,
    /// `true` if a connection without a request in flight ends by itself after the shutdown. Otherwise it is cut.
    pub(crate) says_goodbye: bool,
}

/// The requests of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    begun: AtomicUsize,
    in_flight: AtomicUsize,
}

/// A request in flight, until it is dropped.
pub(crate) struct InFlight(Arc<Requests>);

impl Activity {
    /// Records that the head of a request has arrived.
    pub(crate) fn begin(&self) -> InFlight {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.0.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves each connection with `connection` until `shutdown`.
///
/// # Errors
/// If the listener fails for good.
///
/// # Cancellation
/// Dropping the future closes all connections.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
    bounds: Bounds,
    connection: impl Fn(TcpStream, Activity) -> F,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = Open::default();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            () = open.one_ends() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let activity = Activity::default();
                    open.add(connection(stream, activity.clone()), activity, bounds.connections);
                }
                Err(error) if passes(&error) => {
                    warn!(server = bounds.server, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) => return Err(error),
            },
        }
    }
    // No client may connect to a server that ends.
    drop(listener);
    let _late = tokio::time::timeout(bounds.drain, open.drain(bounds.says_goodbye)).await;
    Ok(())
}

/// The open connections.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    /// The oldest first.
    connections: VecDeque<Connection>,
}

struct Connection {
    task: task::Id,
    abort: AbortHandle,
    activity: Activity,
}

impl Connection {
    fn never_asked(&self) -> bool {
        self.activity.0.begun.load(Ordering::Relaxed) == 0
    }

    fn is_idle(&self) -> bool {
        self.activity.0.in_flight.load(Ordering::Relaxed) == 0
    }
}

impl Open {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static, activity: Activity, most: usize) {
        while self.connections.len() >= most.max(1) {
            self.close_one();
        }
        let abort = self.tasks.spawn(connection);
        self.connections.push_back(Connection { task: abort.id(), abort, activity });
    }

    /// Closes the connection that is missed least.
    fn close_one(&mut self) {
        let never_asked = self.connections.iter().position(Connection::never_asked);
        let idle = || self.connections.iter().position(Connection::is_idle);
        let at = never_asked.or_else(idle).unwrap_or(0);
        if let Some(closed) = self.connections.remove(at) {
            closed.abort.abort();
        }
    }

    /// Returns when a connection has ended. Never returns while there is none.
    async fn one_ends(&mut self) {
        let ended = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
            None => return std::future::pending().await,
        };
        self.connections.retain(|connection| connection.task != ended);
    }

    /// Waits for the connections with a request in flight.
    async fn drain(&mut self, says_goodbye: bool) {
        for connection in self.connections.iter().filter(|connection| !says_goodbye && connection.is_idle()) {
            connection.abort.abort();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Returns `true` if the next accept may succeed after this error.
fn passes(error: &io::Error) -> bool {
    // accept(2): ENFILE, EMFILE, ENOBUFS, in Linux' and macOS' numbers.
    const EXHAUSTED: [i32; 4] = [23, 24, 105, 55];
    let kinds = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::Interrupted,
        io::ErrorKind::OutOfMemory,
    ];
    kinds.contains(&error.kind()) || error.raw_os_error().is_some_and(|number| EXHAUSTED.contains(&number))
}

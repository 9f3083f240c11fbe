//! Accepts, serves and cuts connections.

use std::{convert::Infallible, future::Future, io, sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tracing::{debug, warn};

use crate::{
    faults::{
        Reply, Verb,
        connection::{Line, Socket},
        subject::Subject,
    },
    handle::handle,
    housekeeping,
    server::Server,
};

/// Pause after a failed accept, for example because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `server` on `listener` until `shutdown` completes. It then cuts all connections, including watches, and
/// returns.
///
/// The data stays in `server`. Serving it again, on the same or another listener, is like a restart of an API server.
/// Garbage collection runs while the server is served.
///
/// # Cancellation
/// Dropping the future cuts all connections too.
///
/// # Errors
/// The listener can accept no more connections. A failed connection is no error, and a lack of file descriptors or
/// memory is waited out.
pub async fn serve(listener: TcpListener, shutdown: impl Future<Output = ()>, server: Arc<Server>) -> io::Result<()> {
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    let housekeeping = housekeeping::run(Arc::clone(&server));
    tokio::pin!(housekeeping);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            () = &mut housekeeping => {}
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&server)));
                }
                Err(error) if passes(&error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) => return Err(error),
            },
        }
    }
    connections.shutdown().await;
    Ok(())
}

/// `true` if the next accept may succeed after this error.
fn passes(error: &io::Error) -> bool {
    // accept(2): ENFILE, EMFILE, ENOBUFS, in Linux' and macOS' numbers.
    const EXHAUSTED: [i32; 4] = [23, 24, 105, 55];
    let kinds = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::Interrupted];
    kinds.contains(&error.kind())
        || error.kind() == io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|number| EXHAUSTED.contains(&number))
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    // Watch lines are small and must not be delayed.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set nodelay");
    }
    let line = Arc::new(Line::default());
    let socket = Socket::new(stream, Arc::clone(&line));
    if !begins(&server, &line).await {
        return;
    }
    let service = service_fn(|request| {
        let (server, line) = (Arc::clone(&server), Arc::clone(&line));
        async move { Ok::<_, Infallible>(handle(&server, &line, request).await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let served = builder.serve_connection(TokioIo::new(socket), service);
    tokio::pin!(served);
    let ended = loop {
        tokio::select! {
            ended = &mut served => break ended,
            // Polls the connection once more, so that the socket reports its end.
            () = line.ends() => {}
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// Applies faults to an accepted connection. Returns `false` if the connection is not served.
async fn begins(server: &Server, line: &Line) -> bool {
    let plan = server.faults.plan(&Subject::bare(Verb::Connect, ""));
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    match plan.instead.map(|instead| instead.what) {
        None | Some(Reply::Answer(_)) => true,
        Some(Reply::Nothing) => std::future::pending().await,
        Some(Reply::End(by)) => {
            line.end_soon(by);
            false
        }
    }
}

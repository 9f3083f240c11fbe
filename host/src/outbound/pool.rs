//! Idle connections of one plugin.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use parking_lot::Mutex;
use pilothouse_core::http::Host;
use tokio::time::Instant;

/// Idle connections of a plugin. Beyond them, the oldest is closed.
const MAX_IDLE: usize = 8;

/// Time after which an idle connection is closed, or up to twice as long. Most servers keep them longer.
const IDLE: Duration = Duration::from_secs(30);

/// What a connection leads to. One to an address that is not public serves only requests that may use such addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) plain: bool,
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) private: bool,
}

/// An open connection.
pub(super) enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Why a request failed on a connection.
pub(super) struct SendError {
    pub(super) error: hyper::Error,
    /// `true` if nothing of the request was sent.
    pub(super) is_unsent: bool,
}

impl Connection {
    /// Sends a request, and returns the head of the response.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let unsent = |error| SendError { error, is_unsent: true };
        let sent = match self {
            Self::Http1(sender) => {
                sender.ready().await.map_err(unsent)?;
                sender.try_send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await.map_err(unsent)?;
                sender.try_send_request(request).await
            }
        };
        sent.map_err(|mut error| {
            let is_unsent = error.take_message().is_some();
            SendError { error: error.into_error(), is_unsent }
        })
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    /// Returns another handle if several requests can share the connection.
    fn shared(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }
}

/// The idle connections of one plugin.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
    /// `true` while a task closes connections that are idle for long.
    is_swept: AtomicBool,
}

struct Idle {
    key: Key,
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// Returns an open connection, if there is one.
    pub(super) fn take(&self, key: &Key) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|idle| !idle.connection.is_closed());
        let place = idle.iter().rposition(|idle| idle.key == *key)?;
        match idle[place].connection.shared() {
            Some(connection) => {
                idle[place].since = Instant::now();
                Some(connection)
            }
            None => Some(idle.remove(place).connection),
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(self: &Arc<Self>, key: Key, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        let since = Instant::now();
        let is_shared = matches!(connection, Connection::Http2(_));
        if let Some(known) = idle.iter_mut().find(|idle| is_shared && idle.key == key) {
            *known = Idle { key, connection, since };
            return;
        }
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        idle.push(Idle { key, connection, since });
        drop(idle);
        if !self.is_swept.swap(true, Ordering::AcqRel) {
            let pool = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(IDLE).await;
                    let Some(pool) = pool.upgrade() else { return };
                    if pool.sweep() {
                        return;
                    }
                }
            });
        }
    }

    /// Closes connections that are idle for long. Returns `true` if none is left.
    fn sweep(&self) -> bool {
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.since.elapsed() < IDLE && !idle.connection.is_closed());
        let is_empty = idle.is_empty();
        if is_empty {
            self.is_swept.store(false, Ordering::Release);
        }
        is_empty
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.idle.lock().len()
    }
}

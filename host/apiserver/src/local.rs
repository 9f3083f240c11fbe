//! Serves clients in the same process, without sockets.
//!
//! Tests that control the clock use this: a socket would wake tasks at times that the clock does not know.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use http::{Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tower::Service;

use crate::{
    faults::connection::Line,
    handle::{Body, handle},
    housekeeping,
    server::Server,
};

/// Answers requests with a server in the same process. Faults that end a connection end the request.
#[derive(Clone, Debug)]
pub struct Local(Arc<Server>);

impl Local {
    /// Creates a service for `server`.
    #[must_use]
    pub fn new(server: Arc<Server>) -> Self {
        Self(server)
    }
}

/// Collects garbage while it is polled. [`serve`](crate::serve) does this by itself.
pub async fn keep_house(server: Arc<Server>) {
    housekeeping::run(server).await;
}

impl<B> Service<Request<B>> for Local
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<UnsyncBoxBody<Bytes, io::Error>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = Arc::clone(&self.0);
        Box::pin(async move {
            let line = Arc::new(Line::default());
            let response = tokio::select! {
                response = handle(&server, &line, request) => response,
                () = line.ends() => return Err(cut()),
            };
            Ok(response.map(|body| until_cut(body, line)))
        })
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "ended by a fault")
}

/// Returns the body, which fails when its line ends.
fn until_cut(body: Body, line: Arc<Line>) -> UnsyncBoxBody<Bytes, io::Error> {
    // A whole answer needs no line.
    if body.size_hint().exact().is_some() {
        return body.map_err(|never| match never {}).boxed_unsync();
    }
    let frames = stream::unfold(Some((body, line)), |open| async {
        let (mut body, line) = open?;
        let next = tokio::select! {
            biased;
            next = body.frame() => next,
            () = line.ends() => return Some((Err(cut()), None)),
        };
        let Ok(frame): Result<Frame<Bytes>, _> = next?;
        Some((Ok(frame), Some((body, line))))
    });
    StreamBody::new(frames.boxed()).boxed_unsync()
}

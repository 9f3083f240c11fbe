//! A connection that can be ended on demand, after everything written so far, with or without a TCP reset.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};
use tracing::debug;

use super::rule::By;

/// The handle of a connection that its requests hold.
#[derive(Debug, Default)]
pub(crate) struct Line {
    end: OnceLock<By>,
    ends: Notify,
}

impl Line {
    /// Ends the connection as soon as everything written has been sent. Never returns, because the caller ends with the
    /// connection.
    pub(crate) async fn end<T>(&self, by: By) -> T {
        self.end_soon(by);
        std::future::pending().await
    }

    pub(crate) fn end_soon(&self, by: By) {
        // The first call decides.
        let _ = self.end.set(by);
        self.ends.notify_one();
    }

    /// Completes when the connection is to end. The connection must then be polled, so that it flushes.
    pub(crate) async fn ends(&self) {
        self.ends.notified().await;
    }
}

/// A TCP stream that fails once its [`Line`] has ended and everything has been written.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    line: Arc<Line>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, line: Arc<Line>) -> Self {
        Socket { stream, line }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.line.end.get() == Some(&By::Reset)
            && let Err(error) = self.stream.set_zero_linger()
        {
            debug!(%error, "cannot reset a connection");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        match self.line.end.get() {
            None => Poll::Ready(Ok(())),
            Some(_) => Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "ended by a fault"))),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
